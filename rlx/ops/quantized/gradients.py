"""How gradients pass ops that round, whose own derivative is zero nearly everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rlx.ir.derivatives import vjp_rule
from rlx.ops.quantized.fake import (
    FakeQuantize,
    FakeQuantizeBackward,
    FakeQuantizeLsq,
    FakeQuantizeLsqBackwardScale,
    FakeQuantizeLsqBackwardX,
    ScaleMode,
)

if TYPE_CHECKING:
    from rlx.ir.derivatives import Values
    from rlx.ir.graph import Value
    from rlx.ir.op import Op


@vjp_rule(FakeQuantize)
def fake_quantize(op: Op, inputs: Values, results: Values, grads: Values) -> Sequence[Value | None]:
    """The estimator that ``ste`` names, with the scale that was used; none for the state."""
    made = cast("FakeQuantize", op)
    backward = FakeQuantizeBackward(bits=made.bits, axis=made.axis, ste=made.ste)
    x, *state = inputs
    # The average that came out is the scale that was used.
    scale = results[1:] if made.scale_mode is ScaleMode.EMA else tuple(state)
    dx: Value = backward(x, grads[0], *scale)
    return (dx, *(None for _ in state))


@vjp_rule(FakeQuantizeLsq)
def fake_quantize_lsq(
    op: Op, inputs: Values, results: Values, grads: Values
) -> Sequence[Value | None]:
    """The two LSQ backwards."""
    del results
    made = cast("FakeQuantizeLsq", op)
    x, scale = inputs
    dx: Value = FakeQuantizeLsqBackwardX(bits=made.bits, axis=made.axis)(x, scale, grads[0])
    backward = FakeQuantizeLsqBackwardScale(bits=made.bits, axis=made.axis)
    return (dx, cast("Value", backward(x, scale, grads[0])))
