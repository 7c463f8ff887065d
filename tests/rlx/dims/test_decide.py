"""Decisions about dims: what is known for every binding, and what is refused."""

from __future__ import annotations

import pytest

from rlx import dims
from rlx.errors import DimError, InconclusiveDimError

b, s = dims.symbol("b"), dims.symbol("s")
k = dims.symbol("k", 2, 8)
free = dims.symbol("free", None)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (3, 3, True),
        (3, 4, False),
        (b * s, s * b, True),
        (b + 1, b, False),
        (b, 0, False),
        (k, 9, False),
        (2 * b, 2 * s + 1, False),
        (4 * (b // 4) + b % 4, b, True),
        (s * (b // s) + b % s, b, True),
        (2 * (b % 4 // 2) + b % 2, b % 4, True),
    ],
)
def test_equal(x: dims.Dim, y: dims.Dim, expected: bool) -> None:
    assert dims.equal(x, y) is expected
    assert dims.equal(y, x) is expected


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (0, b, True),
        (b, b + 1, True),
        (b, b, False),
        (b * s, b, False),
        (b, b * s + 1, True),
        (k, 9, True),
        (k, 2, False),
        (b % 4, 4, True),
        (b // 2, b, True),
        (16 * ((b + 15) // 16), b, False),
        (16 * ((b + 15) // 16), b + 16, True),
        (dims.min_(b, s), s + 1, True),
        (2, 1, False),
    ],
)
def test_less(x: dims.Dim, y: dims.Dim, expected: bool) -> None:
    assert dims.less(x, y) is expected
    assert dims.less_equal(y, x) is not expected


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [(8, 4, True), (9, 4, False), (4 * b, 4, True), (2 * b + 1, 4, False), (b * s, s, True)],
)
def test_divisible(x: dims.Dim, y: dims.Dim, expected: bool) -> None:
    assert dims.divisible(x, y) is expected


def test_inconclusive_names_both_and_advises() -> None:
    with pytest.raises(InconclusiveDimError, match=r"dims\.equal: b == s .*Bind b, s.*declare"):
        dims.equal(b, s)
    with pytest.raises(InconclusiveDimError, match=r"dims\.less: b < s"):
        dims.less(b, s)
    with pytest.raises(InconclusiveDimError, match=r"dims\.less_equal: 2 <= b"):
        dims.less_equal(2, b)
    with pytest.raises(InconclusiveDimError, match=r"dims\.divisible: b divisible by 2"):
        dims.divisible(b, 2)
    with pytest.raises(DimError, match="a divisor must not be 0"):
        dims.divisible(4, 0)


def test_bounds() -> None:
    assert dims.bounds(5) == (5, 5)
    assert dims.bounds(b) == (1, None)
    assert dims.bounds(free) == (None, None)
    assert dims.bounds(free * free) == (0, None)
    assert dims.bounds(2 * k - 1) == (3, 15)
    assert dims.bounds(7 - b % 4) == (4, 7)
    assert dims.bounds(b * s - b) == (0, None)
    assert dims.bounds(dims.min_(k, s) // 2) == (0, 4)
    never = 2 * (b // 2) + b % 2 - b  # 0 in every binding, but not by its form
    assert dims.bounds(never) == (0, 0)
    assert dims.bounds(s // never) == (None, None)


def test_exact_div() -> None:
    assert dims.exact_div(12, 4) == 3
    assert dims.exact_div(12 * b * s, 4 * b) == 3 * s
    with pytest.raises(DimError, match=r"2\*b \+ 1 must be divisible by 2; it is not"):
        dims.exact_div(2 * b + 1, 2)
    with pytest.raises(InconclusiveDimError):
        dims.exact_div(b, 2)


def test_broadcast() -> None:
    assert dims.broadcast(1, 4) == 4
    assert dims.broadcast(4, 1) == 4
    assert dims.broadcast(1, b) == b
    assert dims.broadcast(b, 1) == b
    assert dims.broadcast(b * s, s * b) == b * s
    assert dims.broadcast_shapes((8, 1, b), (s, 1), ()) == (8, s, b)
    assert dims.broadcast_shapes() == ()
    with pytest.raises(DimError, match="got 3 and 4"):
        dims.broadcast(3, 4)
    with pytest.raises(DimError, match="got k and 9"):
        dims.broadcast(k, 9)
    with pytest.raises(InconclusiveDimError, match="b equal to 4, or one of them 1"):
        dims.broadcast(b, 4)
    with pytest.raises(InconclusiveDimError):
        dims.broadcast(b, s)
    with pytest.raises(InconclusiveDimError):
        dims.broadcast(b, b + 1)


def test_a_remainder_is_below_its_divisor() -> None:
    b, s = dims.symbol("b"), dims.symbol("s")
    assert dims.less_equal(dims.mod_(-2, b), b)
    assert dims.less(dims.mod_(s, b), b)
    assert dims.less(3 * dims.mod_(s, b), 3 * b + s)
    assert not dims.less(b, dims.mod_(s, b))
    with pytest.raises(InconclusiveDimError):
        dims.less(dims.mod_(s, b), b - 1)
