"""Ops by name: their decomposition, or a call back to the host."""

from __future__ import annotations

from rlx.ops.custom import Custom, registered_custom
from rlx.passes.decompose import decompose
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.host import call_host
from rlx_xla.lowering.registry import lowers, rule_for


@lowers(Custom)
def custom(ctx: LoweringContext, op: Custom, *operands: ir.Value) -> list[ir.Value]:
    if registered_custom(op.name).decompose is None:
        return call_host(ctx, op, operands)
    graph = op.graph(ctx.input_types)
    made = decompose(graph, lambda inner: rule_for(type(inner), ctx.platform) is None)
    return ctx.inline(made, operands)
