"""Constants. Inputs and params are arguments of the module."""

from __future__ import annotations

from rlx.ops.io import Constant
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers


@lowers(Constant)
def constant(ctx: LoweringContext, op: Constant) -> ir.Value:
    return ctx.constant(op.value.array)
