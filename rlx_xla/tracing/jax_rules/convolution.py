"""The general convolution."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ops.convolution import ConvGeneralDilated
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule
from rlx_xla.tracing.jax_rules.dot import dot_precision, preferred


@to_jax_rule(ConvGeneralDilated)
def conv_general_dilated(ctx: JaxContext, op: ConvGeneralDilated, lhs: Any, rhs: Any) -> Any:
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
        precision=dot_precision(op.precision),
        preferred_element_type=preferred(op),
    )
