"""Calls, choices and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value
from rlx.ops.compare import Select
from rlx.ops.control_flow import Call, CallKind, Cond, PlatformIndex, Scan, While
from rlx.ops.io import Input
from rlx.ops.reduction import ReduceOr
from rlx.ops.shape import BroadcastInDim
from rlx.types import TensorType
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces

KINDS = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "core_closed_call"), CallKind.JIT),
    **dict.fromkeys(("remat", "remat2", "checkpoint"), CallKind.REMAT),
    "custom_jvp_call": CallKind.CUSTOM_JVP,
    **dict.fromkeys(("custom_vjp_call", "custom_vjp_call_jaxpr"), CallKind.CUSTOM_VJP),
}

INLINE_LIMIT = 1
"""Bodies of at most this many equations are written in place of a call."""


def _call_rule(primitive: str, kind: CallKind) -> None:
    @traces(primitive)
    def rule(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
        closed = jx.called_jaxpr(primitive, params)
        if closed is None:
            return NotImplemented
        small = len(jx.open_jaxpr(closed).eqns) <= INLINE_LIMIT
        if params.get("inline") or small or jx.open_jaxpr(closed).effects:
            # A body with effects is written in place, so that its effects join the outer chain.
            return ctx.inline(closed, operands)
        name = _name(primitive, params)
        op = Call(body=ctx.graph(closed, name), name=name, kind=kind)
        return _results(op(*ctx.constants(closed), *operands))


for _primitive, _kind in KINDS.items():
    _call_rule(_primitive, _kind)


@traces("cond")
def cond(ctx: TraceContext, params: dict[str, Any], index: Value, *operands: Value) -> Any:
    branches = jx.cond_branches(params)
    graphs = [ctx.graph(branch, f"branch_{i}") for i, branch in enumerate(branches)]
    if any(graph.effects for graph in graphs):
        return NotImplemented
    if index.type.dtype is not DType.BOOL:
        index = index.convert(DType.I32)
    captured = [ctx.constants(branch) for branch in branches]
    shared = [value for values in captured for value in values]
    if shared:
        graphs = [
            _with_all_captured(graph, captured, number) for number, graph in enumerate(graphs)
        ]
    return _results(Cond(branches=tuple(graphs))(index, *shared, *operands))


@traces("while")
def while_(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    loop = jx.while_params(params)
    condition = ctx.graph(loop.cond_jaxpr, "cond")
    body = ctx.graph(loop.body_jaxpr, "body")
    if condition.effects or body.effects:
        return NotImplemented
    consts = loop.cond_consts + loop.body_consts
    for_cond = (*ctx.constants(loop.cond_jaxpr), *operands[: loop.cond_consts])
    for_body = (*ctx.constants(loop.body_jaxpr), *operands[loop.cond_consts : consts])
    carry = operands[consts:]
    if condition.outputs[0].type.shape:
        condition, body = _batched_loop(condition, body, len(for_cond), len(for_body))
        for_body = (*for_cond, *for_body)
    op = While(cond=condition, body=body, cond_consts=len(for_cond), body_consts=len(for_body))
    return _results(op(*for_cond, *for_body, *carry))


@traces("scan")
def scan(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    loop = jx.scan_params(params)
    body = ctx.graph(loop.jaxpr, "body")
    if body.effects:
        return NotImplemented
    captured = ctx.constants(loop.jaxpr)
    op = Scan(
        body=body,
        length=ctx.dim(loop.length),
        reverse=loop.reverse,
        num_consts=len(captured) + loop.num_consts,
        num_carry=loop.num_carry,
        unroll=loop.unroll,
    )
    return _results(op(*captured, *operands))


@traces("platform_index")
def platform_index(ctx: TraceContext, params: dict[str, Any]) -> Value:
    groups = tuple(tuple(map(str, group or ())) for group in params["platforms"])
    return PlatformIndex(platforms=groups)()


def _with_all_captured(graph: Graph, captured: Sequence[Sequence[Value]], number: int) -> Graph:
    """A branch that takes the captured arrays of every branch, and uses its own."""
    own = len(captured[number])
    types = [v.type for values in captured for v in values]
    leaves = _leaves([*types, *(v.type for v in graph.inputs[own:])])
    start = sum(map(len, captured[:number]))
    arguments = (*leaves[start : start + own], *leaves[len(types) :])
    outputs = _results(Call(body=graph, name=graph.name)(*arguments))
    return Graph(leaves, (), outputs, name=graph.name)


def _batched_loop(
    condition: Graph, body: Graph, cond_consts: int, body_consts: int
) -> tuple[Graph, Graph]:
    """A loop over a batch: it runs while any member's condition holds, and the others keep still.

    The new body takes the condition's constants before its own.
    """
    leaves = _leaves([v.type for v in condition.inputs])
    truth = Call(body=condition, name="cond")(*leaves)
    any_holds = Graph(leaves, (), (_any(truth),), name="cond")

    types = [v.type for v in (*condition.inputs[:cond_consts], *body.inputs)]
    leaves = _leaves(types)
    for_cond, rest = leaves[:cond_consts], leaves[cond_consts:]
    carry = rest[body_consts:]
    truth = Call(body=condition, name="cond")(*for_cond, *carry)
    new = _results(Call(body=body, name="body")(*rest))
    kept = [_choose(truth, n, old) for n, old in zip(new, carry, strict=True)]
    return any_holds, Graph(leaves, (), kept, name="body")


def _any(truth: Value) -> Value:
    return ReduceOr(axes=tuple(range(truth.rank)))(truth)


def _choose(truth: Value, on_true: Value, on_false: Value) -> Value:
    wide = BroadcastInDim(shape=on_true.shape, broadcast_dimensions=tuple(range(truth.rank)))
    return Select()(wide(truth), on_true, on_false)


def _leaves(types: Sequence[TensorType]) -> list[Value]:
    return [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]


def _results(made: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return (made,) if isinstance(made, Value) else made


def _name(primitive: str, params: dict[str, Any]) -> str:
    name = jx.call_name(params)
    return name or primitive
