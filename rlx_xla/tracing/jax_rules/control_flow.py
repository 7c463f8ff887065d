"""Calls, choices and loops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rlx.errors import TraceError
from rlx.ir.graph import same
from rlx.ops.control_flow import Call, CallKind, Cond, PlatformIndex, Scan, While
from rlx_xla._jax_compat import control_flow as cf
from rlx_xla.tracing import composites
from rlx_xla.tracing.evaluation import JaxContext, arrays_only
from rlx_xla.tracing.jax_registry import to_jax_rule
from rlx_xla.tracing.live import LiveCall


@to_jax_rule(Call)
def call(ctx: JaxContext, op: Call, *operands: Any) -> Any:
    arrays = arrays_only(ctx, operands)
    live = _live(op)
    if live is not None:
        return ctx.with_tokens(live.equation.function(*arrays))
    evaluator = ctx.evaluator
    key = (op.kind, op.name, evaluator.lost_rules)
    function = evaluator.kept(key, op.body, lambda: _function(ctx, op))
    return ctx.with_tokens(function(*arrays))


def _live(op: Call) -> LiveCall | None:
    """The JAX equation behind a call, as long as the body is the one it was made from."""
    if op.kind is CallKind.JIT or op.live is None:
        return None
    live = op.live.value
    if not isinstance(live, LiveCall) or live.captured:
        return None
    return live if live.body is op.body or same(live.body, op.body) else None


def _function(ctx: JaxContext, op: Call) -> Callable[..., Any]:
    body = functools.partial(ctx.evaluator.function(op.body))
    name = op.name or op.body.name
    if op.kind is CallKind.JIT:
        return jax.jit(_named(body, composites.call_name(name, op.body)))
    if op.kind is CallKind.REMAT:
        return jax.checkpoint(_named(body, name))
    if ctx.evaluator.lost_rules == "differentiate":
        return jax.jit(_named(body, composites.call_name(name, op.body)))
    return _refusing(_named(body, name), op, name, str(ctx.location))


def _refusing(body: Callable[..., Any], op: Call, name: str, where: str) -> Callable[..., Any]:
    """A function with a rule of its own, which is lost: differentiating or batching it raises."""
    named = f"{name!r}{' at ' + where if where else ''}"
    lost = "which is lost: the graph was saved, or its body changed since it was traced"

    def refuse(*_: Any) -> Any:
        raise TraceError(
            f"to_jax: differentiating {named} is required to use its own derivative rule, {lost}. "
            "Trace the function again and save rlx_xla.write_rules(graph), or accept the "
            "derivative of the body: to_jax(graph, lost_rules='differentiate')."
        )

    def refuse_batch(*_: Any) -> Any:
        raise TraceError(
            f"to_jax: vmap of {named} is required to use its own rule for batches, {lost}. Trace "
            "the batched function, or accept the batched body: "
            "to_jax(graph, lost_rules='differentiate')."
        )

    if op.kind is CallKind.CUSTOM_VMAP:
        made: Any = jax.custom_batching.custom_vmap(body)
        made.def_vmap(refuse_batch)
    elif op.kind is CallKind.CUSTOM_JVP:
        made = jax.custom_jvp(body)
        made.defjvp(refuse)
    else:
        made = jax.custom_vjp(body)
        made.defvjp(refuse, refuse)
    return made


def _named(body: Callable[..., Any], name: str) -> Callable[..., Any]:
    def function(*arrays: Any) -> Any:
        return body(*arrays)

    function.__name__ = function.__qualname__ = name
    return function


@to_jax_rule(Cond)
def cond(ctx: JaxContext, op: Cond, index: Any, *operands: Any) -> Any:
    arrays = [a for a in operands if a is not None]
    producer = ctx.node.inputs[0].node.op
    platforms = producer.platforms if isinstance(producer, PlatformIndex) else None
    if index.dtype == bool:
        index = jax.lax.convert_element_type(index, "int32")
    elif platforms is None:
        # XLA takes the last branch for an index below 0; tracing drops a clamp to what there is.
        index = jax.lax.clamp(np.int32(0), index, np.int32(len(op.branches) - 1))
    branches = [ctx.function(branch) for branch in op.branches]
    return ctx.with_tokens(cf.cond(index, branches, arrays, platforms))


@to_jax_rule(PlatformIndex)
def platform_index(ctx: JaxContext, op: PlatformIndex) -> Any:
    return cf.platform_index(op.platforms)


@to_jax_rule(While)
def while_(ctx: JaxContext, op: While, *operands: Any) -> Any:
    consts = op.cond_consts + op.body_consts
    made = cf.while_(
        ctx.function(op.cond),
        ctx.function(op.body),
        operands[: op.cond_consts],
        operands[op.cond_consts : consts],
        [a for a in operands[consts:] if a is not None],
    )
    return ctx.with_tokens(made)


@to_jax_rule(Scan)
def scan(ctx: JaxContext, op: Scan, *operands: Any) -> Any:
    first = op.num_consts + op.num_carry
    made = cf.scan(
        ctx.function(op.body),
        operands[: op.num_consts],
        operands[op.num_consts : first],
        [a for a in operands[first:] if a is not None],
        length=ctx.size(op.length),
        reverse=op.reverse,
        unroll=op.unroll,
    )
    return ctx.with_tokens(made)
