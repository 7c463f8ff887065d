"""Divides what a kernel computes over devices, where its rows do not depend on each other.

XLA does not see into a kernel and would gather its operands. For ops whose results along some
axes depend on the operands at the same place alone, and whose operand is known to lie divided
along such axes, the node becomes a ``shard_map`` whose body is the node on one device's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.collective import ShardMap
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.io import Input
from rlx.ops.pooling import ReduceWindow, SelectAndScatterAdd
from rlx.ops.quantized import DequantMatmul, DequantMatmulInt8
from rlx.ops.reduction import Argmax, Argmin, CumLogSumExp, CumMax, CumMin, CumProd, CumSum
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Rnn, SelectiveScan
from rlx.ops.sorting import Sort, TopK
from rlx.sharding import Mesh, Placement, Sharding, axes_size, sharding_of

Rows: TypeAlias = "tuple[int | None, ...]"
"""For each axis of a value a number that it shares with axes divided together; None is whole."""

_ALONG = (Argmax, Argmin, CumLogSumExp, CumMax, CumMin, CumProd, CumSum, Sort)
"""Ops that work along one axis, each place on the others by itself."""

_SAME = frozenset({"arithmetic", "transcendental", "activation", "convert", "compare", "bitwise"})
"""Families whose ops keep the place of an operand of the result's shape."""


def rows_of(node: Node) -> tuple[list[Rows], list[Rows]] | None:
    """Which axes of operands and results are rows; None for an op of which that is not known."""
    op, first = node.op, node.inputs[0] if node.inputs else None
    if first is None:
        return None
    if isinstance(op, (*_ALONG, TopK)):
        along = first.type.rank - 1 if isinstance(op, TopK) else op.axis
        kept: Rows = tuple(None if i == along else i for i in range(first.type.rank))
        short = tuple(i for i in kept if i is not None)
        return (
            [kept for _ in node.inputs],
            [kept if t.rank == first.type.rank else short for t in node.types],
        )
    if isinstance(op, DequantMatmul | DequantMatmulInt8):
        rows: Rows = (*range(first.type.rank - 1), None)
        return [rows, *((None,) * v.type.rank for v in node.inputs[1:])], [rows]
    if isinstance(op, Attention) and first.type.rank == 4:
        batch: Rows = (0, None, None, None)
        mask = [_rows_of_mask(op, v, first) for v in node.inputs[3:]]
        if all(rows is not None for rows in mask):
            return [batch, batch, batch, *(rows for rows in mask if rows is not None)], [batch]
    return _windows_of(node) or _batches_of(node)


def _windows_of(node: Node) -> tuple[list[Rows], list[Rows]] | None:
    """The batch of a convolution; the axes of pools on which no window lies."""
    op = node.op
    if isinstance(op, ConvGeneralDilated) and op.batch_group_count == 1:
        x, y = (
            tuple(0 if axis == spec[0] else None for axis in range(len(spec)))
            for spec in (op.lhs_spec, op.out_spec)
        )
        return [x, (None,) * len(x)], [y]
    if isinstance(op, ReduceWindow | SelectAndScatterAdd):
        sizes, steps, ends = op.window_dimensions, op.window_strides, op.padding
        free: Rows = tuple(
            i if sizes[i] == steps[i] == 1 and ends[i] == (0, 0) else None
            for i in range(len(sizes))
        )
        plain = isinstance(op, SelectAndScatterAdd) or set(op.base_dilation) == {1}
        return ([free for _ in node.inputs], [free]) if plain else None
    return None


