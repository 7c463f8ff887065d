"""Everyday reads: rows of a table, elements along an axis."""

from __future__ import annotations

from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most, require_axis
from rlx.ops.indexing.gathers import GatherGeneral
from rlx.ops.indexing.places import IndexMode, require_integers
from rlx.ops.shape import Reshape, Slice
from rlx.types import Dim, TensorType


@define_op("gather")
class Gather(Op):
    """Rows of a table along an axis: an embedding lookup.

    y[…, i, …] = table[…, indices[i], …]

    Inputs:
        table: T[...]
        indices: int[...]

    Attributes:
        axis: the axis of table that is indexed.

    Result:
        T[table.dims[:axis] ++ indices.dims ++ table.dims[axis + 1:]]. Indices outside are
        clipped: below 0 reads the first row, beyond the end the last.

    Constraints:
        C1: indices are integers.
        C2: axis is in range for table.
        C3: the axis has at least one row.

    Source: RLX `Op::Gather`.
    """

    axis: int = 0

    def infer(self, table: TensorType, indices: TensorType) -> TensorType:
        return _take_type(self, table, indices, self.axis, "table")

    def decompose(self, table: Value, indices: Value) -> Value:
        return _take(table, indices, self.axis, IndexMode.CLIP)


@define_op("take")
class Take(Op):
    """Elements along an axis, with a choice of what happens outside.

    y[…, i, …] = x[…, indices[i], …]

    Inputs:
        x: T[...]
        indices: int[...]

    Attributes:
        axis: the axis of x that is indexed.
        mode: what an index outside reads; FILL_OR_DROP gives NaN (the least signed or greatest
            unsigned number, True). Negative indices are outside.

    Result:
        T[x.dims[:axis] ++ indices.dims ++ x.dims[axis + 1:]]

    Constraints:
        C1: indices are integers.
        C2: axis is in range for x.
        C3: the axis has at least one element.

    Source: `jax.numpy.take`, without its wrapping of negative indices.
    """

    axis: int = 0
    mode: IndexMode = IndexMode.FILL_OR_DROP

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        return _take_type(self, x, indices, self.axis, "x")

    def decompose(self, x: Value, indices: Value) -> Value:
        return _take(x, indices, self.axis, self.mode)


@define_op("gather_elements")
class GatherElements(Op):
    """Elements along an axis, each at its own index.

    y[i, j, k] = x[i, indices[i, j, k], k]   for axis 1

    Inputs:
        x: T[...]
        indices: int[...]   rank of x.

    Attributes:
        axis: the axis of x that is indexed.

    Result:
        T[shape(indices)]. Indices outside are clipped.

    Constraints:
        C1: indices are integers.
        C2: axis is in range for x.
        C3: indices have the rank of x, and no larger dims on the other axes.
        C4: the axis has at least one element.

    Source: ONNX `GatherElements`, `numpy.take_along_axis`; RLX `Op::GatherElements`.
    """

    axis: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        require_integers(self, "C1", indices)
        require_axis(self, "C2", self.axis, x)
        require_fit(self, "C3", x, indices, self.axis)
        _require_rows(self, "C4", x, self.axis, "x")
        return x.with_shape(indices.shape)

    def decompose(self, x: Value, indices: Value) -> Value:
        others = tuple(axis for axis in range(x.rank) if axis != self.axis)
        shape = tuple(
            x.shape[axis] if axis == self.axis else size for axis, size in enumerate(indices.shape)
        )
        if shape != x.shape:
            x = Slice(start_indices=(0,) * x.rank, limit_indices=shape, strides=(1,) * x.rank)(x)
        return GatherGeneral(
            slice_sizes=(1,) * x.rank,
            offset_dims=(),
            collapsed_slice_dims=(self.axis,),
            start_index_map=(self.axis,),
            operand_batching_dims=others,
            start_indices_batching_dims=others,
            mode=IndexMode.CLIP,
        )(x, with_component(indices))


