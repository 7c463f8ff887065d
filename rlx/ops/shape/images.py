"""Resizing of channels-first images and volumes to the nearest element."""

from __future__ import annotations

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most
from rlx.ops.shape.counters import DimValue, Iota
from rlx.ops.shape.layouts import BroadcastInDim, Reshape
from rlx.types import Dim, TensorType


@define_op("resize_nearest2x")
class ResizeNearest2x(Op):
    """Images of twice the height and width, each element repeated 2 × 2.

    y[n, c, i, j] = x[n, c, ⌊i/2⌋, ⌊j/2⌋]

    Inputs:
        x: T[N, C, H, W]

    Result:
        T[N, C, 2·H, 2·W]

    Constraints:
        C1: x has four axes.

    Source: RLX `Op::ResizeNearest2x`.
    """

    def infer(self, x: TensorType) -> TensorType:
        text = f"x is required to be [N, C, H, W]; got {x}. Reshape it."
        self.require("C1", x.rank == 4, text)
        return x.with_shape((*x.shape[:2], x.shape[2] * 2, x.shape[3] * 2))

    def evaluate(self, x: Array) -> Array:
        return x.repeat(2, axis=2).repeat(2, axis=3)

    def decompose(self, x: Value) -> Value:
        n, c, h, w = x.shape
        wide = BroadcastInDim(shape=(n, c, h, 2, w, 2), broadcast_dimensions=(0, 1, 2, 4))(x)
        return Reshape(shape=(n, c, h * 2, w * 2))(wide)


@define_op("interpolate3d")
class Interpolate3d(Op):
    """Volumes of another size, each element taken from its place in proportion.

    y[n, c, i, j, k] = x[n, c, ⌊i·D/size₀⌋, ⌊j·H/size₁⌋, ⌊k·W/size₂⌋]

    Inputs:
        x: T[N, C, D, H, W]

    Attributes:
        size: depth, height and width of the result.

    Result:
        T[N, C, *size]

    Constraints:
        C1: x has five axes, and size three entries ≥ 1.
        C2: D, H and W are ≥ 1.

    Numerics: places are computed in integers, so that no rounding moves one.
    Source: RLX `Op::Interpolate3d`; PyTorch `interpolate`, mode nearest.
    """

    size: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.require(
            "C1",
            x.rank == 5 and len(self.size) == 3 and min(self.size) >= 1,
            lambda: (
                f"x is required to be [N, C, D, H, W] and size three numbers ≥ 1; got {x} and "
                f"{self.size}. Reshape x or name three sizes."
            ),
        )
        for axis in (2, 3, 4):
            message = f"axis {axis} of x: {x} is required to have an element. Pad x first."
            require_at_most(self, "C2", 1, x.shape[axis], message)
        return x.with_shape((*x.shape[:2], *self.size))

    def evaluate(self, x: Array) -> Array:
        result = x
        for axis, size in enumerate(self.size, start=2):
            result = np.take(result, np.arange(size) * x.shape[axis] // size, axis=axis)
        return result

    def decompose(self, x: Value) -> Value:
        from rlx.ops.indexing import Gather

        result = x
        for axis, size in enumerate(self.size, start=2):
            current = x.shape[axis]
            if current == size:
                continue
            if isinstance(current, int) and size % current == 0:
                result = _repeat(result, axis, size // current)
            else:
                result = Gather(axis=axis)(result, _places(current, size))
        return result


def _places(current: Dim, size: int) -> Value:
    """⌊i · current / size⌋ for i < size, as i32[size]."""
    from rlx.ir.operators import broadcast_to, constant

    if isinstance(current, int):
        return constant((np.arange(size) * current // size).astype(np.int32))
    count: Value = Iota(dtype=DType.I64, shape=(size,))()
    total = broadcast_to(DimValue(dim=current, dtype=DType.I64)(), (size,))
    return (count * total / size).convert(DType.I32)


def _repeat(x: Value, axis: int, times: int) -> Value:
    """Each element of an axis so many times in a row."""
    shape = (*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
    axes = tuple(a if a <= axis else a + 1 for a in range(x.rank))
    wide = BroadcastInDim(shape=shape, broadcast_dimensions=axes)(x)
    merged = (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :])
    return Reshape(shape=merged)(wide)