def _batches_of(node: Node) -> tuple[list[Rows], list[Rows]] | None:
    """The batch of what goes over the steps of sequences."""
    op = node.op

    def first(value: Value, axis: int = 0) -> Rows:
        return tuple(0 if i == axis else None for i in range(value.type.rank))

    if isinstance(op, GatedDeltaNet):
        return [first(v) for v in node.inputs], [first(v) for v in node.results]
    if isinstance(op, SelectiveScan):
        whole = (None,) * node.inputs[2].type.rank
        return [whole if i == 2 else first(v) for i, v in enumerate(node.inputs)], [
            first(v) for v in node.results
        ]
    if isinstance(op, Lstm | Gru | Rnn):
        # Weights and biases, then first states of layers, batch and width, then a mask.
        shown = 2 if isinstance(op, Lstm) and op.cells else 1
        states, weights = len(node.results) - shown, 4 if isinstance(op, Gru) else 3
        given, masks = node.inputs[1 + weights :][:states], node.inputs[1 + weights + states :]
        return (
            [
                first(node.inputs[0]),
                *((None,) * v.type.rank for v in node.inputs[1 : 1 + weights]),
                *(first(v, 1) for v in given),
                *(first(v) for v in masks),
            ],
            [
                *(first(v) for v in node.results[:shown]),
                *(first(v, 1) for v in node.results[shown:]),
            ],
        )
    return None


def divided(node: Node, mesh: Mesh, takes: Callable[[Node], bool]) -> tuple[Value, ...] | None:
    """The node as a ``shard_map`` over its rows; None where it stays as it is.

    Args:
        node: outside of any ``shard_map``.
        mesh: the graph's.
        takes: whether a kernel carries out the node that one device then has.
    """
    rows = rows_of(node)
    if rows is None:
        return None
    operands, results = rows
    names: dict[int, tuple[str, ...]] = {}
    for value, axes in zip(node.inputs, operands, strict=True):
        found = stated(value)
        if found is None or found.mesh != mesh:
            continue
        for number, entry in zip(axes, found.placement, strict=True):
            given = tuple(name for name in entry if name in mesh.names)
            if number is not None and given and number not in names:
                names[number] = given
    used = [name for entry in names.values() for name in entry]
    if not used or len(set(used)) != len(used):
        return None
    inputs = _placements(operands, names)
    leaves: list[Value] = []
    for index, (value, placement) in enumerate(zip(node.inputs, inputs, strict=True)):
        shape = _part(value, placement, mesh)
        if shape is None:
            return None
        leaves.append(Input(name=f"x{index}", dtype=value.dtype, shape=shape)())
    made = make_node(node.op, leaves, node.location)
    if not takes(made):
        return None
    spread = ShardMap(
        body=Graph(leaves, (), made.results, name=f"{node.op.op_name}_rows"),
        mesh=mesh.axes,
        manual=mesh.names,
        in_shardings=tuple(inputs),
        out_shardings=tuple(_placements(results, names)),
    )
    return make_node(spread, node.inputs, node.location).results


def stated(value: Value) -> Sharding | None:
    """The sharding of a value that follows from the graph alone, or None."""
    for _ in range(64):
        found = sharding_of(value)
        if found is not None:
            return found
        node = value.node
        if isinstance(node.op, ShardMap):
            return Sharding(Mesh(node.op.mesh), node.op.out_shardings[value.index])
        family = type(node.op).__module__.split(".")[2:3]
        same = [v for v in node.inputs if v.shape == value.shape]
        if not same or not _SAME.issuperset(family):
            return None
        value = same[0]
    return None


def _rows_of_mask(op: Attention, mask: Value, q: Value) -> Rows | None:
    """The batch of a mask; None where a mask of two axes may have it or not."""
    rank = mask.type.rank
    if op.mask_kind is MaskKind.LENGTHS:
        return (0,)
    if op.mask_kind is MaskKind.CUSTOM and rank == 2:
        return None
    if rank == 4 and mask.shape[0] == q.shape[0]:
        return (0, None, None, None)
    return (None,) * rank


def _placements(rows: Sequence[Rows], names: dict[int, tuple[str, ...]]) -> list[Placement]:
    return [tuple(() if n is None else names.get(n, ()) for n in axes) for axes in rows]


def _part(value: Value, placement: Placement, mesh: Mesh) -> tuple[int, ...] | None:
    """The shape of one device's rows, or None where they are not equally many."""
    sizes = mesh.shape
    shape: list[int] = []
    for dim, entry in zip(value.shape, placement, strict=True):
        count = axes_size((name, sizes[name]) for name in entry)
        if not isinstance(dim, int) or dim % count:
            return None
        shape.append(dim // count)
    return tuple(shape)
