"""Reads and writes of a loop's body at its counter: one row of an array in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from rlx.ir.graph import Node, Value
from rlx.ops.indexing import DynamicSlice, DynamicUpdateSlice, GatherGeneral, ScatterGeneral
from rlx.ops.indexing.scatters import ScatterKind
from rlx.passes.stream_loops.sequences import Known
from rlx.types import Dim


@final
@dataclass(frozen=True)
class Access:
    """A row of an array that each step reads or writes.

    Attributes:
        node: what reads or writes.
        array: the array, as the body has it.
        axis: along which the rows lie.
        first: the lowest row.
        falls: whether the first step takes the highest row.
    """

    node: Node
    array: Value
    axis: int
    first: int
    falls: bool

    @property
    def writes(self) -> bool:
        """Whether it is a write."""
        return isinstance(self.node.op, DynamicUpdateSlice | ScatterGeneral)

    @property
    def row(self) -> tuple[Dim, ...]:
        """The shape of a row."""
        shape = self.array.shape
        return (*shape[: self.axis], *shape[self.axis + 1 :])


def access_of(node: Node, known: Known) -> Access | None:
    """The access that a node is; None where it takes more or less than a row, or not in order.

    Args:
        node: any node of a loop's body.
        known: scalars of the body, with their elements for all steps.
    """
    op = node.op
    if isinstance(op, DynamicSlice):
        return _boxed(node, node.inputs[1:], op.sizes, known)
    if isinstance(op, DynamicUpdateSlice):
        return _boxed(node, node.inputs[2:], node.inputs[1].shape, known)
    if isinstance(op, GatherGeneral):
        if node.inputs[1].shape != (1,) or op.operand_batching_dims:
            return None
        (axis,) = op.start_index_map
        whole = _is_row(node.inputs[0].shape, op.slice_sizes, axis)
        return _ordered(node, axis, known.get(node.inputs[1]), clamps=False) if whole else None
    if isinstance(op, ScatterGeneral):
        x, indices, _ = node.inputs
        plain = op.kind is ScatterKind.SET and not op.operand_batching_dims
        if not plain or indices.shape != (1,):
            return None
        (axis,) = op.scatter_dims_to_operand_dims
        sizes = _window(op, node)
        whole = _is_row(x.shape, sizes, axis)
        return _ordered(node, axis, known.get(indices), clamps=False) if whole else None
    return None


def _window(op: ScatterGeneral, node: Node) -> tuple[Dim, ...]:
    """The sizes of a scatter's window, along all axes of what it is written into."""
    x, _, updates = node.inputs
    sizes = iter(updates.shape)
    return tuple(1 if a in op.inserted_window_dims else next(sizes) for a in range(x.rank))


def _is_row(shape: Sequence[Dim], sizes: Sequence[Dim], axis: int) -> bool:
    """Whether a window is whole but for an axis, where it has one element."""
    pairs = enumerate(zip(shape, sizes, strict=True))
    return all(s == 1 if a == axis else s == whole for a, (whole, s) in pairs)


def _boxed(
    node: Node, starts: Sequence[Value], sizes: Sequence[Dim], known: Known
) -> Access | None:
    """The access of a box whose starts are clamped."""
    shape = node.inputs[0].shape
    cut = [a for a, (whole, s) in enumerate(zip(shape, sizes, strict=True)) if s != whole]
    axes = cut or [a for a, size in enumerate(shape) if size == 1][:1]
    if len(axes) != 1 or not _is_row(shape, sizes, axes[0]):
        return None
    return _ordered(node, axes[0], known.get(starts[axes[0]]), clamps=True)


def _ordered(node: Node, axis: int, places: np.ndarray | None, *, clamps: bool) -> Access | None:
    """The access where its places are consecutive rows of the array."""
    array = node.inputs[0]
    size = array.shape[axis]
    if places is None or not isinstance(size, int) or not places.size:
        return None
    rows = places.astype(np.int64)
    if clamps:
        rows = np.clip(rows, 0, size - 1)
    first, last = int(rows[0]), int(rows[-1])
    falls = last < first
    wanted = np.arange(rows.size) * (-1 if falls else 1) + first
    if not np.array_equal(rows, wanted) or min(first, last) < 0 or max(first, last) >= size:
        return None
    return Access(node, array, axis, min(first, last), falls)
