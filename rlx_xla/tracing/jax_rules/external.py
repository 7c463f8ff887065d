"""Opaque nodes: their live equation, or the StableHLO that was saved."""

from __future__ import annotations

from typing import Any

from rlx.ops.external import External
from rlx_xla.tracing.evaluation import JaxContext, arrays_only
from rlx_xla.tracing.external import LiveEquation
from rlx_xla.tracing.foreign import ForeignProgram
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(External)
def external(ctx: JaxContext, op: External, *operands: Any) -> Any:
    arrays = arrays_only(ctx, operands)
    if op.live is not None and isinstance(op.live.value, LiveEquation):
        return ctx.with_tokens(op.live.value.function(*arrays))
    types = [t for t in ctx.out_types if str(t) != "token"]
    program = ForeignProgram(op, tuple(ctx.avals(types)))
    return ctx.with_tokens(program.bind(arrays))
