"""Softmax and its logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.ir.op import Op, define_op
from rlx.ops.normalization import moments
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("softmax")
class Softmax(Op):
    """Exponentials along an axis, divided by their sum.

    y = exp(x − max(x)) / sum(exp(x − max(x)))

    Inputs:
        x: float[...]

    Attributes:
        axis: the axis that sums to one; negative counts from the end.

    Result:
        Same type as x. A line that holds NaN or +Inf, or only −Inf, is NaN.

    Constraints:
        C1: axis is in range for x.
        C2: x is floating.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: `jax.nn.softmax`; RLX `Op::Softmax`.
    """

    axis: int = -1

    def infer(self, x: TensorType) -> TensorType:
        return moments.one_axis(self, self.axis, x)

    def decompose(self, x: Value) -> Value:
        wide = moments.wide(x)
        shifted = (wide - wide.max(self.axis, keepdims=True)).exp()
        return (shifted / shifted.sum(self.axis, keepdims=True)).convert(x.dtype)


@define_op("log_softmax")
class LogSoftmax(Op):
    """Logarithm of the softmax, without taking the logarithm of a small number.

    y = x − max(x) − log(sum(exp(x − max(x))))

    Inputs:
        x: float[...]

    Attributes:
        axis: the axis whose exponentials sum to one; negative counts from the end.

    Result:
        Same type as x. A line that holds NaN or +Inf, or only −Inf, is NaN.

    Constraints:
        C1: axis is in range for x.
        C2: x is floating.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: `jax.nn.log_softmax`.
    """

    axis: int = -1

    def infer(self, x: TensorType) -> TensorType:
        return moments.one_axis(self, self.axis, x)

    def decompose(self, x: Value) -> Value:
        wide = moments.wide(x)
        shifted = wide - wide.max(self.axis, keepdims=True)
        total = shifted.exp().sum(self.axis, keepdims=True)
        return (shifted - total.log()).convert(x.dtype)
