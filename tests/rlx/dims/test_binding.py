"""Bindings, and inferring them from shapes and from flat lengths."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from rlx import dims
from rlx.dims import Dim, DimBinding
from rlx.errors import DimError, UnboundDimError

b, s = dims.symbol("b"), dims.symbol("s")

Inputs = Sequence[tuple[str, Sequence[Dim]]]


def test_binding_is_a_hashable_map() -> None:
    x = DimBinding.from_pairs([("seq", 16), ("batch", 2)])
    assert list(x) == ["batch", "seq"]
    assert len(x) == 2
    assert x.get("batch") == 2
    assert x.get("rows") is None
    assert str(x) == "batch=2, seq=16"
    assert x == DimBinding({"batch": np.int32(2), "seq": 16})  # pyright: ignore[reportArgumentType]
    assert hash(x) == hash(DimBinding({"seq": 16, "batch": 2}))
    assert dims.same_binding(x, pickle.loads(pickle.dumps(x)))
    assert not dims.same_binding(x, DimBinding.new())
    longer = x.set("rows", 32)
    assert longer["rows"] == 32
    assert "rows" not in x


def test_binding_of_batches() -> None:
    assert DimBinding.batch_seq(2, 8) == DimBinding({"batch": 2, "seq": 8, "rows": 16})
    assert DimBinding.batch_seq(1, 8) == DimBinding({"batch": 1, "seq": 8})
    assert DimBinding.batch_past_seq(2, 7) == DimBinding({"batch": 2, "past_seq": 7})


@pytest.mark.parametrize("size", [-1, 1.5, True, "2"])
def test_binding_refuses_what_is_no_size(size: object) -> None:
    with pytest.raises(DimError, match="the size of n must be an int >= 0"):
        DimBinding({"n": size})  # pyright: ignore[reportArgumentType]


def test_binding_refuses_two_sizes() -> None:
    with pytest.raises(DimError, match="symbol n must have one size; got 1 and 2"):
        DimBinding([("n", 1), ("n", 2)])


INPUTS: Inputs = [("y", (b * s, s)), ("x", (b, 2 * s + 1, 64))]


@pytest.mark.parametrize(
    "actual",
    [
        {"x": (3, 5, 64), "y": (6, 2)},
        {"x": (3, 5, 64)},
        {"y": (6, 2)},  # b*s = 6 is solved once s is known
    ],
)
def test_infer(actual: Mapping[str, Sequence[int]]) -> None:
    assert dims.infer_bindings(INPUTS, actual) == DimBinding({"b": 3, "s": 2})


@pytest.mark.parametrize(
    ("inputs", "actual", "message"),
    [
        (
            [("x", (b,)), ("y", (4, b))],
            {"x": (3,), "y": (4, 4)},
            "symbol b bound to 3 by 'x' axis 0 and 4 by 'y' axis 1",
        ),
        (INPUTS, {"x": (3, 5, 65)}, "input 'x' axis 2 must be 64; got 65"),
        (INPUTS, {"x": (3, 4, 64)}, r"'x' axis 1: 2\*s \+ 1 = 4 must have an integer solution"),
        (INPUTS, {"x": (3, 1, 64)}, "symbol s must be >= 1; got 0 by 'x' axis 1"),
        (INPUTS, {"x": (0, 5, 64)}, "symbol b must be >= 1; got 0 by 'x' axis 0"),
        (
            INPUTS,
            {"x": (3,)},
            r"input 'x' must have rank 3, shape \[b, 2\*s \+ 1, 64\]; got rank 1",
        ),
        (
            INPUTS,
            {"x": (4, 5, 64), "y": (6, 2)},
            r"'y' axis 0 must be b\*s = 8 \(b=4 by 'x' axis 0, s=2 by 'y' axis 1\); got 6",
        ),
        ([("x", (b % 4, b))], {"x": (2, 7)}, r"'x' axis 0 must be b%4 = 3 \(b=7 by 'x' axis 1\)"),
        (
            INPUTS,
            {"X": (1, 1, 64)},
            r"names of inputs are required: y, x; got X\. Did you mean 'x'",
        ),
    ],
)
def test_infer_refuses(inputs: Inputs, actual: Mapping[str, Sequence[int]], message: str) -> None:
    with pytest.raises(DimError, match=message):
        dims.infer_bindings(inputs, actual)


def test_infer_reports_every_fault() -> None:
    with pytest.raises(DimError, match="'x' axis 0 must be 2; got 3; input 'x' axis 1 must be 4"):
        dims.infer_bindings([("x", (2, 4))], {"x": (3, 5)})


def test_infer_needs_every_symbol() -> None:
    with pytest.raises(UnboundDimError, match=r"'y' axis 0: b\*s = 6 leaves b, s open"):
        dims.infer_bindings([("y", (b * s,))], {"y": (6,)})
    known = DimBinding({"s": 2})
    assert dims.infer_bindings([("y", (b * s,))], {"y": (6,)}, known) == known.set("b", 3)
    with pytest.raises(DimError, match="bound to 2 by the given binding and 3 by 'y' axis 0"):
        dims.infer_bindings([("y", (s,))], {"y": (3,)}, known)


def test_infer_from_lengths() -> None:
    inputs: Inputs = [("x", (b, 4)), ("y", (2, s, 3)), ("z", (5,))]
    found = dims.infer_bindings_from_lengths(inputs, {"x": 12, "y": 6})
    assert found == DimBinding({"b": 3, "s": 1})


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        (
            [("x", (b, b))],
            {"x": 4},
            "Input 'x' has multiple dynamic dims; pass an explicit DimBinding",
        ),
        ([("x", (b, 0))], {"x": 4}, "Input 'x': static dim product is zero"),
        ([("x", (b, 4))], {"x": 6}, "Input 'x': len 6 not divisible by static product 4"),
        (
            [("x", (b,)), ("y", (b, 2))],
            {"x": 3, "y": 8},
            "symbol b bound to 3 and 4 from different inputs",
        ),
    ],
)
def test_infer_from_lengths_has_exact_messages(
    inputs: Inputs, lengths: Mapping[str, int], message: str
) -> None:
    with pytest.raises(DimError) as caught:
        dims.infer_bindings_from_lengths(inputs, lengths)
    assert str(caught.value) == message


def test_infer_from_lengths_respects_bounds() -> None:
    with pytest.raises(DimError, match="symbol b must be >= 1; got 0"):
        dims.infer_bindings_from_lengths([("x", (b, 4))], {"x": 0})
