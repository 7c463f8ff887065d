"""The general contraction."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.dot import DotGeneral, DotPrecision
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.reduction import convert


def precision_attribute(precision: Sequence[DotPrecision]) -> ir.ArrayAttr:
    """``[DEFAULT, HIGHEST]`` as an attribute."""
    return ir.ArrayAttr.get([stablehlo.PrecisionAttr.get(p.value.upper()) for p in precision])


def operand_dtype(dtype: DType, result: DType) -> DType:
    """What XLA's CPU needs an operand to be: it has no products of sub-byte types."""
    if dtype.bits >= 8:
        return dtype
    return result if result.bits >= 8 else result.compute


@lowers(DotGeneral)
def dot_general(ctx: LoweringContext, op: DotGeneral, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    left, right = (t.dtype for t in ctx.input_types)
    result = ctx.output_types[0]
    wide = result.dtype
    if ctx.platform == "cpu":
        # f32 results of narrow operands are 2 to 3 times as fast here as narrow results.
        wide = result.dtype.compute
        lhs = convert(ctx, lhs, operand_dtype(left, wide))
        rhs = convert(ctx, rhs, operand_dtype(right, wide))
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(op.lhs_batch),
        rhs_batching_dimensions=list(op.rhs_batch),
        lhs_contracting_dimensions=list(op.lhs_contracting),
        rhs_contracting_dimensions=list(op.rhs_contracting),
    )
    product = stablehlo.dot_general(
        ctx.mlir_type(result.with_dtype(wide)),
        lhs,
        rhs,
        numbers,
        precision_config=precision_attribute(op.precision),
    )
    return convert(ctx, product, result.dtype)
