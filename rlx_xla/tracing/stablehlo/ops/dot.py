"""Contractions and convolutions."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.dot import DEFAULT_PRECISION, DotGeneral, DotPrecision
from rlx.ops.shape import Reverse
from rlx_xla._jax_compat.mlir import stablehlo
from rlx_xla.tracing.stablehlo.context import OpContext
from rlx_xla.tracing.stablehlo.registry import imports


def _precision(ctx: OpContext) -> tuple[DotPrecision, ...]:
    if not ctx.has("precision_config"):
        return DEFAULT_PRECISION
    words = [str(p).split()[-1].rstrip(">") for p in ctx.attribute("precision_config")]
    found = tuple(DotPrecision[w] for w in words)
    return found if len(found) == 2 else DEFAULT_PRECISION


def _preferred(ctx: OpContext, lhs: Value, rhs: Value) -> DType | None:
    """The result's dtype, unless it is what the operands give anyway."""
    result = ctx.out_types[0].dtype
    return None if lhs.type.dtype is rhs.type.dtype is result else result


@imports("stablehlo.dot_general")
def dot_general(ctx: OpContext, lhs: Value, rhs: Value) -> Any:
    """The general contraction; one with a named algorithm is left to XLA."""
    if ctx.has("algorithm"):
        return NotImplemented
    numbers = stablehlo.DotDimensionNumbers(ctx.attribute("dot_dimension_numbers"))
    return DotGeneral(
        lhs_contracting=tuple(numbers.lhs_contracting_dimensions),
        rhs_contracting=tuple(numbers.rhs_contracting_dimensions),
        lhs_batch=tuple(numbers.lhs_batching_dimensions),
        rhs_batch=tuple(numbers.rhs_batching_dimensions),
        precision=_precision(ctx),
        preferred_element_type=_preferred(ctx, lhs, rhs),
    )(lhs, rhs)


@imports("stablehlo.dot")
def dot(ctx: OpContext, lhs: Value, rhs: Value) -> Any:
    """The old product of vectors and matrices."""
    return DotGeneral(
        lhs_contracting=(lhs.rank - 1,),
        rhs_contracting=(0,),
        precision=_precision(ctx),
        preferred_element_type=_preferred(ctx, lhs, rhs),
    )(lhs, rhs)


@imports("stablehlo.convolution")
def convolution(ctx: OpContext, lhs: Value, rhs: Value) -> Any:
    """The general convolution; a reversed window is a reversed kernel."""
    numbers = stablehlo.ConvDimensionNumbers(ctx.attribute("dimension_numbers"))
    spatial = tuple(numbers.kernel_spatial_dimensions)
    ones = (1,) * len(spatial)
    turned = tuple(a for a, r in zip(spatial, ctx.flags("window_reversal"), strict=False) if r)
    if turned:
        rhs = Reverse(axes=tuple(sorted(turned)))(rhs)
    return ConvGeneralDilated(
        window_strides=ctx.integers("window_strides", ones),
        padding=ctx.pairs("padding", len(spatial)),
        lhs_dilation=ctx.integers("lhs_dilation", ones),
        rhs_dilation=ctx.integers("rhs_dilation", ones),
        lhs_spec=(
            numbers.input_batch_dimension,
            numbers.input_feature_dimension,
            *numbers.input_spatial_dimensions,
        ),
        rhs_spec=(
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *spatial,
        ),
        out_spec=(
            numbers.output_batch_dimension,
            numbers.output_feature_dimension,
            *numbers.output_spatial_dimensions,
        ),
        feature_group_count=ctx.integer("feature_group_count", 1),
        batch_group_count=ctx.integer("batch_group_count", 1),
        precision=_precision(ctx),
        preferred_element_type=_preferred(ctx, lhs, rhs),
    )(lhs, rhs)
