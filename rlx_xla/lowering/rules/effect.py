"""Effects."""

from __future__ import annotations

from rlx.ops.effect import AfterAll, CreateToken
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers


@lowers(CreateToken)
def create_token(ctx: LoweringContext, op: CreateToken) -> ir.Value:
    return stablehlo.create_token()


@lowers(AfterAll)
def after_all(ctx: LoweringContext, op: AfterAll, *tokens: ir.Value) -> ir.Value:
    return stablehlo.after_all(tokens)
