"""The general convolution."""

from __future__ import annotations

import numpy as np

from rlx.dtypes import DType
from rlx.ops.convolution import ConvGeneralDilated
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, bool_array, dense, i64, i64_array
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.dot import operand_dtype, precision_attribute
from rlx_xla.lowering.rules.reduction import convert


@lowers(ConvGeneralDilated)
def conv_general_dilated(
    ctx: LoweringContext, op: ConvGeneralDilated, lhs: ir.Value, rhs: ir.Value
) -> ir.Value:
    result = ctx.output_types[0].dtype
    if result.is_complex and ctx.platform != "tpu":
        return _complex(ctx, op, lhs, rhs, result.real)
    wide = result.compute if ctx.platform == "cpu" else result
    if ctx.platform == "cpu":
        left, right = (t.dtype for t in ctx.input_types)
        lhs = convert(ctx, lhs, operand_dtype(left, wide))
        rhs = convert(ctx, rhs, operand_dtype(right, wide))
    return convert(ctx, _convolve(ctx, op, lhs, rhs, wide), result)


def _complex(
    ctx: LoweringContext, op: ConvGeneralDilated, lhs: ir.Value, rhs: ir.Value, part: DType
) -> ir.Value:
    """Three real products: XLA has no fast complex convolution on CPU and none on GPU."""
    a, b = (convert(ctx, x, part) for x in _parts(ctx, lhs, ctx.input_types[0].dtype))
    c, d = (convert(ctx, x, part) for x in _parts(ctx, rhs, ctx.input_types[1].dtype))
    k1 = _convolve(ctx, op, stablehlo.add(a, b), c, part)
    k2 = _convolve(ctx, op, a, stablehlo.subtract(d, c), part)
    k3 = _convolve(ctx, op, b, stablehlo.add(c, d), part)
    return stablehlo.complex(stablehlo.subtract(k1, k3), stablehlo.add(k1, k2))


def _parts(ctx: LoweringContext, x: ir.Value, dtype: DType) -> tuple[ir.Value, ir.Value]:
    if dtype.is_complex:
        return stablehlo.real(x), stablehlo.imag(x)
    zero = ctx.constant(0, dtype)
    return x, stablehlo.broadcast_in_dim(x.type, zero, i64_array([]))


def _convolve(
    ctx: LoweringContext, op: ConvGeneralDilated, lhs: ir.Value, rhs: ir.Value, dtype: DType
) -> ir.Value:
    spatial = len(op.window_strides)
    numbers = stablehlo.ConvDimensionNumbers.get(
        input_batch_dimension=op.lhs_spec[0],
        input_feature_dimension=op.lhs_spec[1],
        input_spatial_dimensions=list(op.lhs_spec[2:]),
        kernel_output_feature_dimension=op.rhs_spec[0],
        kernel_input_feature_dimension=op.rhs_spec[1],
        kernel_spatial_dimensions=list(op.rhs_spec[2:]),
        output_batch_dimension=op.out_spec[0],
        output_feature_dimension=op.out_spec[1],
        output_spatial_dimensions=list(op.out_spec[2:]),
    )
    return stablehlo.convolution(
        ctx.mlir_type(ctx.output_types[0].with_dtype(dtype)),
        lhs,
        rhs,
        dimension_numbers=numbers,
        feature_group_count=i64(op.feature_group_count),
        batch_group_count=i64(op.batch_group_count),
        window_strides=i64_array(op.window_strides),
        padding=dense(np.array(op.padding, np.int64).reshape(spatial, 2)),
        lhs_dilation=i64_array(op.lhs_dilation),
        rhs_dilation=i64_array(op.rhs_dilation),
        window_reversal=bool_array([False] * spatial),
        precision_config=precision_attribute(op.precision),
    )
