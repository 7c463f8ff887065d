"""The same elements under another shape or order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx import dims
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_axes
from rlx.types import Dim, Shape, TensorType


@define_op("broadcast_in_dim")
class BroadcastInDim(Op):
    """Repeats x along new axes and along its axes of size 1.

    y[i0, …] = x[j0, …],  j_a = i_{broadcast_dimensions[a]}, or 0 where axis a of x has size 1

    Inputs:
        x: T[...]

    Attributes:
        shape: dims of the result.
        broadcast_dimensions: for each axis of x, its axis in the result.

    Result:
        T[shape]

    Constraints:
        C1: broadcast_dimensions has one entry for each axis of x.
        C2: broadcast_dimensions are distinct axes of shape.
        C3: each axis of x has size 1 or that of its axis in shape.

    Source: StableHLO `broadcast_in_dim`, `jax.lax.broadcast_in_dim`.
    """

    shape: Shape
    broadcast_dimensions: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        axes = self.broadcast_dimensions
        if len(axes) != x.rank:
            self.require(
                "C1",
                False,
                f"broadcast_dimensions is required to have one entry for each axis of x: {x}; "
                f"got {axes}.",
            )
        require_axes(self, "C2", axes, self.shape, "shape", "broadcast_dimensions")
        _require_stretch(self, "C3", x, [self.shape[axis] for axis in axes])
        return TensorType(x.dtype, self.shape)

    def evaluate(self, x: Array) -> Array:
        order = np.argsort(self.broadcast_dimensions, kind="stable")
        column = [1] * len(self.shape)
        for axis, size in zip(self.broadcast_dimensions, x.shape, strict=True):
            column[axis] = size
        sizes = tuple(dims.evaluate(d, {}) for d in self.shape)
        return np.broadcast_to(x.transpose(order).reshape(column), sizes).copy()


@define_op("expand")
class Expand(Op):
    """Stretches axes of size 1 and prepends axes, as NumPy broadcasts.

    y = broadcast(x, shape), aligned at the last axis

    Inputs:
        x: T[...]

    Attributes:
        shape: dims of the result.

    Result:
        T[shape]

    Constraints:
        C1: shape has at least as many axes as x.
        C2: each axis of x has size 1 or that of its axis in shape.

    Source: RLX `Op::Expand`, `numpy.broadcast_to`.
    """

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        lead = len(self.shape) - x.rank
        self.require(
            "C1",
            lead >= 0,
            lambda: (
                f"shape is required to have at least the {x.rank} axes of x: {x}; "
                f"got {len(self.shape)}. Reshape x first."
            ),
        )
        _require_stretch(self, "C2", x, self.shape[lead:])
        return TensorType(x.dtype, self.shape)

    def decompose(self, x: Value) -> Value:
        lead = len(self.shape) - x.rank
        axes = tuple(range(lead, len(self.shape)))
        return BroadcastInDim(shape=self.shape, broadcast_dimensions=axes)(x)


@define_op("reshape")
class Reshape(Op):
    """The same elements, in C order, under another shape.

    Inputs:
        x: T[...]

    Attributes:
        shape: dims of the result.

    Result:
        T[shape]

    Constraints:
        C1: x and the result have one number of elements.

    Source: StableHLO `reshape`; RLX `Op::Reshape`.
    """

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        self.require_same_dims(
            "C1",
            (dims.product(self.shape),),
            (x.size,),
            lambda: (
                f"shape is required to hold the {x.size} elements of x: {x}; "
                f"got {list(self.shape)} with {dims.product(self.shape)}. Change a dim."
            ),
        )
        return TensorType(x.dtype, self.shape)

    def evaluate(self, x: Array) -> Array:
        return x.reshape(tuple(dims.evaluate(d, {}) for d in self.shape))


@define_op("transpose")
class Transpose(Op):
    """Permutes the axes.

    shape(y)[a] = shape(x)[permutation[a]]

    Inputs:
        x: T[...]

    Attributes:
        permutation: for each axis of the result, its axis in x.

    Result:
        T[...] with the dims in the new order.

    Constraints:
        C1: permutation names every axis of x once.

    Source: StableHLO `transpose`; RLX `Op::Transpose`.
    """

    permutation: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.require(
            "C1",
            sorted(self.permutation) == list(range(x.rank)),
            lambda: (
                f"permutation is required to name every axis of x: {x} once; "
                f"got {self.permutation}. Name each from 0 to {x.rank - 1}."
            ),
        )
        return x.with_shape(x.shape[axis] for axis in self.permutation)

    def evaluate(self, x: Array) -> Array:
        return x.transpose(self.permutation).copy()


@define_op("reverse")
class Reverse(Op):
    """Flips the order of elements along axes.

    y[…, i, …] = x[…, n − 1 − i, …] for each of the axes

    Inputs:
        x: T[...]

    Attributes:
        axes: which axes.

    Result:
        Same type as x.

    Constraints:
        C1: axes are distinct axes of x.

    Source: StableHLO `reverse`; RLX `Op::Reverse`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.axes, x)
        return x

    def evaluate(self, x: Array) -> Array:
        return np.flip(x, self.axes).copy()


def _require_stretch(op: Op, label: str, x: TensorType, targets: Sequence[Dim]) -> None:
    if x.shape == tuple(targets):
        return
    for axis, (size, target) in enumerate(zip(x.shape, targets, strict=True)):
        if size == target or (type(size) is int and size == 1):
            continue
        message = (
            f"axis {axis} of x: {x} is required to have size 1 or {target}, that of its axis in "
            f"the result; got {size}. Reshape or slice x."
        )
        op.require_same_dims(label, (size,), (target,), message)
