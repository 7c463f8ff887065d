"""Many boxes at once, read from computed places."""

from __future__ import annotations

import numpy as np

from rlx import dims
from rlx.dtypes import DType, Kind, as_dtype
from rlx.ir.attributes import Array, Literal
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most, require_axes
from rlx.ops.indexing.places import (
    IndexMode,
    require_components,
    require_integers,
    window_positions,
    window_starts,
)
from rlx.types import Dim, TensorType


@define_op("gather_general")
class GatherGeneral(Op):
    """Reads a window of x for each index vector, as `jax.lax.gather` does.

    indices is ``[*batch, k]``: along its last axis lie vectors of k components; component j is
    where the window starts on axis start_index_map[j] of x. The axes of the result are those of
    batch in order, with the window's axes (less the collapsed and batching ones) at offset_dims.

    Inputs:
        x: T[...]
        indices: int[..., k]

    Attributes:
        slice_sizes: dims of the window, one for each axis of x.
        offset_dims: axes of the result that run inside the window, increasing.
        collapsed_slice_dims: axes of x that the result leaves out (window dim 1), increasing.
        start_index_map: the axis of x that each component is for.
        operand_batching_dims: axes of x that run along with batch axes of indices, increasing.
        start_indices_batching_dims: those axes of indices, in the same order.
        indices_are_sorted: the caller's word that they are; lets XLA be faster.
        unique_indices: the caller's word that no two windows are the same.
        mode: what a window reads that is not wholly inside x; see `IndexMode`.
        fill_value: a scalar for FILL_OR_DROP; None means NaN for floats, the least signed and the
            greatest unsigned number, True for bool.

    Result:
        T of batch and window dims.

    Constraints:
        C1: indices are integers.
        C2: the last axis of indices has one component for each axis in start_index_map.
        C3: offset_dims are distinct increasing axes of the result.
        C4: collapsed_slice_dims and operand_batching_dims are distinct increasing axes of x,
            start_index_map distinct ones; batching axes are in neither of the others.
        C5: batching axes come in pairs of equal dims, none the last axis of indices.
        C6: there is one slice size for each axis of x, and each axis is offset, collapsed or
            batching.
        C7: 0 ≤ slice size ≤ dim of x (unless there are no indices), 1 on collapsed axes and ≤ 1
            on batching ones.
        C8: fill_value is a scalar of x's dtype, given only with FILL_OR_DROP.

    Source: StableHLO `gather`, `jax.lax.gather`.
    """

    slice_sizes: tuple[Dim, ...]
    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()
    indices_are_sorted: bool = False
    unique_indices: bool = False
    mode: IndexMode = IndexMode.CLIP
    fill_value: Literal | None = None

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        require_integers(self, "C1", indices)
        require_components(self, "C2", indices, self.start_index_map)
        rank = indices.rank - 1 + len(self.offset_dims)
        require_axes(self, "C3", self.offset_dims, rank, "a result", "offset_dims", sort=True)
        require_batching(
            self, "C4", "C5", x, indices, self.operand_batching_dims,
            self.start_indices_batching_dims, self.collapsed_slice_dims, self.start_index_map,
        )  # fmt: skip
        dropped = {*self.collapsed_slice_dims, *self.operand_batching_dims}
        self.require(
            "C6",
            len(self.slice_sizes) == x.rank == len(self.offset_dims) + len(dropped),
            lambda: (
                f"one slice size is required for each axis of x: {x}, and each axis is an offset, "
                f"collapsed or batching one; got {len(self.slice_sizes)} sizes, "
                f"{len(self.offset_dims)} offset_dims and {len(dropped)} others."
            ),
        )
        self._check_sizes(x, indices)
        self._check_fill(x)
        window = [s for axis, s in enumerate(self.slice_sizes) if axis not in dropped]
        batch = list(indices.shape[:-1])
        return x.with_shape(
            window.pop(0) if axis in self.offset_dims else batch.pop(0) for axis in range(rank)
        )

    def evaluate(self, x: Array, indices: Array) -> Array:
        windows = [dims.evaluate(size, {}) for size in self.slice_sizes]
        pairs = list(zip(self.operand_batching_dims, self.start_indices_batching_dims, strict=True))
        mapped = self.start_index_map
        _, inside = window_starts(indices, x.shape, windows, mapped, pairs, clip=False)
        starts, _ = window_starts(indices, x.shape, windows, mapped, pairs, clip=True)
        dropped = {*self.collapsed_slice_dims, *self.operand_batching_dims}
        batch = indices.shape[:-1]
        kept = [size for axis, size in enumerate(windows) if axis not in dropped]
        order = list(range(len(batch)))  # of the axes of [*batch, *kept], as the result has them
        for position, axis in enumerate(self.offset_dims):
            order.insert(axis, len(batch) + position)
        shape = (*batch, *kept)
        if not np.prod(shape, dtype=np.int64):
            return np.empty(shape, x.dtype).transpose(order)
        picked = x[window_positions(starts, windows)]
        if picked.shape[: len(batch)] != batch:  # no component and no batching axis: one window
            picked = np.broadcast_to(picked, (*batch, *windows))
        result = picked.reshape(shape)
        if self.mode is IndexMode.FILL_OR_DROP:
            mask = inside.reshape(*batch, *[1] * len(kept))
            result = np.where(mask, result, self.fill(as_dtype(x.dtype)))
        return result.transpose(order).copy()

    def fill(self, dtype: DType) -> Array:
        """The scalar that FILL_OR_DROP reads outside."""
        if self.fill_value is not None:
            return self.fill_value.array
        if dtype.kind is Kind.BOOL:
            return np.asarray(True)
        if dtype.is_integer:
            least, most = -(2 ** (dtype.bits - 1)), 2**dtype.bits - 1
            return np.asarray(least if dtype.is_signed else most).astype(dtype.numpy)
        return np.asarray(np.nan).astype(dtype.numpy)

    def _check_sizes(self, x: TensorType, indices: TensorType) -> None:
        no_indices = any(type(d) is int and d == 0 for d in indices.shape[:-1])
        for axis, (size, total) in enumerate(zip(self.slice_sizes, x.shape, strict=True)):
            limit: Dim = 1 if axis in self.operand_batching_dims else total
            message = (
                f"slice sizes are required to be between 0 and {limit} on axis {axis} of x: {x}, "
                f"and 1 on the collapsed axes {self.collapsed_slice_dims}; got "
                f"{list(self.slice_sizes)}."
            )
            if axis in self.collapsed_slice_dims:
                self.require("C7", type(size) is int and size == 1, message)
            require_at_most(self, "C7", 0, size, message)
            if not no_indices or limit is not total:
                require_at_most(self, "C7", size, limit, message)

    def _check_fill(self, x: TensorType) -> None:
        given = self.fill_value
        self.require(
            "C8",
            given is None
            or (given.type == TensorType(x.dtype) and self.mode is IndexMode.FILL_OR_DROP),
            lambda: (
                f"fill_value is required to be a scalar of the dtype of x: {x}, with mode "
                f"FILL_OR_DROP; got {given} with {self.mode.name}."
            ),
        )


