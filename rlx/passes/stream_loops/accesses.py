"""Reads and writes of a loop's body at its counter: one row of an array in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from rlx.ir.graph import Node, Value
from rlx.ops.indexing import DynamicSlice, DynamicUpdateSlice, GatherGeneral, ScatterGeneral
from rlx.ops.indexing.scatters import ScatterKind
from rlx.ops.shape import Concatenate
from rlx.passes.stream_loops.sequences import Known
from rlx.types import Dim

MAX_RUNS = 3
"""Most pieces, each of rows at one distance, that are put together for a loop to read."""


class Run(NamedTuple):
    """Rows at one distance.

    Attributes:
        first: the first row.
        step: from one to the next; not 0.
        length: how many there are.
    """

    first: int
    step: int
    length: int


@final
@dataclass(frozen=True)
class Access:
    """A row of an array that each step reads or writes.

    Attributes:
        node: what reads or writes.
        array: the array, as the body has it.
        axis: along which the rows lie.
        runs: the rows, in the order of the steps.
    """

    node: Node
    array: Value
    axis: int
    runs: tuple[Run, ...]

    @property
    def writes(self) -> bool:
        """Whether it is a write."""
        return isinstance(self.node.op, DynamicUpdateSlice | ScatterGeneral)

    @property
    def falls(self) -> bool:
        """Whether each step takes the row below that of the step before."""
        return len(self.runs) == 1 and self.runs[0].step == -1

    @property
    def plain(self) -> bool:
        """Whether the rows are next to each other, in one order or the other."""
        return len(self.runs) == 1 and abs(self.runs[0].step) == 1

    @property
    def whole(self) -> bool:
        """Whether they are all of the array's besides."""
        return self.plain and self.runs[0].length == self.array.shape[self.axis]

    @property
    def row(self) -> tuple[Dim, ...]:
        """The shape of a row."""
        shape = self.array.shape
        return (*shape[: self.axis], *shape[self.axis + 1 :])

    def stacked(self, *, reverse: bool) -> tuple[Run, ...]:
        """The rows as a loop reads or stacks them, first to last.

        Args:
            reverse: whether the loop goes from the last one to the first.
        """
        if not reverse:
            return self.runs
        return tuple(Run(r.first + r.step * (r.length - 1), -r.step, r.length)
                     for r in reversed(self.runs))  # fmt: skip


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
        if op.operand_batching_dims:
            return None
        return _window_at(node, op.slice_sizes, op.start_index_map, known)
    if isinstance(op, ScatterGeneral):
        if op.kind is not ScatterKind.SET or op.operand_batching_dims:
            return None
        return _window_at(node, _window(op, node), op.scatter_dims_to_operand_dims, known)
    return None


def _window_at(
    node: Node, sizes: Sequence[Dim], axes: Sequence[int], known: Known
) -> Access | None:
    """The access of one window, whose index vector has a component for each of some axes."""
    array, indices = node.inputs[:2]
    if indices.rank != 1:
        return None
    parts: Sequence[Value] = (indices,)
    if isinstance(indices.node.op, Concatenate):
        parts = indices.node.inputs
    places = [known.get(part) for part in parts]
    if len(parts) != len(axes) or any(p is None for p in places):
        return None
    at = dict(zip(axes, places, strict=True))
    cut = [a for a in at if sizes[a] != array.shape[a]] or [*at][:1]
    others = [p for axis, p in at.items() if axis != cut[0] and p is not None]
    if len(cut) != 1 or not _is_row(array.shape, sizes, cut[0]) or any(p.any() for p in others):
        return None
    return _ordered(node, cut[0], at[cut[0]], clamps=False)


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
    """The access where its places are rows of the array in a few pieces."""
    array = node.inputs[0]
    size = array.shape[axis]
    if places is None or not isinstance(size, int) or not places.size:
        return None
    if places.dtype.kind == "u":  # one that i64 cannot hold is past every end
        places = np.minimum(places.astype(np.uint64), np.uint64(size))
    rows = places.astype(np.int64)
    if clamps:
        rows = np.clip(rows, 0, size - 1)
    if int(rows.min()) < 0 or int(rows.max()) >= size:
        return None
    runs = _runs(rows)
    return None if runs is None else Access(node, array, axis, runs)


def _runs(rows: np.ndarray) -> tuple[Run, ...] | None:
    """Rows as pieces at one distance each; None for more than are put together."""
    found: list[Run] = []
    start = 0
    while start < rows.size:
        if len(found) == MAX_RUNS:
            return None
        distances = np.diff(rows[start:])
        step = int(distances[0]) if distances.size else 1
        others = np.flatnonzero(distances != step)
        count = int(others[0]) + 1 if others.size else distances.size + 1
        if step == 0 or (count == 2 and abs(step) > 1 and rows.size > 2):
            step, count = 1, 1  # two rows far apart are no beginning of more
        found.append(Run(int(rows[start]), 1 if count == 1 else step, count))
        start += count
    return tuple(found)
