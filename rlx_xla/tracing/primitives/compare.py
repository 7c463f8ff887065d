"""Comparisons and choices between values."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ops.compare import Compare, Direction, Select, SelectN
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import Rule, traces


def _comparison(name: str) -> Rule:
    direction, total_order = Direction(name.removesuffix("_to")), name.endswith("_to")

    def rule(ctx: TraceContext, params: dict[str, Any], lhs: Value, rhs: Value) -> Value:
        op = Compare(direction=direction, total_order=total_order)
        hidden = ctx.in_types[0].rank - len(ctx.in_avals[0].shape)
        return _compare_keys(ctx, op, lhs, rhs) if hidden else op(*ctx.same_shape(lhs, rhs))

    return rule


def _compare_keys(ctx: TraceContext, op: Compare, lhs: Value, rhs: Value) -> Value:
    """Keys are arrays of words on trailing axes: equal when all of their words are."""
    from rlx.ops.reduction import ReduceAnd, ReduceOr
    from rlx.ops.shape import BroadcastInDim

    outer = ctx.out_type.shape
    words = tuple(range(len(outer), len(outer) + lhs.rank - len(ctx.in_avals[0].shape)))
    spread: list[Value] = []
    for value in (lhs, rhs):
        lead = value.rank - len(words)
        shape = (*outer, *value.shape[lead:])
        axes = (*range(len(outer) - lead, len(outer)), *words)
        spread.append(BroadcastInDim(shape=shape, broadcast_dimensions=axes)(value))
    reduce = ReduceAnd if op.direction is Direction.EQ else ReduceOr
    return reduce(axes=words)(op(*spread))


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "eq_to", "lt_to", "le_to"):
    traces(_name)(_comparison(_name))


@traces("select_n")
def select_n(ctx: TraceContext, params: dict[str, Any], which: Value, *cases: Value) -> Value:
    if len(cases) == 1:
        return cases[0]
    if which.rank and which.rank < ctx.out_type.rank:  # keys: their words hang on behind
        from rlx.ops.shape import BroadcastInDim

        axes = tuple(range(which.rank))
        which = BroadcastInDim(shape=ctx.out_type.shape, broadcast_dimensions=axes)(which)
    if len(cases) == 2 and which.dtype is DType.BOOL:
        return Select()(which, cases[1], cases[0])
    return SelectN()(which, *cases)
