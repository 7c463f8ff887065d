"""Parts and surroundings of a tensor by RLX's names: stepped slices, triangles, edge padding."""

from __future__ import annotations

import enum
from typing import Any, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most, require_axis
from rlx.ops.shape.counters import Iota
from rlx.ops.shape.joins import Concatenate
from rlx.ops.shape.layouts import Reverse
from rlx.ops.shape.slices import Slice
from rlx.types import Dim, TensorType

_FAR = 2**30
"""Further than any diagonal of a matrix that fits in memory."""


@define_op("strided_slice")
class StridedSlice(Op):
    """Every step-th element of one axis, forwards or backwards.

    y[…, j, …] = x[…, start + j·step, …] for j < length

    Inputs:
        x: T[...]

    Attributes:
        axis: which axis.
        start: the first element taken.
        length: how many are taken.
        step: distance between neighbours; a negative one goes backwards.

    Result:
        T[...] with `length` in place of the axis's dim.

    Constraints:
        C1: axis is in range for x.
        C2: step is not 0, and length ≥ 0.
        C3: the first and the last element taken are inside the axis.

    Source: RLX `Op::Slice`.

    Example:
        >>> import numpy as np
        >>> StridedSlice(axis=0, start=4, length=3, step=-2).evaluate(np.arange(5))
        array([4, 2, 0])
    """

    axis: int
    start: Dim
    length: Dim
    step: int = 1

    def infer(self, x: TensorType) -> TensorType:
        require_axis(self, "C1", self.axis, x)
        text = f"step ≠ 0 and length ≥ 0 are required; got {self.step} and {self.length}."
        self.require("C2", self.step != 0, text)
        require_at_most(self, "C2", 0, self.length, text)
        low, high = self._ends()
        size = x.shape[self.axis]
        if self.length != 0:
            message = (
                f"elements from {low} to {high} are required to be inside axis {self.axis} of x: "
                f"{x}. Choose another start, length or step."
            )
            require_at_most(self, "C3", 0, low, message)
            require_at_most(self, "C3", high + 1, size, message)
        return x.with_shape((*x.shape[: self.axis], self.length, *x.shape[self.axis + 1 :]))

    def evaluate(self, x: Array) -> Array:
        start, length = (dims.evaluate(d, {}) for d in (self.start, self.length))
        return np.take(x, start + np.arange(length) * self.step, axis=self.axis)

    def decompose(self, x: Value) -> Value:
        starts: list[Dim] = [0] * x.rank
        limits, strides = list(x.shape), [1] * x.rank
        low, high = self._ends()
        empty = self.length == 0
        starts[self.axis], limits[self.axis] = (0, 0) if empty else (low, high + 1)
        strides[self.axis] = abs(self.step)
        taken: Value = Slice(
            start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides)
        )(x)
        return taken if self.step > 0 else Reverse(axes=(self.axis,))(taken)

    def _ends(self) -> tuple[Dim, Dim]:
        """The lowest and the highest element taken."""
        last = self.start + (self.length - 1) * self.step
        return (self.start, last) if self.step > 0 else (last, self.start)


