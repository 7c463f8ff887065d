"""Calls, choices and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value
from rlx.ops.arithmetic import Clamp
from rlx.ops.compare import Select
from rlx.ops.control_flow import Call, CallKind, Cond, PlatformIndex, Scan, While
from rlx.ops.convert import Convert
from rlx.ops.io import Constant, Input
from rlx.ops.reduction import ReduceOr
from rlx.ops.shape import BroadcastInDim
from rlx.types import TOKEN, TensorType
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat.shardings import asks_nothing
from rlx_xla.tracing import composites, own_rules, shardings
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces

KINDS = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "core_closed_call"), CallKind.JIT),
    "eval_jaxpr": CallKind.JIT,  # what these calls are in JAX from 0.12 on
    "rlx_jit": CallKind.JIT,  # what rlx_xla.jit is under tracers
    **dict.fromkeys(("remat", "remat2", "checkpoint"), CallKind.REMAT),
    "custom_jvp_call": CallKind.CUSTOM_JVP,
    **dict.fromkeys(("custom_vjp_call", "custom_vjp_call_jaxpr"), CallKind.CUSTOM_VJP),
    "custom_vmap_call": CallKind.CUSTOM_VMAP,
}

OWN = (CallKind.CUSTOM_JVP, CallKind.CUSTOM_VJP)
"""Calls of functions with derivatives of their own."""

INLINE_LIMIT = 1
"""Bodies of at most this many equations are written in place of a call, unless it has rules."""


def _call_rule(primitive: str, kind: CallKind) -> None:
    @traces(primitive)
    def rule(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
        placed = shardings.all_constrained(operands, params.get("in_shardings", ()))
        if placed is None:
            return NotImplemented
        made = called(ctx, params, *placed)
        wanted = params.get("out_shardings", ())
        if made is NotImplemented or all(map(asks_nothing, wanted)):
            return made
        found = shardings.all_constrained(_results(made), wanted)
        return NotImplemented if found is None else found

    def called(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
        closed = jx.called_jaxpr(primitive, params)
        if closed is None:
            return NotImplemented
        if kind in OWN:
            found = own_rules.recognise(ctx, closed, operands)
            if found is not None:
                return found
        name = jx.call_name(params) or jx.function_name(closed) or primitive
        composite = composites.recognise(ctx, name, closed, operands)
        if composite is not None:
            return composite
        few = len(jx.open_jaxpr(closed).eqns) <= INLINE_LIMIT
        small = few and kind is CallKind.JIT and not composites.is_call(name)
        if jx.wants_inlining(params) or small:
            return ctx.inline(closed, operands)
        name = own_rules.plain_name(composites.plain_name(name))
        body, captured = ctx.graph(closed, name), ctx.constants(closed)
        live = None if kind is CallKind.JIT else ctx.live(body, captured=bool(captured))
        op = Call(body=body, name=name, kind=kind, live=live)
        effects = ctx.effects(closed)
        return ctx.without_tokens(op(*captured, *operands, *ctx.tokens(effects)), effects)


for _primitive, _kind in KINDS.items():
    _call_rule(_primitive, _kind)


@traces("linear_call")
def linear_call(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    return ctx.inline(params["callee"], operands)


@traces("cond")
def cond(ctx: TraceContext, params: dict[str, Any], index: Value, *operands: Value) -> Any:
    branches = jx.cond_branches(params)
    graphs = [ctx.graph(branch, f"branch_{i}") for i, branch in enumerate(branches)]
    if index.type.dtype is not DType.BOOL:
        index = _chooser(index.convert(DType.I32), len(branches))
    captured = [ctx.constants(branch) for branch in branches]
    shared = [value for values in captured for value in values]
    own = [ctx.effects(branch) for branch in branches]
    effects = _union(*own)
    if shared or any(kinds != effects for kinds in own):
        types = [v.type for v in operands]
        graphs = [
            _with_all(graph, captured, number, types, own[number], effects)
            for number, graph in enumerate(graphs)
        ]
    op = Cond(branches=tuple(graphs))
    return ctx.without_tokens(op(index, *shared, *operands, *ctx.tokens(effects)), effects)


def _chooser(index: Value, count: int) -> Value:
    """What JAX chose by before it clamped or converted it, as ``Cond`` does that itself."""
    op, inputs = index.node.op, index.node.inputs
    if isinstance(op, Convert) and inputs[0].dtype is DType.BOOL and count == 2:
        return inputs[0]
    if not isinstance(op, Clamp):
        return index
    bounds = [v.node.op.value.array for v in inputs[::2] if isinstance(v.node.op, Constant)]
    return inputs[1] if [b.tolist() for b in bounds] == [0, count - 1] else index


@traces("while")
def while_(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    loop = jx.while_params(params)
    condition = ctx.graph(loop.cond_jaxpr, "cond")
    body = ctx.graph(loop.body_jaxpr, "body")
    consts = loop.cond_consts + loop.body_consts
    for_cond = (*ctx.constants(loop.cond_jaxpr), *operands[: loop.cond_consts])
    for_body = (*ctx.constants(loop.body_jaxpr), *operands[loop.cond_consts : consts])
    carry = operands[consts:]
    effects = ctx.effects(loop.body_jaxpr)
    if condition.effects:
        return _loop_with_effects_first(ctx, loop, for_cond, for_body, carry)
    if condition.outputs[0].type.shape:
        condition, body = _batched_loop(condition, body, len(for_cond), len(for_body))
        for_body = (*for_cond, *for_body)
    op = While(cond=condition, body=body, cond_consts=len(for_cond), body_consts=len(for_body))
    made = op(*for_cond, *for_body, *carry, *ctx.tokens(effects))
    return ctx.without_tokens(made, effects)


@traces("scan")
def scan(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    loop = jx.scan_params(params)
    body = ctx.graph(loop.jaxpr, "body")
    captured = ctx.constants(loop.jaxpr)
    effects = ctx.effects(loop.jaxpr)
    op = Scan(
        body=body,
        length=ctx.dim(loop.length),
        reverse=loop.reverse,
        num_consts=len(captured) + loop.num_consts,
        num_carry=loop.num_carry,
        unroll=loop.unroll,
    )
    made = op(*captured, *operands, *ctx.tokens(effects))
    return ctx.without_tokens(made, effects)


@traces("platform_index")
def platform_index(ctx: TraceContext, params: dict[str, Any]) -> Value:
    groups = tuple(tuple(map(str, group or ())) for group in params["platforms"])
    return PlatformIndex(platforms=groups)()


def _union(*kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for some in kinds for kind in some))


def _with_all(
    graph: Graph,
    captured: Sequence[Sequence[Value]],
    number: int,
    operands: Sequence[TensorType],
    own: Sequence[str],
    effects: Sequence[str],
) -> Graph:
    """A branch that takes the captured arrays and tokens of every branch, and uses its own."""
    types = [v.type for values in captured for v in values]
    leaves = _leaves([*types, *operands, *[TOKEN] * len(effects)])
    start = sum(map(len, captured[:number]))
    count = len(leaves) - len(effects)
    tokens = dict(zip(effects, leaves[count:], strict=True))
    arguments = (
        *leaves[start : start + len(captured[number])],
        *leaves[len(types) : count],
        *(tokens[kind] for kind in own),
    )
    outputs = _called(graph, arguments, own, tokens)
    return Graph(leaves, (), outputs, tokens.values(), name=graph.name)


def _called(
    graph: Graph, arguments: Sequence[Value], effects: Sequence[str], tokens: dict[str, Value]
) -> tuple[Value, ...]:
    """Results of a graph, called on arrays and tokens; its new tokens are put into ``tokens``."""
    results = _results(Call(body=graph, name=graph.name)(*arguments))
    count = len(results) - len(effects)
    tokens.update(zip(effects, results[count:], strict=True))
    return results[:count]


def _loop_with_effects_first(
    ctx: TraceContext,
    loop: jx.WhileParams,
    for_cond: Sequence[Value],
    for_body: Sequence[Value],
    carry: Sequence[Value],
) -> tuple[Value, ...]:
    """A loop whose condition has effects: it is asked before the loop and at the end of each turn.

    The truth is carried, so that the loop's own condition only reads it.
    """
    condition, body = ctx.graph(loop.cond_jaxpr, "cond"), ctx.graph(loop.body_jaxpr, "body")
    in_cond, in_body = ctx.effects(loop.cond_jaxpr), ctx.effects(loop.body_jaxpr)
    effects = _union(in_cond, in_body)
    asked = Call(body=condition, name="cond")(*for_cond, *carry, *ctx.tokens(in_cond))
    (truth,) = ctx.without_tokens(asked, in_cond)

    leaves = _leaves([truth.type, *(v.type for v in carry)])
    outcome = _any(leaves[0]) if truth.type.shape else leaves[0]
    reads = Graph(leaves, (), (outcome,), name="cond")

    values = _leaves([v.type for v in (*for_cond, *for_body, truth, *carry)])
    consts = len(for_cond) + len(for_body)
    inner_cond, inner_body = values[: len(for_cond)], values[len(for_cond) : consts]
    held, old = values[consts], values[consts + 1 :]
    starts = [Input(name=f"token_{i}", dtype=DType.TOKEN, shape=())() for i in range(len(effects))]
    tokens = dict(zip(effects, starts, strict=True))
    new = _called(body, (*inner_body, *old, *(tokens[k] for k in in_body)), in_body, tokens)
    if truth.type.shape:
        new = tuple(_choose(held, n, o) for n, o in zip(new, old, strict=True))
    asks = (*inner_cond, *new, *(tokens[k] for k in in_cond))
    again = _called(condition, asks, in_cond, tokens)
    turn = Graph((*values, *starts), (), (*again, *new), tokens.values(), name="body")

    op = While(cond=reads, body=turn, body_consts=consts)
    made = op(*for_cond, *for_body, truth, *carry, *ctx.tokens(effects))
    return ctx.without_tokens(made, effects)[1:]


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
    carry = rest[body_consts : len(rest) - len(body.effects)]
    truth = Call(body=condition, name="cond")(*for_cond, *carry)
    new = _results(Call(body=body, name="body")(*rest))
    kept = [_choose(truth, n, old) for n, old in zip(new, carry, strict=False)]
    tokens = new[len(carry) :]
    return any_holds, Graph(leaves, (), kept, tokens, name="body")


def _any(truth: Value) -> Value:
    return ReduceOr(axes=tuple(range(truth.rank)))(truth)


def _choose(truth: Value, on_true: Value, on_false: Value) -> Value:
    wide = BroadcastInDim(shape=on_true.shape, broadcast_dimensions=tuple(range(truth.rank)))
    return Select()(wide(truth), on_true, on_false)


def _leaves(types: Sequence[TensorType]) -> list[Value]:
    return [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]


def _results(made: Value | Sequence[Value]) -> tuple[Value, ...]:
    return (made,) if isinstance(made, Value) else tuple(made)
