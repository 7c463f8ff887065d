"""A loop's body that carries nothing, for all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to
from rlx.ops.dot import DotGeneral
from rlx.ops.fused.regions import is_elementwise
from rlx.ops.reduction import ReduceMax, ReduceSum
from rlx.ops.shape import BroadcastInDim, Concatenate, Narrow, Reshape, Slice, Split, Transpose
from rlx.types import Dim, Shape

Values: TypeAlias = "Sequence[Value]"


def at_once(body: Graph, operands: Values, consts: int, length: Dim) -> tuple[Value, ...] | None:
    """The stacked results of a body.

    Args:
        body: constants and rows, to rows.
        operands: constants, then arrays [length, ...] of rows.
        consts: number of constants.
        length: number of steps.

    Returns:
        A value [length, ...] for each output; None where an op has no such form.
    """
    known = dict(zip(body.inputs, operands, strict=True))
    rows = set(body.inputs[consts:])

    def stacked(value: Value) -> Value:
        if value in rows:
            return known[value]
        return broadcast_to(known[value], (length, *value.shape))

    for node in body.nodes():
        if node.results[0] in known:
            continue
        if rows.isdisjoint(node.inputs):
            results = make_node(node.op, [known[v] for v in node.inputs]).results
        elif isinstance(node.op, DotGeneral):
            flags = [v in rows for v in node.inputs]
            made = _product(node.op, node, [known[v] for v in node.inputs], flags)
            if made is None:
                return None
            results = (made,)
        else:
            op = _widened(node, length)
            if op is None:
                return None
            results = make_node(op, [stacked(v) for v in node.inputs]).results
        known.update(zip(node.results, results, strict=True))
        if not rows.isdisjoint(node.inputs):
            rows.update(node.results)
    return tuple(stacked(value) for value in body.outputs)


def _widened(node: Node, length: Dim) -> Op | None:
    """The op with one more axis in front of all its operands."""
    op = node.op
    form = _FORMS.get(type(op))
    if form is not None:
        return form(op, length)
    alike = len({v.shape for v in node.inputs}) == 1
    return op if is_elementwise(op) and alike and len(node.results) == 1 else None


def _wide(length: Dim, shape: Shape) -> Shape:
    return (length, *shape)


def _later(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)


_FORMS: dict[type[Op], Callable[[Any, Dim], Op]] = {
    BroadcastInDim: lambda op, n: op.replace(
        shape=_wide(n, op.shape), broadcast_dimensions=(0, *_later(op.broadcast_dimensions))
    ),
    Concatenate: lambda op, n: op.replace(axis=op.axis + 1),
    Narrow: lambda op, n: op.replace(axis=op.axis + 1),
    ReduceMax: lambda op, n: op.replace(axes=_later(op.axes)),
    ReduceSum: lambda op, n: op.replace(axes=_later(op.axes)),
    Reshape: lambda op, n: op.replace(shape=_wide(n, op.shape)),
    Slice: lambda op, n: op.replace(
        start_indices=(0, *op.start_indices),
        limit_indices=(n, *op.limit_indices),
        strides=(1, *op.strides),
    ),
    Split: lambda op, n: op.replace(axis=op.axis + 1),
    Transpose: lambda op, n: op.replace(permutation=(0, *_later(op.permutation))),
}
"""Ops with one more axis in front."""


def _product(op: DotGeneral, node: Node, operands: Values, rows: Sequence[bool]) -> Value | None:
    """A product of rows with a constant, or of rows with rows."""
    left, right = rows
    if left and right:
        wide = op.replace(
            lhs_contracting=_later(op.lhs_contracting), rhs_contracting=_later(op.rhs_contracting),
            lhs_batch=(0, *_later(op.lhs_batch)), rhs_batch=(0, *_later(op.rhs_batch)),
        )  # fmt: skip
        return cast("Value", wide(*operands))
    if op.lhs_batch:
        return None
    if left:
        wide = op.replace(lhs_contracting=_later(op.lhs_contracting))
        return cast("Value", wide(*operands))
    wide = op.replace(rhs_contracting=_later(op.rhs_contracting))
    made = cast("Value", wide(*operands))
    place = len(op.lhs_free(node.inputs[0].rank))
    if not place:
        return made
    others = (axis for axis in range(made.rank) if axis != place)
    return cast("Value", Transpose(permutation=(place, *others))(made))