@define_op("gather_nd")
class GatherNd(Op):
    """Slices of x at index vectors.

    y[b…, i…] = x[b…, indices[b…, i…, 0], indices[b…, i…, 1], …]

    Inputs:
        x: T[...]
        indices: int[..., k]   vectors of k components along the last axis.

    Attributes:
        batch_dims: how many leading axes x and indices share.

    Result:
        T[indices.dims[:-1] ++ x.dims[batch_dims + k:]]. Indices outside are clipped.

    Constraints:
        C1: indices are integers.
        C2: 0 ≤ batch_dims < rank of indices.
        C3: the last axis of indices has a known size k with batch_dims + k ≤ rank of x.
        C4: the batch_dims leading dims of x and indices are equal.
        C5: indexed axes have at least one element.

    Source: ONNX `GatherND`; RLX `Op::GatherNd`.
    """

    batch_dims: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        require_integers(self, "C1", indices)
        shared = self.batch_dims
        self.require(
            "C2",
            0 <= shared < indices.rank,
            lambda: (
                f"batch_dims is required to be in [0, rank of indices: {indices}); got {shared}."
            ),
        )
        depth = require_depth(self, "C3", x, indices, shared)
        self.require_same_dims(
            "C4",
            indices.shape[:shared],
            x.shape[:shared],
            lambda: (
                f"the {shared} leading dims are required to be those of x: {x}; "
                f"got indices: {indices}."
            ),
        )
        for axis in range(shared, shared + depth):
            _require_rows(self, "C5", x, axis, "x")
        return x.with_shape((*indices.shape[:-1], *x.shape[shared + depth :]))

    def decompose(self, x: Value, indices: Value) -> Value:
        shared = self.batch_dims
        end = shared + int(indices.shape[-1])
        indexed = tuple(range(shared, end))
        batching = tuple(range(shared))
        first = indices.rank - 1
        return GatherGeneral(
            slice_sizes=(*[1] * end, *x.shape[end:]),
            offset_dims=tuple(range(first, first + x.rank - end)),
            collapsed_slice_dims=indexed,
            start_index_map=indexed,
            operand_batching_dims=batching,
            start_indices_batching_dims=batching,
            mode=IndexMode.CLIP,
        )(x, indices)


def with_component(indices: Value) -> Value:
    """Indices as vectors of one component."""
    return Reshape(shape=(*indices.shape, 1))(indices)


def require_depth(op: Op, label: str, x: TensorType, indices: TensorType, shared: int) -> int:
    """Require index vectors of known length that fit x; return the length."""
    depth: Dim = indices.shape[-1] if indices.rank else -1
    op.require(
        label,
        type(depth) is int and 0 <= depth <= x.rank - shared,
        lambda: (
            f"the last axis of indices: {indices} is required to have a known size of at most "
            f"{x.rank - shared}, the axes of x: {x} that can be indexed. Reshape indices."
        ),
    )
    return int(depth)


def require_fit(op: Op, label: str, x: TensorType, indices: TensorType, axis: int) -> None:
    """Require indices of the rank of x, with dims no larger on the other axes."""
    message = (
        f"indices are required to have the rank of x: {x}, and no larger dims on the axes other "
        f"than {axis}; got {indices}. Reshape or slice them."
    )
    op.require(label, indices.rank == x.rank, message)
    for other, (size, total) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if other != axis and size != total:
            require_at_most(op, label, size, total, message)


def _take(x: Value, indices: Value, axis: int, mode: IndexMode) -> Value:
    after = axis + indices.rank
    return GatherGeneral(
        slice_sizes=(*x.shape[:axis], 1, *x.shape[axis + 1 :]),
        offset_dims=(*range(axis), *range(after, after + x.rank - axis - 1)),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        mode=mode,
    )(x, with_component(indices))


def _take_type(op: Op, x: TensorType, indices: TensorType, axis: int, name: str) -> TensorType:
    require_integers(op, "C1", indices)
    require_axis(op, "C2", axis, x, name)
    _require_rows(op, "C3", x, axis, name)
    return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _require_rows(op: Op, label: str, x: TensorType, axis: int, name: str) -> None:
    message = f"axis {axis} of {name}: {x} is required to have at least one element."
    require_at_most(op, label, 1, x.shape[axis], message)
