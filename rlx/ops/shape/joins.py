"""Larger tensors from smaller ones."""

from __future__ import annotations

import numpy as np

from rlx import dims
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most, require_axis
from rlx.ops.shape.layouts import BroadcastInDim, Reshape
from rlx.types import Dim, TensorType


@define_op("concatenate")
class Concatenate(Op):
    """Joins tensors along one axis.

    y = [x0 | x1 | …]

    Inputs:
        xs: T[..., D_k, ...]   one or more.

    Attributes:
        axis: which axis.

    Result:
        T[..., Σ D_k, ...]

    Constraints:
        C1: there is at least one input.
        C2: xs have one dtype.
        C3: axis is in range.
        C4: xs agree in rank and in all other dims.

    Source: StableHLO `concatenate`; RLX `Op::Concat`.
    """

    axis: int

    def infer(self, *xs: TensorType) -> TensorType:
        self.require("C1", bool(xs), "at least one input is required; got none. Pass values.")
        first, axis = xs[0], self.axis
        require_axis(self, "C3", axis, first, "xs[0]")
        total: Dim = 0
        for position, x in enumerate(xs):
            self.require(
                "C2",
                x.dtype is first.dtype,
                lambda x=x, position=position: (
                    f"one dtype is required, that of xs[0]: {first}; "
                    f"got xs[{position}]: {x}. Convert it."
                ),
                DTypeError,
            )
            message = (
                f"xs[{position}] is required to agree with xs[0]: {first} in every axis but "
                f"{axis}; got {x}. Reshape, slice or pad one of them."
            )
            self.require("C4", x.rank == first.rank, message)
            others = (*x.shape[:axis], *x.shape[axis + 1 :])
            wanted = (*first.shape[:axis], *first.shape[axis + 1 :])
            self.require_same_dims("C4", others, wanted, message)
            total = total + x.shape[axis]
        return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))

    def evaluate(self, *xs: Array) -> Array:
        return np.concatenate(xs, axis=self.axis)


@define_op("pad")
class Pad(Op):
    """Puts a value around and between the elements of x; negative amounts cut instead.

    y[low + i·(interior + 1)] = x[i] on each axis, padding_value elsewhere

    Inputs:
        x: T[...]
        padding_value: T[]   a scalar.

    Attributes:
        low: elements before the first, on each axis; maybe negative.
        high: elements after the last, on each axis; maybe negative.
        interior: elements between neighbours, on each axis; ≥ 0.

    Result:
        T[...] with dims low + high + size + max(size − 1, 0)·interior.

    Constraints:
        C1: there is one low, high and interior amount for each axis of x.
        C2: interior amounts are ≥ 0.
        C3: padding_value is a scalar.
        C4: x and padding_value have one dtype.
        C5: the result's dims are ≥ 0.

    Source: StableHLO `pad`, `jax.lax.pad`.
    """

    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    interior: tuple[int, ...]

    def infer(self, x: TensorType, padding_value: TensorType) -> TensorType:
        counts = (len(self.low), len(self.high), len(self.interior))
        self.require(
            "C1",
            counts == (x.rank,) * 3,
            lambda: (
                f"one low, high and interior amount is required for each axis of x: {x}; got "
                f"{counts[0]}, {counts[1]} and {counts[2]}."
            ),
        )
        self.require(
            "C2",
            all(amount >= 0 for amount in self.interior),
            f"interior amounts are required to be ≥ 0; got {self.interior}.",
        )
        self.require(
            "C3",
            padding_value.rank == 0,
            lambda: f"padding_value is required to be a scalar; got {padding_value}.",
        )
        self.require(
            "C4",
            padding_value.dtype is x.dtype,
            lambda: (
                f"one dtype is required, that of x: {x}; "
                f"got padding_value: {padding_value}. Convert it."
            ),
            DTypeError,
        )
        shape: list[Dim] = []
        for axis, size in enumerate(x.shape):
            inner = self.interior[axis]
            spread = size + dims.max_(size - 1, 0) * inner if inner else size
            total = self.low[axis] + self.high[axis] + spread
            message = (
                f"the result's dims are required to be ≥ 0; got {total} on axis {axis} of x: {x}. "
                "Cut less."
            )
            require_at_most(self, "C5", 0, total, message)
            shape.append(total)
        return x.with_shape(shape)

    def evaluate(self, x: Array, padding_value: Array) -> Array:
        target: list[slice] = []
        source: list[slice] = []
        shape: list[int] = []
        for axis, size in enumerate(x.shape):
            low, high = (dims.evaluate(d[axis], {}) for d in (self.low, self.high))
            step = self.interior[axis] + 1
            spread = size + max(size - 1, 0) * (step - 1)
            shape.append(low + high + spread)
            # Element i lands at low + i·step; keep those that land inside the result.
            first = max(0, -(low // step)) if low < 0 else 0
            last = min(size, (shape[axis] - low + step - 1) // step)
            last = max(first, last)
            source.append(slice(first, last))
            begin = low + first * step
            target.append(slice(begin, begin + (last - first) * step, step))
        result = np.full(shape, padding_value, x.dtype)
        if all(part.stop > part.start for part in source):
            result[tuple(target)] = x[tuple(source)]
        return result


@define_op("tile")
class Tile(Op):
    """Repeats the whole of x along each axis.

    y[i0, …] = x[i0 mod n0, …]

    Inputs:
        x: T[...]

    Attributes:
        reps: how often, on each axis.

    Result:
        T[...] with dims size·rep.

    Constraints:
        C1: there is one rep for each axis of x.
        C2: reps are ≥ 0.

    Source: `jax.lax.tile`; RLX `Op::Tile`.
    """

    reps: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.require(
            "C1",
            len(self.reps) == x.rank,
            lambda: (
                f"one rep is required for each axis of x: {x}; got {list(self.reps)}. "
                "Reshape x to more axes first."
            ),
        )
        message = f"reps are required to be ≥ 0; got {list(self.reps)}."
        for rep in self.reps:
            require_at_most(self, "C2", 0, rep, message)
        return x.with_shape(size * rep for size, rep in zip(x.shape, self.reps, strict=True))

    def decompose(self, x: Value) -> Value:
        pairs: list[Dim] = []
        for size, rep in zip(x.shape, self.reps, strict=True):
            pairs += [rep, size]
        odd = tuple(range(1, 2 * x.rank, 2))
        wide = BroadcastInDim(shape=tuple(pairs), broadcast_dimensions=odd)(x)
        merged = tuple(size * rep for size, rep in zip(x.shape, self.reps, strict=True))
        return Reshape(shape=merged)(wide)
