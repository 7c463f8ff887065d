"""One step of the Haar transform as an op, with a gradient that keeps to ops as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.derivatives import vjp_rule
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.types import TensorType

Array = np.ndarray[Any, Any]


@define_op("wavelets_haar")
class WaveletsHaar(Op):
    """Means and differences of neighbours.

    y = (x_even + x_odd, x_even − x_odd) · gain

    Inputs:
        x: f32[..., 2·n]

    Attributes:
        gain: factor of both.

    Result:
        Two arrays f32[..., n].

    Constraints:
        C1: x is f32 and its last axis is even.

    Source: Haar 1910.
    """

    gain: float = 0.5

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        size = x.shape[-1] if x.rank else 1
        text = f"x is required to be f32[..., 2·n]; got {x}. Convert or pad it."
        self.require("C1", x.dtype is DType.F32, text, DTypeError)
        self.require("C1", isinstance(size, int) and size % 2 == 0, text)
        half = x.with_shape((*x.shape[:-1], int(size) // 2))
        return half, half

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        gain = np.float32(self.gain)
        return (x[..., ::2] + x[..., 1::2]) * gain, (x[..., ::2] - x[..., 1::2]) * gain

    def decompose(self, x: Value) -> tuple[Value, Value]:
        pairs = x.reshape(*x.shape[:-1], int(x.shape[-1]) // 2, 2)
        even, odd = (pairs.narrow(-1, i, 1).reshape(*pairs.shape[:-1]) for i in range(2))
        return (even + odd) * self.gain, (even - odd) * self.gain


@vjp_rule(WaveletsHaar)
def haar_gradient(
    op: Op, inputs: Sequence[Value], results: Sequence[Value], upstream: Sequence[Value]
) -> Sequence[Value]:
    """The inverse step: twice the gain is its own."""
    from rlx.ops.shape import Concatenate

    assert isinstance(op, WaveletsHaar)
    low, high = (d * op.gain for d in upstream)
    columns = [v.reshape(*v.shape, 1) for v in (low + high, low - high)]
    return [Concatenate(axis=low.rank)(*columns).reshape(*inputs[0].shape)]


@define_op("wavelets_ranks")
class WaveletsRanks(Op):
    """Average ranks of a vector's elements: known to NumPy alone.

    y_i = the position of x_i in sorted order

    Inputs:
        x: T[n]

    Result:
        i32[n]

    Source: Wilcoxon 1945.
    """

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(DType.I32, x.shape)

    def evaluate(self, x: Array) -> Array:
        return np.argsort(np.argsort(x, kind="stable"), kind="stable").astype(np.int32)
