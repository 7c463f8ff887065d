"""Elementwise arithmetic."""

from __future__ import annotations

from rlx.ops.arithmetic import Add
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers


@lowers(Add)
def add(ctx: LoweringContext, op: Add, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return stablehlo.add(lhs, rhs)
