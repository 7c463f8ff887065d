"""Effects."""

from __future__ import annotations

from rlx.ops.effect import CreateToken
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers


@lowers(CreateToken)
def create_token(ctx: LoweringContext, op: CreateToken) -> ir.Value:
    return stablehlo.create_token()
