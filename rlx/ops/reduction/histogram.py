"""Counts of values by range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rlx import dims
from rlx.dtypes import DType, as_dtype
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import REAL, require_kind
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("histogram")
class Histogram(Op):
    """How many elements fall into each of equal ranges.

    y[i] = |{x : i ≤ (x − low) · bins / (high − low) < i + 1}|, the last range with its end

    Inputs:
        x: T[...]   real number.

    Attributes:
        bins: how many ranges.
        low: where the first begins.
        high: where the last ends.

    Result:
        f32[bins]; elements outside, and NaN, are not counted.

    Constraints:
        C1: x holds real numbers.
        C2: bins ≥ 1, low and high are finite, and low < high.

    Numerics: places are computed in f32, in f64 for f64 and for integers of 32 bits and more.
    Source: RLX `Op::Histogram`, PyTorch `histc`.

    Example:
        >>> Histogram(bins=2, low=0.0, high=2.0).evaluate(np.array([0, 1, 1, 2, 3], np.int8))
        array([1., 3.], dtype=float32)
    """

    bins: int
    low: float
    high: float

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, REAL)
        self.require(
            "C2",
            self.bins >= 1 and math.isfinite(self.high - self.low) and self.low < self.high,
            f"bins ≥ 1 and finite low < high are required; got {self.bins}, {self.low} and "
            f"{self.high}. Correct the range.",
        )
        return TensorType(DType.F32, (self.bins,))

    def evaluate(self, x: Array) -> Array:
        wide = _place_dtype(as_dtype(x.dtype)).numpy.type
        with np.errstate(all="ignore"):
            numbers = x.astype(wide).reshape(-1)
            place = np.floor((numbers - wide(self.low)) * wide(self._scale()))
        inside = (numbers >= wide(self.low)) & (numbers <= wide(self.high))
        index = np.minimum(place[inside], self.bins - 1).astype(np.int64)
        return np.bincount(index, minlength=self.bins).astype(np.float32)

    def decompose(self, x: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.arithmetic import Floor, Min
        from rlx.ops.compare import Select
        from rlx.ops.indexing import ScatterAdd

        count = dims.product(x.shape)
        numbers = x.convert(_place_dtype(x.dtype)).reshape(count)
        place = Floor()((numbers - self.low) * self._scale()).convert(DType.I32)
        inside = (numbers >= self.low) & (numbers <= self.high)
        index = Min()(place, broadcast_to(constant(self.bins - 1), (count,)))
        outside = broadcast_to(constant(self.bins), (count,))
        ones = broadcast_to(constant(1), (count,))
        counts: Value = ScatterAdd(size=self.bins)(ones, Select()(inside, index, outside))
        return counts.convert(DType.F32)

    def _scale(self) -> float:
        return self.bins / (self.high - self.low)


def _place_dtype(dtype: DType) -> DType:
    wide = dtype is DType.F64 or (dtype.is_integer and dtype.bits >= 32)
    return DType.F64 if wide else DType.F32