def require_batching(
    op: Op,
    axes_label: str,
    pair_label: str,
    x: TensorType,
    indices: TensorType,
    x_axes: tuple[int, ...],
    indices_axes: tuple[int, ...],
    dropped: tuple[int, ...],
    mapped: tuple[int, ...],
) -> None:
    """Check the axes of x that a gather or scatter names, and the pairs of batching axes."""
    require_axes(op, axes_label, dropped, x, "x", "the window's left-out axes", sort=True)
    require_axes(op, axes_label, x_axes, x, "x", "operand_batching_dims", sort=True)
    require_axes(op, axes_label, mapped, x, "x", "the components' axes")
    op.require(
        axes_label,
        not {*x_axes} & {*dropped, *mapped},
        lambda: (
            f"operand_batching_dims are required to differ from the left-out axes {dropped} and "
            f"the components' axes {mapped}; got {x_axes}."
        ),
    )

    def message() -> str:
        return (
            f"batching axes are required to come in pairs of equal dims of x: {x} and "
            f"indices: {indices}, without its last axis; got {x_axes} and {indices_axes}."
        )

    rank = indices.rank - 1
    good = len(x_axes) == len(indices_axes) == len({*indices_axes})
    op.require(pair_label, good and all(0 <= axis < rank for axis in indices_axes), message)
    theirs = tuple(indices.shape[axis] for axis in indices_axes)
    op.require_same_dims(pair_label, tuple(x.shape[a] for a in x_axes), theirs, message)
