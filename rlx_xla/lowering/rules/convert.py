"""Changes of element type, and identities that mean something to the compiler."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops import convert as ops
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules import arithmetic


@lowers(ops.Convert)
def convert(ctx: LoweringContext, op: ops.Convert, x: ir.Value) -> ir.Value:
    source, target = ctx.input_types[0], ctx.output_types[0]
    if source.dtype.is_complex and not target.dtype.is_complex:
        x = stablehlo.real(x)
        source = source.with_dtype(source.dtype.real)
    if target.dtype is DType.BOOL:
        kind = arithmetic.compare_kind(source.dtype)
        return arithmetic.compare(x, ctx.full(0, source), "NE", kind)
    if source.dtype is DType.F4E2M1FN and target.dtype.is_integer:
        # XLA rounds the integer's limits to f4, where its largest number then saturates.
        x = stablehlo.convert(ctx.mlir_type(source.with_dtype(DType.F32)), x)
    return stablehlo.convert(ctx.result_types[0], x)


@lowers(ops.BitcastConvert)
def bitcast_convert(ctx: LoweringContext, op: ops.BitcastConvert, x: ir.Value) -> ir.Value:
    return stablehlo.bitcast_convert(ctx.result_types[0], x)


@lowers(ops.ReducePrecision)
def reduce_precision(ctx: LoweringContext, op: ops.ReducePrecision, x: ir.Value) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    exponent, mantissa = (
        ir.IntegerAttr.get(i32, bits) for bits in (op.exponent_bits, op.mantissa_bits)
    )
    return stablehlo.reduce_precision(x, exponent, mantissa)


@lowers(ops.Copy, ops.StopGradient)
def identity(ctx: LoweringContext, op: ops.Copy | ops.StopGradient, x: ir.Value) -> ir.Value:
    return x


@lowers(ops.OptimizationBarrier)
def optimization_barrier(
    ctx: LoweringContext, op: ops.OptimizationBarrier, *xs: ir.Value
) -> Sequence[ir.Value]:
    if not xs:
        return []
    return list(stablehlo.OptimizationBarrierOp(list(xs)).results)
