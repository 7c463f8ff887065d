"""How much memory a schedule needs: live ranges, views, and a plan of one arena.

XLA assigns its own buffers; this estimate is made from the graph alone, for every backend. Rules:
inputs, params, constants and outputs live for the whole run; any other value lives from the node
that makes it to the last node that reads it; a reshape, a conversion to the same dtype and a
narrow of the first axis are views of what they read and own nothing. An op that holds graphs
counts once with the largest need of any of them (one iteration, one branch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from rlx import dims
from rlx.errors import CompileError
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.types import Dim, TensorType

ALIGNMENT = 64
"""Bytes that the offset of every buffer is a multiple of, unless asked otherwise."""

_FOREVER = ("input", "param", "constant")
_VIEWS = ("reshape", "copy", "stop_gradient")


@final
@dataclass(frozen=True)
class Buffer:
    """A value that owns memory.

    Attributes:
        name: that of an input or param, ``output_2``, or op and place: ``mul (model.py:7)``.
        type: dtype and shape, sizes bound.
        nbytes: bytes, before alignment.
        first, last: positions in the schedule of the node that makes it and of its last reader.
        kind: ``input``, ``param``, ``constant``, ``output`` or ``temp``.
        node: position in the schedule of the node that makes it.
    """

    name: str
    type: TensorType
    nbytes: int
    first: int
    last: int
    kind: str
    node: int


@final
@dataclass(frozen=True)
class MemoryEstimate:
    """What a schedule needs at least.

    Attributes:
        peak: most bytes alive at one time.
        peak_at: position in the schedule where that is.
        total: bytes of all buffers, none of them shared.
        by_kind: bytes of the buffers by kind: ``input``, ``param``, ``constant``, ``output``,
            ``temp``.
        buffers: every value that owns memory, in the order of the schedule.
        views: node position → (node position of the value it is a view of, byte offset).
        nested: bytes that graphs inside ops need while their op runs, counted in ``peak``.
    """

    peak: int
    peak_at: int
    total: int
    by_kind: Mapping[str, int]
    buffers: tuple[Buffer, ...]
    views: Mapping[int, tuple[int, int]]
    nested: int = 0

    def largest(self, count: int = 5) -> list[Buffer]:
        """The largest buffers, the first made first where they are equal."""
        return sorted(self.buffers, key=lambda b: -b.nbytes)[:count]

    def __str__(self) -> str:
        parts = "  ".join(f"{kind} {size:,} B" for kind, size in self.by_kind.items())
        return f"peak {self.peak:,} B of {self.total:,} B  ({parts}; {len(self.views)} views)"


@final
@dataclass(frozen=True)
class ArenaPlan:
    """One arena that holds every buffer; for information, XLA makes its own.

    Attributes:
        size: bytes of the arena.
        alignment: bytes that offsets are multiples of.
        offsets: buffer → byte offset, in the order of the estimate's buffers.
        bytes_saved: aligned bytes of all buffers, less the arena's.
    """

    size: int
    alignment: int
    offsets: tuple[tuple[Buffer, int], ...]
    bytes_saved: int


def estimate(graph: Graph, binding: Mapping[str, int] | None = None) -> MemoryEstimate:
    """Estimate the memory of a graph's schedule, which is the order of its nodes.

    Args:
        graph: any graph; with symbolic dims, all of them are bound by ``binding``.
        binding: symbol → size.

    Raises:
        UnboundDimError: a size is needed that is not bound.
    """
    needs: dict[int, int] = {}  # id of an inner graph → bytes of its own buffers at their peak
    result: MemoryEstimate | None = None
    for inner in graph.all_graphs():
        result = _estimate(inner, binding or {}, needs, nested=inner is not graph)
        needs[id(inner)] = result.peak
    assert result is not None
    return result


def _estimate(
    graph: Graph, binding: Mapping[str, int], needs: Mapping[int, int], *, nested: bool
) -> MemoryEstimate:
    """One graph; the arguments and results of an inner graph belong to the op that holds it."""
    nodes = graph.nodes()
    position = {id(node): i for i, node in enumerate(nodes)}
    end = len(nodes)
    roots, views = _roots(nodes, position, binding)
    outputs: dict[Value, int] = {}
    for index, value in enumerate(graph.outputs):
        outputs.setdefault(roots[value], index)
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for value in node.inputs:
            last[roots[value]] = i
    buffers: list[Buffer] = []
    change = [0] * (end + 2)
    inner_need = 0
    for i, node in enumerate(nodes):
        inner = max((needs[id(g)] for g in inner_graphs(node.op)), default=0)
        change[i] += inner
        change[i + 1] -= inner
        inner_need = max(inner_need, inner)
        for value in node.results:
            size = _nbytes(value.type, binding)
            if roots[value] is not value or not size:
                continue
            kind = node.op.op_name if node.op.op_name in _FOREVER else "temp"
            kind = "output" if value in outputs and kind == "temp" else kind
            if nested and kind in ("input", "param", "output"):
                continue
            whole = kind != "temp"
            span = (0, end) if whole else (i, last.get(value, i))
            change[span[0]] += size
            change[span[1] + 1] -= size
            name = _name(node, value, outputs)
            type_ = value.type.bind(binding)
            buffers.append(Buffer(name, type_, size, span[0], span[1], kind, i))
    peak = peak_at = alive = 0
    for i in range(end):
        alive += change[i]
        if alive > peak:
            peak, peak_at = alive, i
    by_kind: dict[str, int] = {}
    for buffer in buffers:
        by_kind[buffer.kind] = by_kind.get(buffer.kind, 0) + buffer.nbytes
    total = sum(by_kind.values())
    return MemoryEstimate(peak, peak_at, total, by_kind, tuple(buffers), views, inner_need)


def plan_arena(memory: MemoryEstimate, alignment: int = ALIGNMENT) -> ArenaPlan:
    """Place every buffer: the largest first, each at the lowest offset that is free in its span.

    Raises:
        CompileError: the alignment is no power of two.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise CompileError(
            f"arena_alignment: a power of two is required, in bytes; got {alignment}. Use 64."
        )
    order = sorted(range(len(memory.buffers)), key=lambda i: -memory.buffers[i].nbytes)
    offsets = [0] * len(order)
    # Of the buffers placed so far: span in the schedule, and span in the arena.
    first, last, start, stop = np.zeros((4, len(order)), np.int64)
    used = size = 0
    for placed, index in enumerate(order):
        buffer = memory.buffers[index]
        need = _aligned(buffer.nbytes, alignment)
        used += need
        overlapping = (first[:placed] <= buffer.last) & (last[:placed] >= buffer.first)
        starts, stops = start[:placed][overlapping], stop[:placed][overlapping]
        offset = _lowest_gap(starts, stops, need)
        offsets[index] = offset
        first[placed], last[placed] = buffer.first, buffer.last
        start[placed], stop[placed] = offset, offset + need
        size = max(size, offset + need)
    pairs = tuple(zip(memory.buffers, offsets, strict=True))
    return ArenaPlan(size, alignment, pairs, used - size)


