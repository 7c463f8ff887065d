"""User code: functions with their own derivatives, and ops by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.ir.derivatives import rule_graphs
from rlx.ops.custom import Custom, CustomFn, registered_custom
from rlx.types import TensorType
from rlx_xla.lowering.host import host_function
from rlx_xla.tracing import own_rules
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(CustomFn)
def custom_fn(ctx: JaxContext, op: CustomFn, *operands: Any) -> Any:
    def make() -> Any:
        evaluator = ctx.evaluator
        rules = (op.vjp, op.jvp)
        vjp, jvp = (None if rule is None else evaluator.function(rule) for rule in rules)
        takes = op.jvp is not None and len(op.jvp.inputs) > len(op.fwd.inputs) + sum(
            t.dtype.is_float or t.dtype.is_complex for t in ctx.in_types
        )
        # Without rules JAX differentiates the body, and a part of it may go by the same name.
        body = evaluator.function(op.fwd)
        if op.vjp is not None or op.jvp is not None:
            body = own_rules.marked(op, op.name, body)
        return own_rules.with_rules(
            body, ctx.in_types, ctx.out_types, vjp, jvp, jvp_takes_results=takes
        )

    return ctx.evaluator.kept(("custom_fn", op), op.fwd, make)(*operands)


def _by_name(op: Custom, types: Sequence[TensorType]) -> bool:
    """Whether its name alone tells tracing what a function stands for: the body is compared."""
    del types
    meaning = registered_custom(op.name)
    return meaning.decompose is not None and meaning.vjp is None and meaning.jvp is None


@to_jax_rule(Custom, named=_by_name)
def custom(ctx: JaxContext, op: Custom, *operands: Any) -> Any:
    meaning = registered_custom(op.name)
    if meaning.decompose is None:
        body = host_function(op, [ctx.shape(t.shape) for t in ctx.out_types], ctx.out_types)
    else:
        body = ctx.function(op.graph(ctx.in_types))
    if _by_name(op, ctx.in_types):
        return body(*operands)
    if meaning.vjp is None and meaning.jvp is None:
        # A host function has no derivative that could go by its name.
        return own_rules.marked(op, op.name, body)(*operands)
    graphs = rule_graphs(op, ctx.in_types, meaning.vjp, meaning.jvp)
    vjp, jvp = (None if graph is None else ctx.function(graph) for graph in graphs)
    return own_rules.with_rules(
        own_rules.marked(op, op.name, body),
        ctx.in_types,
        ctx.out_types,
        vjp,
        jvp,
        jvp_takes_results=True,
    )(*operands)
