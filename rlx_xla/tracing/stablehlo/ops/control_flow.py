"""Calls, choices and loops; what regions capture becomes operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.operators import constant
from rlx.ops.arithmetic import Clamp
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.control_flow import Call, Cond, PlatformIndex, While
from rlx.ops.convert import Convert
from rlx.ops.io import Constant
from rlx_xla.tracing.stablehlo import calls
from rlx_xla.tracing.stablehlo.captures import captured_by
from rlx_xla.tracing.stablehlo.context import OpContext, constant_of
from rlx_xla.tracing.stablehlo.registry import imports

INLINE_LIMIT = 1
"""Functions of at most this many ops are written in place of a call."""


def _results(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


@imports("func.call")
def call(ctx: OpContext, *operands: Value) -> Any:
    """A call of a private function."""
    return call_named(ctx, calls.name_of(ctx.attribute("callee")), operands)


def call_named(ctx: OpContext, name: str, operands: tuple[Value, ...]) -> Any:
    """Call a function of the module, or write it in place when it is tiny or has effects."""
    functions = ctx.walker.functions
    calls.order(name, functions)
    small = calls.body_size(functions[name]) <= INLINE_LIMIT and not calls.callees(functions[name])
    if small or calls.has_effects(name, functions):
        return ctx.walker.inline(name, operands, ctx.scope)
    body = ctx.walker.function(name)
    if body is None:
        return None
    return _results(Call(body=body, name=name)(*operands))


@imports("stablehlo.while")
def while_(ctx: OpContext, *carry: Value) -> Any:
    """A loop."""
    free = ctx.free()
    cond_region, body_region = ctx.op.regions
    for_cond, for_body = (captured_by(r, free) for r in (cond_region, body_region))
    cond = ctx.graph(0, for_cond, "cond")
    body = ctx.graph(1, for_body, "body")
    if cond is None or body is None:
        return None
    op = While(cond=cond, body=body, cond_consts=len(for_cond), body_consts=len(for_body))
    return _results(op(*ctx.values(for_cond), *ctx.values(for_body), *carry))


@imports("stablehlo.if")
def if_(ctx: OpContext, pred: Value) -> Any:
    """A choice between two branches; the first region is for true."""
    branches = _branches(ctx)
    if branches is None:
        return None
    return _results(Cond(branches=branches[::-1])(pred, *ctx.values(ctx.free())))


@imports("stablehlo.case")
def case(ctx: OpContext, index: Value) -> Any:
    """A choice by number; StableHLO takes the last branch for a number that is out of range."""
    branches = _branches(ctx)
    if branches is None:
        return None
    count = len(branches)
    source = index.node.op
    if count == 2 and isinstance(source, Convert) and index.node.inputs[0].dtype is DType.BOOL:
        index = index.node.inputs[0]
    elif not _in_range(index):
        last = constant(np.int32(count - 1))
        low = Compare(direction=Direction.LT)(index, constant(np.int32(0)))
        index = Select()(low, last, index)
    return _results(Cond(branches=branches)(index, *ctx.values(ctx.free())))


def _in_range(index: Value) -> bool:
    """Whether an index is known not to be negative; too large ones already mean the last."""
    op = index.node.op
    if isinstance(op, Clamp):
        low = constant_of(index.node.inputs[0])
        return low is not None and bool((low >= 0).all())
    if isinstance(op, Constant):
        return int(op.value.array) >= 0
    if isinstance(op, Convert):
        return index.node.inputs[0].dtype is DType.BOOL
    return isinstance(op, PlatformIndex)


def _branches(ctx: OpContext) -> tuple[Graph, ...] | None:
    free = ctx.free()
    made = [ctx.graph(i, free, f"branch_{i}") for i in range(len(ctx.op.regions))]
    found = tuple(g for g in made if g is not None)
    return found if len(found) == len(made) else None
