"""Reads of one window at a known place are slices, as frontends write them for known sizes."""

from __future__ import annotations

import numpy as np

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import rewrite, rule
from rlx.ops.convert import Convert
from rlx.ops.indexing import GatherGeneral
from rlx.ops.io import Constant
from rlx.ops.shape import BroadcastInDim, Reshape, Slice


def slices_for_known_windows(graph: Graph) -> Graph:
    """Return a static graph with gathers of one window at a constant place written as slices."""
    return rewrite(graph, window_at_a_known_place)


@rule(GatherGeneral)
def window_at_a_known_place(node: Node) -> Value | None:
    """A window that lies inside x is the same by any mode."""
    op = node.op
    assert isinstance(op, GatherGeneral)
    x, indices = node.inputs
    places = _known(indices)
    if places is None or indices.rank != 1 or op.operand_batching_dims:
        return None
    starts = [0] * x.rank
    for axis, place in zip(op.start_index_map, places, strict=True):
        starts[axis] = place
    limits: list[int] = []
    for axis, size in enumerate(op.slice_sizes):
        whole = x.type.shape[axis]
        if not isinstance(size, int) or not isinstance(whole, int):
            return None
        if not 0 <= starts[axis] <= whole - size:
            return None
        limits.append(starts[axis] + size)
    part: Value = x
    if tuple(limits) != x.type.shape or any(starts):
        part = Slice(
            start_indices=tuple(starts), limit_indices=tuple(limits), strides=(1,) * x.rank
        )(x)
    return part if part.type == node.types[0] else Reshape(shape=node.types[0].shape)(part)


def _known(value: Value) -> list[int] | None:
    """Elements of a vector that is constant, seen through conversions and broadcasts of one."""
    size = value.type.shape[0] if value.rank == 1 else None
    while isinstance(value.node.op, BroadcastInDim | Reshape | Convert):
        value = value.node.inputs[0]
    if not isinstance(value.node.op, Constant) or not isinstance(size, int):
        return None
    found = np.asarray(value.node.op.value.array).reshape(-1)
    if found.size not in (1, size):
        return None
    return [int(n) for n in np.broadcast_to(found, (size,))]
