"""Axes out of range: every op and every short name says which, of what, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import RlxError, ShapeError
from rlx.ir.attributes import Literal
from rlx.ir.op import Op
from tests.conformance.runner import all_samples


def _axes() -> dict[str, tuple[Op, str, Any, tuple[Any, ...]]]:
    """One sample for each attribute that holds axes: op, attribute, a wrong value, arrays."""
    found: dict[str, tuple[Op, str, Any, tuple[Any, ...]]] = {}
    for samples in all_samples(np.random.default_rng()).values():
        for sample in samples:
            for name, value in sample.op.attributes().items():
                if "axis" not in name and name not in ("axes", "permutation"):
                    continue
                if type(value) is int:
                    wrong: Any = 99
                elif isinstance(value, tuple) and value and all(type(v) is int for v in value):
                    wrong = (*value[:-1], 99)
                else:
                    continue
                found[f"{sample.op.op_name}.{name}"] = sample.op, name, wrong, sample.inputs
    return found


AXES = _axes()


@pytest.mark.parametrize("case", AXES)
def test_ops_name_themselves_their_label_and_the_operand(case: str) -> None:
    op, name, wrong, arrays = AXES[case]
    types = [Literal(array).type for array in arrays]
    with pytest.raises(ShapeError, match=rf"^{op.op_name} \[C\d\]: ") as caught:
        op.replace(**{name: wrong}).infer_types(types)
    assert caught.value.label is not None
    text = str(caught.value)
    assert "99" in text
    if name != "permutation":
        assert "in range for " in text
        assert " axis < " in text


def leaf() -> tuple[rlx.GraphBuilder, rlx.Value]:
    b = rlx.GraphBuilder("g")
    return b, b.input("x", "f32[3, 4]")


ONE = "is required to be in range for x: f32[3, 4], 0 ≤ axis < 2; got 9. Choose another axis."
BOTH = "is required to be in range for x: f32[3, 4], −2 ≤ axis < 2; got 9. Choose another axis."
ALL = (
    "axes are required to be distinct, increasing and in range for x: f32[3, 4], 0 ≤ axis < 2; "
    "got {}. Choose other axes."
)
SHORT: dict[str, tuple[Callable[[rlx.GraphBuilder, rlx.Value], Any], str]] = {
    "softmax": (lambda b, x: x.softmax(9), f"softmax [C1]: axis {BOTH}"),
    "softmax before": (
        lambda b, x: b.sm(x, -3),
        f"softmax [C1]: axis {BOTH.replace('got 9', 'got -3')}",
    ),
    "sum": (lambda b, x: x.sum(9), f"reduce_sum [C1]: {ALL.format('(9,)')}"),
    "sum twice": (lambda b, x: x.sum((0, -2)), f"reduce_sum [C1]: {ALL.format('(0, 0)')}"),
    "mean": (lambda b, x: b.mean(x, [1, 9]), f"mean [C1]: {ALL.format('(1, 9)')}"),
    "narrow": (lambda b, x: x.narrow(9, 0, 1), f"narrow [C1]: axis {ONE}"),
    "transpose": (
        lambda b, x: x.transpose(0, 9),
        "transpose [C1]: permutation is required to name every axis of x: f32[3, 4] once; got "
        "(0, 9). Name each from 0 to 1.",
    ),
    "concat": (
        lambda b, x: b.concat([x, x], 9),
        f"concatenate [C3]: axis {ONE.replace('x:', 'xs[0]:')}",
    ),
    "cumsum": (lambda b, x: b.cumsum(x, 9), f"cumsum [C1]: axis {ONE}"),
    "gather": (
        lambda b, x: b.gather(x, b.input("i", "i32[2]"), 9),
        f"gather [C2]: axis {ONE.replace('x:', 'table:')}",
    ),
    "roll": (lambda b, x: b.roll(x, 1, 9), f"roll [C2]: each of axes {ONE}"),
    "layer_norm": (lambda b, x: b.layer_norm(x, x, x, axis=9), f"layer_norm [C1]: axis {BOTH}"),
    "fft_axis": (lambda b, x: b.fft_axis(x, 9), f"fft_axis: axis {BOTH}"),
    "a fraction": (
        lambda b, x: x.sum(float("0.5")),  # pyright: ignore[reportArgumentType]
        "reduce_sum: an axis is required to be an integer; got 0.5. Pass a whole number.",
    ),
    "a truth value": (
        lambda b, x: x.softmax(True),
        "softmax: an axis is required to be an integer; got True. Pass a whole number.",
    ),
    "broadcast_to": (
        lambda b, x: x.broadcast_to((4,)),
        "broadcast: at least 2 axes are required for x: f32[3, 4]; got the shape [4]. Reshape x, "
        "or name more axes.",
    ),
    "reshape": (
        lambda b, x: x.reshape(-1, -1),
        "reshape: at most one dim may be −1; got (-1, -1).",
    ),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_names_say_the_same_and_where(name: str) -> None:
    call, wanted = SHORT[name]
    with pytest.raises(ShapeError) as caught:
        call(*leaf())
    assert str(caught.value) == wanted
    (note,) = caught.value.__notes__
    assert f"at {__name__.rpartition('.')[2]}.py:" in note


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (lambda b, x: x + b.input("y", "f32[5]"), "  add of f32[3, 4] and f32[5] at "),
        (lambda b, x: x < b.input("y", "i32[4]"), "  compare lt of f32[3, 4] and i32[4] at "),
        (lambda b, x: "a" * x, "  mul of 'a' and f32[3, 4] at "),
        (lambda b, x: x.reshape(5, -1), "  reshape of f32[3, 4] and (5, -1) at "),
    ],
)
def test_operators_say_what_met_where(call: Any, note: str) -> None:
    with pytest.raises(RlxError) as caught:
        call(*leaf())
    (found,) = caught.value.__notes__
    assert found.startswith(note)
