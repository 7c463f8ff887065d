"""Contractions and convolutions."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx import ops
from rlx.ops.dot import DEFAULT_PRECISION, DotPrecision
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


def _precision(given: tuple[DotPrecision, ...]) -> Any:
    if given == DEFAULT_PRECISION:
        return None
    return tuple(lax.Precision[p.name] for p in given)


def _preferred(op: Any) -> Any:
    dtype = op.preferred_element_type
    return None if dtype is None else dtype.numpy


@to_jax_rule(ops.DotGeneral)
def dot_general(ctx: JaxContext, op: ops.DotGeneral, lhs: Any, rhs: Any) -> Any:
    return lax.dot_general(
        lhs,
        rhs,
        ((op.lhs_contracting, op.rhs_contracting), (op.lhs_batch, op.rhs_batch)),
        precision=_precision(op.precision),
        preferred_element_type=_preferred(op),
    )


@to_jax_rule(ops.ConvGeneralDilated)
def conv_general_dilated(ctx: JaxContext, op: ops.ConvGeneralDilated, lhs: Any, rhs: Any) -> Any:
    return lax.conv_general_dilated(
        lhs,
        rhs,
        op.window_strides,
        [(ctx.size(low), ctx.size(high)) for low, high in op.padding],
        lhs_dilation=op.lhs_dilation,
        rhs_dilation=op.rhs_dilation,
        dimension_numbers=lax.ConvDimensionNumbers(op.lhs_spec, op.rhs_spec, op.out_spec),
        feature_group_count=op.feature_group_count,
        batch_group_count=op.batch_group_count,
        precision=_precision(op.precision),
        preferred_element_type=_preferred(op),
    )