@define_op("trilu")
class Trilu(Op):
    """One triangle of matrices, with zeros in the other.

    y[…, i, j] = x[…, i, j] where j ≥ i + diagonal (upper) or j ≤ i + diagonal (lower), else 0

    Inputs:
        x: T[..., m, n]

    Attributes:
        upper: keep what is on and above the diagonal; otherwise what is on and below it.
        diagonal: which diagonal: 0 is the main one, positive ones lie above it.

    Result:
        Same type as x.

    Constraints:
        C1: x is [..., m, n].

    Source: RLX `Op::Trilu`, ONNX `Trilu`, `numpy.triu` and `numpy.tril`.
    """

    upper: bool = True
    diagonal: int = 0

    def infer(self, x: TensorType) -> TensorType:
        self.require(
            "C1", x.rank >= 2, lambda: f"x is required to be [..., m, n]; got {x}. Reshape it."
        )
        return x

    def evaluate(self, x: Array) -> Array:
        return (np.triu if self.upper else np.tril)(x, self.diagonal)

    def decompose(self, x: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.compare import Select

        rows: Value = Iota(dtype=DType.I32, shape=x.shape, axis=x.rank - 2)()
        columns: Value = Iota(dtype=DType.I32, shape=x.shape, axis=x.rank - 1)()
        edge = rows + max(-_FAR, min(self.diagonal, _FAR))
        kept = columns >= edge if self.upper else columns <= edge
        zeros = broadcast_to(constant(np.zeros((), x.dtype.numpy)), x.shape)
        return Select()(kept, x, zeros)


@final
class EdgeMode(enum.Enum):
    """What stands around a tensor: its mirror image, its outermost elements, or its other end."""

    REFLECT = "reflect"
    REPLICATE = "replicate"
    CIRCULAR = "circular"


_NUMPY_MODES: dict[EdgeMode, Any] = {
    EdgeMode.REFLECT: "reflect",
    EdgeMode.REPLICATE: "edge",
    EdgeMode.CIRCULAR: "wrap",
}


@define_op("pad_edges")
class PadEdges(Op):
    """Puts elements of x itself around it.

    on each axis: [mirror | x | mirror], [first … | x | … last] or [end | x | beginning]

    Inputs:
        x: T[...]

    Attributes:
        low: elements before the first, on each axis.
        high: elements after the last, on each axis.
        mode: reflect mirrors at the outermost element without repeating it; replicate repeats
            it; circular continues at the other end.

    Result:
        T[...] with dims low + size + high.

    Constraints:
        C1: there is one low and one high amount ≥ 0 for each axis of x.
        C2: amounts are < size for reflect and ≤ size for circular; replicate needs an element.

    Source: RLX `Op::Pad` in its modes Reflect, Replicate and Circular; `numpy.pad`.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    mode: EdgeMode = EdgeMode.REFLECT

    def infer(self, x: TensorType) -> TensorType:
        good = len(self.low) == len(self.high) == x.rank
        self.require(
            "C1",
            good and min((*self.low, *self.high), default=0) >= 0,
            lambda: (
                f"one low and one high amount ≥ 0 is required for each axis of x: {x}; got "
                f"{self.low} and {self.high}."
            ),
        )
        shape: list[Dim] = []
        for axis, size in enumerate(x.shape):
            pair = self.low[axis], self.high[axis]
            amount = max(pair)
            message = (
                f"{self.mode.value} is required to find its elements on axis {axis} of x: {x}; "
                f"got amounts {pair}. Pad less."
            )
            if amount:
                least = amount + 1 if self.mode is EdgeMode.REFLECT else amount
                least = 1 if self.mode is EdgeMode.REPLICATE else least
                require_at_most(self, "C2", least, size, message)
            shape.append(pair[0] + size + pair[1])
        return x.with_shape(shape)

    def evaluate(self, x: Array) -> Array:
        widths = list(zip(self.low, self.high, strict=True))
        return np.pad(x, widths, mode=_NUMPY_MODES[self.mode]) if widths else x.copy()

    def decompose(self, x: Value) -> Value:
        result = x
        for axis, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            size = x.shape[axis]
            parts = [self._before(result, axis, low, size)] if low else []
            parts.append(result)
            parts += [self._after(result, axis, high, size)] if high else []
            result = Concatenate(axis=axis)(*parts) if len(parts) > 1 else result
        return result

    def _before(self, x: Value, axis: int, amount: int, size: Dim) -> Value:
        if self.mode is EdgeMode.REFLECT:
            return Reverse(axes=(axis,))(x.narrow(axis, 1, amount))
        if self.mode is EdgeMode.CIRCULAR:
            return _narrow(x, axis, size - amount, amount)
        return _repeated(x.narrow(axis, 0, 1), axis, amount)

    def _after(self, x: Value, axis: int, amount: int, size: Dim) -> Value:
        if self.mode is EdgeMode.REFLECT:
            return Reverse(axes=(axis,))(_narrow(x, axis, size - 1 - amount, amount))
        if self.mode is EdgeMode.CIRCULAR:
            return x.narrow(axis, 0, amount)
        return _repeated(_narrow(x, axis, size - 1, 1), axis, amount)


def _narrow(x: Value, axis: int, start: Dim, length: int) -> Value:
    from rlx.ops.shape.slices import Narrow

    return Narrow(axis=axis, start=start, length=length)(x)


def _repeated(x: Value, axis: int, times: int) -> Value:
    from rlx.ir.operators import broadcast_to

    return broadcast_to(x, (*x.shape[:axis], times, *x.shape[axis + 1 :]))
