"""Comparisons and choices between values."""

from __future__ import annotations

from rlx.ops.compare import Compare, Select
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules import arithmetic


@lowers(Compare)
def compare(ctx: LoweringContext, op: Compare, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    kind = arithmetic.compare_kind(ctx.input_types[0].dtype, total_order=op.total_order)
    return arithmetic.compare(lhs, rhs, op.direction.name, kind)


@lowers(Select)
def select(
    ctx: LoweringContext, op: Select, pred: ir.Value, on_true: ir.Value, on_false: ir.Value
) -> ir.Value:
    return stablehlo.select(pred, on_true, on_false)
