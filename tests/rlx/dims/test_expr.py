"""Dimension expressions: simplification, refusals, substitution, evaluation and text."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from rlx import dims
from rlx.errors import DimError, InconclusiveDimError, UnboundDimError

b, s, a = dims.symbol("b"), dims.symbol("s"), dims.symbol("a")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (b - b, 0),
        (4 * b // 4, b),
        (4 * b % 4, 0),
        (b * s // s, b),
        ((b + 4) // 1, b + 4),
        ((4 * b + 1) // 4, b),
        ((4 * b + 1) % 4, 1),
        ((b * s - 1) // s, b - 1),
        ((b * b - s * s) // (b - s), b + s),
        ((b // 2) // 3, b // 6),
        (((s - 1) // 2 + 1 - 1) // 2 + 1, (s + 3) // 4),
        (6 * b // 4, 3 * b // 2),
        (b % 4 % 2, b % 2),
        (b // -2, -b // 2),
        (b % (b + 1), b),
        (b // (b + 1), 0),
        (0 // b, 0),
        (b % 4 // 4, 0),
        (divmod(b * s + 1, 1), (b * s + 1, 0)),
        (dims.min_(b, b + 1), b),
        (dims.max_(0, b), b),
        (dims.max_(dims.max_(a, s), b), dims.max_(b, dims.max_(s, a))),
        (dims.min_(3, 1, 2), 1),
        (b * np.int64(2), 2 * b),  # pyright: ignore[reportOperatorIssue]
        (b**0, 1),
        (b**2, b * b),
    ],
)
def test_simplifies(found: object, expected: object) -> None:
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (b, "b"),
        (4 * b + 1, "4*b + 1"),
        (1 - b, "-b + 1"),
        (s * b, "b*s"),
        (b * s // 2 + dims.min_(a, 4), "b*s//2 + min(4, a)"),
        (b // (2 * s), "b//(2*s)"),
        ((b + 1) // s, "(b + 1)//s"),
        (3 * (b // 2), "3*(b//2)"),
        (-(b // 2), "-(b//2)"),
        (s - b // 2, "s - b//2"),
        ((b // 2) ** 2, "(b//2)**2"),
        (b // s**2, "b//s**2"),
        (b // dims.max_(a, s), "b//max(a, s)"),
        (b % 4 + s, "s + b%4"),
    ],
)
def test_text(expr: dims.Dim, text: str) -> None:
    assert str(expr) == text
    assert dims.parse(text) == expr


def test_equality_and_hash_are_structural() -> None:
    assert b + s == s + b
    assert b != s
    assert b != 1
    assert b != "b"
    assert dims.symbol("b", 2) != b
    assert len({b * s, s * b, b}) == 2
    assert pickle.loads(pickle.dumps({b * s: 1})) == {s * b: 1}


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_order_is_refused(compare: Callable[[object, object], object]) -> None:
    with pytest.raises(TypeError, match=r"Use dims\.less"):
        compare(b, s)


def test_numbers_are_refused() -> None:
    with pytest.raises(InconclusiveDimError, match=r"bool\(b\).*dims\.equal"):
        bool(b)
    with pytest.raises(UnboundDimError, match=r"int\(b \+ s\).*Bind b, s"):
        int(b + s)
    with pytest.raises(TypeError, match=r"b / 2: .*exact_div"):
        b / 2
    with pytest.raises(TypeError):
        b * 1.5  # pyright: ignore[reportOperatorIssue]
    with pytest.raises(TypeError):
        operator.add(b, True)
    with pytest.raises(DimError, match="a divisor must not be 0; got 0 for b"):
        b // 0
    with pytest.raises(DimError, match="exponent must be an int >= 0; got -1"):
        b**-1


def test_declarations() -> None:
    with pytest.raises(DimError, match=r"one declaration; got Symbol\('b', lower=1"):
        b + dims.symbol("b", 2)
    with pytest.raises(DimError, match="one declaration"):
        dims.declarations((b, dims.symbol("b", 2)))
    with pytest.raises(DimError, match="an identifier other than"):
        dims.symbol("min")
    with pytest.raises(DimError, match="an identifier other than"):
        dims.symbol("a b")
    with pytest.raises(DimError, match="lower <= upper; got lower=3, upper=2"):
        dims.symbol("c", 3, 2)
    assert dims.declarations((b, 4, s * b)) == {n: dims.Symbol(n) for n in "bs"}


def test_symbols_and_static() -> None:
    assert dims.symbols((s, 4, b // a)) == ("a", "b", "s")
    assert dims.symbols(7) == ()
    assert dims.is_static((1, 2))
    assert not dims.is_static((1, b))
    assert dims.product((2, b, 3, s)) == 6 * b * s
    assert dims.product(()) == 1


def test_substitute() -> None:
    expr = b * s // 2 + dims.min_(a, 4)
    assert dims.substitute(expr, {"b": 4}) == 2 * s + dims.min_(a, 4)
    assert dims.substitute(expr, {"b": 2 * s, "a": 9, "other": 1}) == s * s + 4
    assert dims.substitute(expr, {"b": 3, "s": 5, "a": 1}) == 8
    assert dims.substitute(expr, {}) is expr
    assert dims.substitute(b * s, {"b": s, "s": b}) == b * s
    with pytest.raises(DimError, match="symbol b must be >= 1; got 0"):
        dims.substitute(b, {"b": 0})
    with pytest.raises(InconclusiveDimError, match="b must be >= 1; s - 1 cannot be shown"):
        dims.substitute(b, {"b": s - 1})
    with pytest.raises(DimError, match="b must be >= 1; -s never is"):
        dims.substitute(b, {"b": -s})


def test_evaluate() -> None:
    assert dims.evaluate(b * s + 1, {"b": 2, "s": 3}) == 7
    assert dims.evaluate(b, {"b": np.int64(3)}) == 3  # pyright: ignore[reportArgumentType]
    assert dims.evaluate(5, {}) == 5
    with pytest.raises(UnboundDimError, match="missing: a, s"):
        dims.evaluate(b * s // a, {"b": 1})
    with pytest.raises(
        DimError, match=r"the divisor b - s must not be 0; it is with a=1, b=2, s=2"
    ):
        dims.evaluate(a // (b - s), {"a": 1, "b": 2, "s": 2})
    with pytest.raises(DimError, match="symbol c must be >= 2 and <= 4; got 5"):
        dims.evaluate(dims.symbol("c", 2, 4), {"c": 5})


def test_growth_is_limited() -> None:
    with pytest.raises(DimError, match="degree"):
        (b**40) * (b**40)
    with pytest.raises(DimError, match="at most"):
        (2**200 * b) * (2**200 * b)
    expr: dims.Dim = b
    for _ in range(8):
        expr = s // (expr + 1)
    with pytest.raises(DimError, match="at most"):
        _nest(expr, 200)


def _nest(expr: dims.Dim, times: int) -> dims.Dim:
    for _ in range(times):
        expr = expr * (s // (expr + 1) + 2)
    return expr
