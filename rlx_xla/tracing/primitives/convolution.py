"""The general convolution."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Value
from rlx.ops.convolution import ConvGeneralDilated
from rlx_xla._jax_compat import placement
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.primitives.dot import dot_precision, preferred
from rlx_xla.tracing.registry import traces


@traces("conv_general_dilated")
def conv_general_dilated(
    ctx: TraceContext, params: dict[str, Any], lhs: Value, rhs: Value
) -> Value:
    precision = dot_precision(params.get("precision"))
    if precision is None or not placement.is_open(params.get("out_sharding")):
        return NotImplemented
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    return ConvGeneralDilated(
        window_strides=tuple(map(int, params["window_strides"])),
        padding=tuple((ctx.dim(low), ctx.dim(high)) for low, high in params["padding"]),
        lhs_dilation=tuple(map(int, params["lhs_dilation"])),
        rhs_dilation=tuple(map(int, params["rhs_dilation"])),
        lhs_spec=tuple(map(int, lhs_spec)),
        rhs_spec=tuple(map(int, rhs_spec)),
        out_spec=tuple(map(int, out_spec)),
        feature_group_count=int(params["feature_group_count"]),
        batch_group_count=int(params["batch_group_count"]),
        precision=precision,
        preferred_element_type=preferred(params, lhs, rhs, result=ctx.out_type.dtype),
    )(lhs, rhs)
