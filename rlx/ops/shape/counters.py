"""Values that come from shapes alone."""

from __future__ import annotations

import numpy as np

from rlx import dims
from rlx.dtypes import DType, Kind
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_axis
from rlx.ops.elementwise import round_to
from rlx.types import Dim, Shape, TensorType


@define_op("iota")
class Iota(Op):
    """Counts 0, 1, 2 … along one axis.

    y[i0, …] = i_axis

    Attributes:
        dtype: element type; any number.
        shape: dims of the result.
        axis: the axis that counts.

    Result:
        dtype[shape]; integers too narrow for the count wrap around, floats round.

    Constraints:
        C1: axis is in range for shape.
        C2: dtype is a number.

    Source: StableHLO `iota`, `jax.lax.broadcasted_iota`.
    """

    dtype: DType
    shape: Shape
    axis: int = 0

    def infer(self) -> TensorType:
        require_axis(self, "C1", self.axis, self.shape, "shape")
        self.require(
            "C2",
            self.dtype.kind not in (Kind.BOOL, Kind.TOKEN),
            f"dtype is required to be a number; got {self.dtype}. Convert a count instead.",
            DTypeError,
        )
        return TensorType(self.dtype, self.shape)

    def evaluate(self) -> Array:
        sizes = tuple(dims.evaluate(d, {}) for d in self.shape)
        count = np.arange(sizes[self.axis])
        if not self.dtype.is_integer:
            count = count.astype(self.dtype.compute.numpy)
        column = [1] * len(sizes)
        column[self.axis] = -1
        return np.broadcast_to(round_to(count, self.dtype).reshape(column), sizes).copy()


@define_op("dim_value")
class DimValue(Op):
    """A dim as a number in the graph.

    y = dim

    Attributes:
        dim: a size, maybe symbolic; it is a number once its symbols are bound.
        dtype: i32 or i64.

    Result:
        A scalar of dtype.

    Constraints:
        C1: dtype is i32 or i64.

    Source: JAX's primitive `dim_as_value`.
    """

    dim: Dim
    dtype: DType = DType.I32

    def infer(self) -> TensorType:
        self.require(
            "C1",
            self.dtype in (DType.I32, DType.I64),
            f"dtype is required to be i32 or i64; got {self.dtype}. Convert the result.",
            DTypeError,
        )
        return TensorType(self.dtype)

    def evaluate(self) -> Array:
        return np.asarray(dims.evaluate(self.dim, {}), self.dtype.numpy)
