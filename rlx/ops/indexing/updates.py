"""Everyday writes: rows and elements at computed places."""

from __future__ import annotations

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.axes import require_at_most, require_axis
from rlx.ops.indexing.dynamic import DynamicUpdateSlice
from rlx.ops.indexing.lookups import require_depth, require_fit, with_component
from rlx.ops.indexing.places import IndexMode, require_integers, require_one_dtype
from rlx.ops.indexing.scatters import ScatterGeneral, ScatterKind, require_kind
from rlx.ops.shape import Concatenate, Iota, Slice
from rlx.types import Dim, TensorType


@define_op("scatter_add")
class ScatterAdd(Op):
    """Sums of slices by index, over zeros.

    y = 0; y[…, indices[i], …] += updates[…, i, …] for each i

    Inputs:
        updates: T[..., n, ...]
        indices: int[n]

    Attributes:
        size: dim of the result along the axis.
        axis: the axis of updates that indices are for.

    Result:
        T[...] with `size` in place of n. Indices outside are dropped.

    Constraints:
        C1: indices are integers.
        C2: axis is in range for updates.
        C3: indices have the shape [n].
        C4: size is ≥ 0.

    Source: RLX `Op::ScatterAdd`, `jax.ops.segment_sum`.
    """

    size: Dim
    axis: int = 0

    def infer(self, updates: TensorType, indices: TensorType) -> TensorType:
        require_integers(self, "C1", indices)
        axis = self.axis
        require_axis(self, "C2", axis, updates, "updates")
        self.require_same_dims(
            "C3",
            indices.shape,
            (updates.shape[axis],),
            lambda: (
                f"indices are required to have the shape [{updates.shape[axis]}], axis {axis} of "
                f"updates: {updates}; got {indices}."
            ),
        )
        require_at_most(self, "C4", 0, self.size, f"size is required to be ≥ 0; got {self.size}.")
        return updates.with_shape((*updates.shape[:axis], self.size, *updates.shape[axis + 1 :]))

    def decompose(self, updates: Value, indices: Value) -> Value:
        axis = self.axis
        shape = (*updates.shape[:axis], self.size, *updates.shape[axis + 1 :])
        zeros = broadcast_to(constant(0, updates.dtype), shape)
        return ScatterGeneral(
            kind=ScatterKind.ADD,
            update_window_dims=tuple(a for a in range(updates.rank) if a != axis),
            inserted_window_dims=(axis,),
            scatter_dims_to_operand_dims=(axis,),
        )(zeros, with_component(indices), updates)


@define_op("scatter_nd")
class ScatterNd(Op):
    """x with slices at index vectors replaced or combined.

    y = x; y[indices[i…, 0], indices[i…, 1], …] = updates[i…] for each i…

    Inputs:
        x: T[...]
        indices: int[..., k]   vectors of k components along the last axis.
        updates: T[indices.dims[:-1] ++ x.dims[k:]]

    Attributes:
        reduction: how an update meets the element that is there.

    Result:
        Same type as x. Indices outside are dropped.

    Constraints:
        C1: indices are integers.
        C2: the last axis of indices has a known size k ≤ rank of x.
        C3: updates have the shape above.
        C4: x and updates have one dtype.
        C5: SUB takes no bool.

    Source: ONNX `ScatterND`; RLX `Op::ScatterNd`.
    """

    reduction: ScatterKind = ScatterKind.SET

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        require_integers(self, "C1", indices)
        depth = require_depth(self, "C2", x, indices, 0)
        wanted = (*indices.shape[:-1], *x.shape[depth:])
        self.require_same_dims(
            "C3",
            updates.shape,
            wanted,
            lambda: f"updates are required to be {x.with_shape(wanted)}; got {updates}.",
        )
        require_one_dtype(self, "C4", x, updates, "updates")
        require_kind(self, "C5", self.reduction, x)
        return x

    def decompose(self, x: Value, indices: Value, updates: Value) -> Value:
        indexed = tuple(range(int(indices.shape[-1])))
        return ScatterGeneral(
            kind=self.reduction,
            update_window_dims=tuple(range(indices.rank - 1, updates.rank)),
            inserted_window_dims=indexed,
            scatter_dims_to_operand_dims=indexed,
        )(x, indices, updates)