def _lowest_gap(starts: np.ndarray, stops: np.ndarray, need: int) -> int:
    """The lowest offset at which ``need`` bytes overlap none of the spans."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts, ceiling = starts[order], np.maximum.accumulate(stops[order])
    before = np.concatenate([[0], ceiling[:-1]])
    free = np.flatnonzero(starts - before >= need)
    return int(before[free[0]] if len(free) else ceiling[-1])


def _roots(
    nodes: tuple[Node, ...], position: Mapping[int, int], binding: Mapping[str, int]
) -> tuple[dict[Value, Value], dict[int, tuple[int, int]]]:
    """What each value is a view of (itself, where it is none), and the views with offsets."""
    roots: dict[Value, Value] = {}
    views: dict[int, tuple[int, int]] = {}
    offsets: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        offset = _view_offset(node, binding)
        if offset is None:
            roots.update((value, value) for value in node.results)
            continue
        source, made = node.inputs[0], node.results[0]
        roots[made] = roots[source]
        offsets[made] = offsets.get(source, 0) + offset
        views[i] = (position[id(roots[source].node)], offsets[made])
    return roots, views


def _view_offset(node: Node, binding: Mapping[str, int]) -> int | None:
    """Bytes from the start of what a node reads to the start of its result; None: no view."""
    op = node.op
    if op.op_name in _VIEWS:
        return 0
    if op.op_name == "convert":
        return 0 if node.types[0].dtype is node.inputs[0].type.dtype else None
    attributes = op.attributes()
    if op.op_name == "narrow" and attributes["axis"] == 0:
        start: Dim = attributes["start"]
    elif op.op_name == "slice" and _narrows_first_axis(node):
        start = attributes["start_indices"][0]
    else:
        return None
    row = node.types[0].with_shape(node.types[0].shape[1:])
    return dims.evaluate(start, binding) * _nbytes(row, binding)


def _narrows_first_axis(node: Node) -> bool:
    attributes, shape = node.op.attributes(), node.inputs[0].type.shape
    return (
        len(shape) > 0
        and all(stride == 1 for stride in attributes["strides"])
        and tuple(attributes["start_indices"][1:]) == (0,) * (len(shape) - 1)
        and tuple(attributes["limit_indices"][1:]) == shape[1:]
    )


def _nbytes(type_: TensorType, binding: Mapping[str, int]) -> int:
    count = 1
    for dim in type_.shape:
        count *= dims.evaluate(dim, binding)
    return count * type_.dtype.itemsize


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _name(node: Node, value: Value, outputs: Mapping[Value, int]) -> str:
    if value.name:
        return value.name
    if value in outputs:
        return f"output_{outputs[value]}"
    part = f"[{value.index}]" if len(node.results) > 1 else ""
    where = f" ({node.location})" if node.location else ""
    return f"{node.op.op_name}{part}{where}"
