"""What the shards of a ``shard_map`` hand to each other."""

from __future__ import annotations

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_axis
from rlx.ops.collective.axes import group_size, require_axes
from rlx.ops.collective.reduce import summed
from rlx.ops.collective.shards import exchange, index_along
from rlx.types import TensorType


@define_op("axis_index")
class AxisIndex(Op):
    """Where a shard is along some mesh axes.

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which the shard is counted, the first the slowest.

    Result:
        i32[]

    Constraints:
        C1: axes are axes of the mesh, each at most once.

    Source: StableHLO `partition_id`, `jax.lax.axis_index`.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]

    def infer(self) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        return TensorType(DType.I32)

    def evaluate(self) -> Array:
        return np.asarray(index_along(self.op_name, self.mesh, self.axes), np.int32)


@define_op("all_gather")
class AllGather(Op):
    """What the shards along some mesh axes hold, one after the other.

    y = concatenate(x of each shard of the group, axis)

    Inputs:
        x: any[..., D, ...]

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which shards are gathered, the first the slowest.
        axis: position of D in x.

    Result:
        any[..., D · n, ...] for n shards in a group; the same on each of them.

    Constraints:
        C1: axes are axes of the mesh, each at most once.
        C2: axis is in range for x.

    Source: StableHLO `all_gather`, `jax.lax.all_gather`; RLX `collective.all_gather`.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]
    axis: int = 0

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        require_axis(self, "C2", self.axis, x)
        return _scaled(x, self.axis, group_size(self.mesh, self.axes))

    def evaluate(self, x: Array) -> Array:
        parts, _ = exchange(self.op_name, self.mesh, self.axes, x)
        return np.concatenate(parts, self.axis)


@define_op("reduce_scatter")
class ReduceScatter(Op):
    """The sum over the shards along some mesh axes, of which each shard keeps one part.

    y = split(Σ x, n, axis)[position of the shard]

    Inputs:
        x: number[..., D, ...]

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which shards are summed, the first the slowest.
        axis: position of D in x.

    Result:
        number[..., D / n, ...] for n shards in a group.

    Constraints:
        C1: axes are axes of the mesh, each at most once.
        C2: axis is in range for x.
        C3: D is divisible by the number of shards in a group.
        C4: x is a number, not a bool.

    Numerics: floats of 16 bits and less are summed in f32 and rounded once.
    Source: StableHLO `reduce_scatter`, `jax.lax.psum_scatter`; RLX `collective.reduce_scatter`.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]
    axis: int = 0

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        require_axis(self, "C2", self.axis, x)
        count = group_size(self.mesh, self.axes)
        _require_parts(self, "C3", "axis", self.axis, x, count)
        self.require(
            "C4",
            x.dtype.kind is not Kind.BOOL and x.dtype is not DType.TOKEN,
            f"x is required to be a number; got {x}. Convert it.",
            DTypeError,
        )
        return _divided(x, self.axis, count)

    def evaluate(self, x: Array) -> Array:
        parts, position = exchange(self.op_name, self.mesh, self.axes, x)
        return np.split(summed(parts), len(parts), self.axis)[position]


@define_op("all_to_all")
class AllToAll(Op):
    """Each shard along some mesh axes hands each other one a part, and joins what it gets.

    y = concatenate(split(x of shard i, n, split_axis)[own position] for each i, concat_axis)

    Inputs:
        x: any[..., D, ...]

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which shards exchange, the first the slowest.
        split_axis: position of the axis D that is divided.
        concat_axis: position of the axis along which parts are joined.

    Result:
        x with D divided by n, and the other axis n times as long, for n shards in a group.

    Constraints:
        C1: axes are axes of the mesh, each at most once.
        C2: split_axis and concat_axis are in range for x.
        C3: D is divisible by the number of shards in a group.

    Source: StableHLO `all_to_all`, `jax.lax.all_to_all` with ``tiled``; RLX
    `collective.moe_dispatch` and `collective.moe_combine` exchange so.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]
    split_axis: int
    concat_axis: int

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        require_axis(self, "C2", self.split_axis, x, what="split_axis")
        require_axis(self, "C2", self.concat_axis, x, what="concat_axis")
        count = group_size(self.mesh, self.axes)
        _require_parts(self, "C3", "split_axis", self.split_axis, x, count)
        return _scaled(_divided(x, self.split_axis, count), self.concat_axis, count)

    def evaluate(self, x: Array) -> Array:
        parts, position = exchange(self.op_name, self.mesh, self.axes, x)
        mine = [np.split(part, len(parts), self.split_axis)[position] for part in parts]
        return np.concatenate(mine, self.concat_axis)


@define_op("ppermute")
class Ppermute(Op):
    """What another shard holds: each pair (from, to) says who sends to whom.

    Inputs:
        x: any.

    Attributes:
        mesh: names and sizes of the mesh's axes.
        axes: along which shards are counted, the first the slowest.
        perm: pairs of positions in a group, (source, target).

    Result:
        Same type as x; zeros on a shard that is no target.

    Constraints:
        C1: axes are axes of the mesh, each at most once.
        C2: perm names positions of the group; no source and no target comes twice.

    Source: StableHLO `collective_permute`, `jax.lax.ppermute`.
    """

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]
    perm: tuple[tuple[int, int], ...]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self, "C1", self.mesh, self.axes)
        count = group_size(self.mesh, self.axes)
        sides = [{pair[side] for pair in self.perm} for side in (0, 1)]
        self.require(
            "C2",
            all(len(side) == len(self.perm) and side <= set(range(count)) for side in sides),
            lambda: (
                f"perm is required to hold pairs of positions below {count}, no source and no "
                f"target twice; got {self.perm}. Correct the pairs."
            ),
        )
        return x

    def evaluate(self, x: Array) -> Array:
        parts, position = exchange(self.op_name, self.mesh, self.axes, x)
        source = next((s for s, target in self.perm if target == position), None)
        return np.zeros_like(x) if source is None else parts[source]


def _require_parts(op: Op, label: str, name: str, axis: int, x: TensorType, count: int) -> None:
    dim = x.shape[axis]
    op.require(
        label,
        count == 1 or (isinstance(dim, int) and dim % count == 0),
        f"{name} {axis} of x: {x} is required to be divisible by {count}, the shards of a group; "
        f"got {dim}. Pad it.",
    )


def _scaled(x: TensorType, axis: int, count: int) -> TensorType:
    return x.with_shape((*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


def _divided(x: TensorType, axis: int, count: int) -> TensorType:
    dim = x.shape[axis]
    part = dim if count == 1 or not isinstance(dim, int) else dim // count
    return x.with_shape((*x.shape[:axis], part, *x.shape[axis + 1 :]))
