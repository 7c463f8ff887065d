"""Parts of a tensor at places that are known when the graph is built."""

from __future__ import annotations

from collections.abc import Sequence

from rlx import dims
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most, require_axis
from rlx.ops.shape.joins import Concatenate
from rlx.types import Dim, TensorType


@define_op("slice")
class Slice(Op):
    """A strided box of x.

    y[i0, …] = x[start0 + i0·stride0, …],  start + i·stride < limit

    Inputs:
        x: T[...]

    Attributes:
        start_indices: first element along each axis.
        limit_indices: end (excluded) along each axis.
        strides: step along each axis.

    Result:
        T[...] with dims ⌈(limit − start) / stride⌉.

    Constraints:
        C1: there is one start, limit and stride for each axis of x.
        C2: strides are ≥ 1.
        C3: 0 ≤ start ≤ limit ≤ size on each axis.

    Source: StableHLO `slice`, `jax.lax.slice`.
    """

    start_indices: tuple[Dim, ...]
    limit_indices: tuple[Dim, ...]
    strides: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        counts = (len(self.start_indices), len(self.limit_indices), len(self.strides))
        self.require(
            "C1",
            counts == (x.rank,) * 3,
            lambda: (
                f"one start, limit and stride is required for each axis of x: {x}; got "
                f"{counts[0]}, {counts[1]} and {counts[2]}."
            ),
        )
        self.require(
            "C2",
            all(stride >= 1 for stride in self.strides),
            f"strides are required to be ≥ 1; got {self.strides}. Reverse the axis first.",
        )
        shape: list[Dim] = []
        for axis, stride in enumerate(self.strides):
            start, limit = self.start_indices[axis], self.limit_indices[axis]
            _require_range(self, "C3", x, axis, start, limit)
            shape.append(
                limit - start if stride == 1 else dims.floordiv_(limit - start + stride - 1, stride)
            )
        return x.with_shape(shape)

    def evaluate(self, x: Array) -> Array:
        boxes = zip(self.start_indices, self.limit_indices, self.strides, strict=True)
        box = tuple(slice(_number(a), _number(b), step) for a, b, step in boxes)
        return x[box].copy()


@define_op("narrow")
class Narrow(Op):
    """``length`` elements of one axis.

    y = x[…, start : start + length, …]

    Inputs:
        x: T[...]

    Attributes:
        axis: which axis.
        start: first element.
        length: how many.

    Result:
        T[...] with `length` in place of the axis's dim.

    Constraints:
        C1: axis is in range for x.
        C2: 0 ≤ start, 0 ≤ length and start + length ≤ size of the axis.

    Source: RLX `Op::Narrow`.
    """

    axis: int
    start: Dim
    length: Dim

    def infer(self, x: TensorType) -> TensorType:
        require_axis(self, "C1", self.axis, x)
        _require_range(self, "C2", x, self.axis, self.start, self.start + self.length)
        return x.with_shape((*x.shape[: self.axis], self.length, *x.shape[self.axis + 1 :]))

    def decompose(self, x: Value) -> Value:
        return _narrow(x, self.axis, self.start, self.start + self.length)


@define_op("split")
class Split(Op):
    """Cuts one axis into consecutive parts.

    y_k = x[…, Σ sizes[:k] : Σ sizes[:k + 1], …]

    Inputs:
        x: T[...]

    Attributes:
        axis: which axis.
        sizes: dims of the parts along the axis, in order.

    Result:
        One T[...] for each size.

    Constraints:
        C1: axis is in range for x.
        C2: sizes are ≥ 0 and there is at least one.
        C3: sizes sum up to the axis's dim.

    Source: `jax.lax.split`.
    """

    axis: int
    sizes: tuple[Dim, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        require_axis(self, "C1", self.axis, x)
        message = f"sizes are required to be ≥ 0, at least one of them; got {list(self.sizes)}."
        self.require("C2", bool(self.sizes), message)
        for size in self.sizes:
            require_at_most(self, "C2", 0, size, message)
        self.require_same_dims(
            "C3",
            (_total(self.sizes),),
            (x.shape[self.axis],),
            lambda: (
                f"sizes are required to sum up to {x.shape[self.axis]}, the dim of axis "
                f"{self.axis} of x: {x}; got {list(self.sizes)}."
            ),
        )
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        return tuple(x.with_shape((*before, size, *after)) for size in self.sizes)

    def decompose(self, x: Value) -> tuple[Value, ...]:
        ends = [_total(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(
            _narrow(x, self.axis, end - size, end)
            for end, size in zip(ends, self.sizes, strict=True)
        )


@define_op("roll")
class Roll(Op):
    """Shifts elements along axes, those that fall off coming in at the other end.

    y[…, i, …] = x[…, (i − shift) mod n, …], for each pair of shift and axis in order

    Inputs:
        x: T[...]

    Attributes:
        shifts: how far, towards higher positions; maybe negative.
        axes: which axis each shift is along; an axis may come twice.

    Result:
        Same type as x.

    Constraints:
        C1: there is one axis for each shift.
        C2: axes are in range for x.

    Source: RLX `Op::Roll`, `numpy.roll`.
    """

    shifts: tuple[int, ...]
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.require(
            "C1",
            len(self.shifts) == len(self.axes),
            lambda: (
                f"one axis is required for each shift; got shifts {self.shifts} and axes "
                f"{self.axes}."
            ),
        )
        for axis in self.axes:
            require_axis(self, "C2", axis, x, what="each of axes")
        return x

    def decompose(self, x: Value) -> Value:
        result = x
        for shift, axis in zip(self.shifts, self.axes, strict=True):
            size = x.shape[axis]
            if shift == 0 or (type(size) is int and (size == 0 or shift % size == 0)):
                continue
            cut = dims.min_(dims.mod_(-shift, size), size)  # min lets symbols be decided
            tail = _narrow(result, axis, cut, size)
            result = Concatenate(axis=axis)(tail, _narrow(result, axis, 0, cut))
        return result


def _narrow(x: Value, axis: int, start: Dim, limit: Dim) -> Value:
    starts: list[Dim] = [0] * x.rank
    limits = list(x.shape)
    starts[axis], limits[axis] = start, limit
    return Slice(start_indices=tuple(starts), limit_indices=tuple(limits), strides=(1,) * x.rank)(x)


def _require_range(op: Op, label: str, x: TensorType, axis: int, start: Dim, limit: Dim) -> None:
    size = x.shape[axis]
    message = (
        f"0 ≤ start ≤ end ≤ {size} is required on axis {axis} of x: {x}; "
        f"got start {start} and end {limit}. Choose a range inside the axis."
    )
    for low, high in ((0, start), (start, limit), (limit, size)):
        require_at_most(op, label, low, high, message)


def _total(sizes: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for size in sizes:
        total = total + size
    return total


def _number(dim: Dim) -> int:
    return dims.evaluate(dim, {})