@define_op("scatter_elements")
class ScatterElements(Op):
    """x with elements along an axis replaced or combined, each at its own index.

    y = x; y[i, indices[i, j, k], k] = updates[i, j, k] for each i, j, k   for axis 1

    Inputs:
        x: T[...]
        indices: i32 | i64[...]   rank of x.
        updates: T[...]   shape of indices.

    Attributes:
        axis: the axis of x that is indexed.
        reduction: how an update meets the element that is there.

    Result:
        Same type as x. Indices outside are dropped.

    Constraints:
        C1: indices are i32 or i64.
        C2: axis is in range for x.
        C3: indices have the rank of x, and no larger dims on the other axes.
        C4: updates have the shape of indices.
        C5: x and updates have one dtype.
        C6: SUB takes no bool.

    Source: ONNX `ScatterElements`; RLX `Op::ScatterElements`.
    """

    axis: int = 0
    reduction: ScatterKind = ScatterKind.SET

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        self.require(
            "C1",
            indices.dtype in (DType.I32, DType.I64),
            lambda: f"indices are required to be i32 or i64; got {indices}. Convert them.",
            DTypeError,
        )
        require_axis(self, "C2", self.axis, x)
        require_fit(self, "C3", x, indices, self.axis)
        self.require_same_dims(
            "C4",
            updates.shape,
            indices.shape,
            lambda: f"updates are required to have the shape of indices: {indices}; got {updates}.",
        )
        require_one_dtype(self, "C5", x, updates, "updates")
        require_kind(self, "C6", self.reduction, x)
        return x

    def decompose(self, x: Value, indices: Value, updates: Value) -> Value:
        axes = tuple(range(x.rank))
        counts = (Iota(dtype=indices.dtype, shape=indices.shape, axis=axis)() for axis in axes)
        columns = (
            with_component(indices if axis == self.axis else count)
            for axis, count in zip(axes, counts, strict=True)
        )
        return ScatterGeneral(
            kind=self.reduction,
            update_window_dims=(),
            inserted_window_dims=axes,
            scatter_dims_to_operand_dims=axes,
            mode=IndexMode.FILL_OR_DROP,
        )(x, Concatenate(axis=x.rank)(*columns), updates)


@define_op("kv_append")
class KvAppend(Op):
    """The filled part of a cache with one more row.

    y = [cache[…, :pos, …] | row]

    Inputs:
        cache: T[..., capacity, ...]
        row: T[..., 1, ...]

    Attributes:
        axis: the axis that grows.
        pos: how many rows are filled.

    Result:
        T[..., pos + 1, ...]. The row that fills a donated cache is written in place; before that,
        the result is smaller than the buffer. A cache that keeps its capacity is updated in place
        by `dynamic_update_slice`.

    Constraints:
        C1: axis is in range for cache.
        C2: row has the dims of cache, but 1 along the axis.
        C3: cache and row have one dtype.
        C4: 0 ≤ pos < capacity.

    Source: RLX `Op::KvAppend`.
    """

    axis: int
    pos: Dim

    def infer(self, cache: TensorType, row: TensorType) -> TensorType:
        axis = self.axis
        require_axis(self, "C1", axis, cache, "cache")
        before, capacity, after = cache.shape[:axis], cache.shape[axis], cache.shape[axis + 1 :]
        self.require_same_dims(
            "C2",
            row.shape,
            (*before, 1, *after),
            lambda: (
                f"row is required to have the dims of cache: {cache}, but 1 on axis {axis}; "
                f"got {row}."
            ),
        )
        self.require(
            "C3",
            row.dtype is cache.dtype,
            lambda: f"one dtype is required, that of cache: {cache}; got row: {row}. Convert it.",
            DTypeError,
        )
        message = (
            f"pos is required to be in [0, {capacity}), the capacity of cache: {cache}; "
            f"got {self.pos}. Make the cache larger."
        )
        require_at_most(self, "C4", 0, self.pos, message)
        require_at_most(self, "C4", self.pos + 1, capacity, message)
        return cache.with_shape((*before, self.pos + 1, *after))

    def decompose(self, cache: Value, row: Value) -> Value:
        if isinstance(self.pos, int) and self.pos + 1 == cache.shape[self.axis]:
            zero, place = constant(0), constant(self.pos)
            starts = (place if axis == self.axis else zero for axis in range(cache.rank))
            return DynamicUpdateSlice()(cache, row, *starts)
        limits = (*cache.shape[: self.axis], self.pos, *cache.shape[self.axis + 1 :])
        filled = Slice(
            start_indices=(0,) * cache.rank, limit_indices=limits, strides=(1,) * cache.rank
        )(cache)
        return Concatenate(axis=self.axis)(filled, row)
