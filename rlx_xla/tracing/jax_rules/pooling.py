"""Reductions over sliding windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from rlx.ops import pooling as ops
from rlx.ops.pooling import WindowKind, identity
from rlx_xla._jax_compat import control_flow as cf
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


def _window(ctx: JaxContext, op: Any) -> dict[str, Any]:
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    padding = tuple((ctx.size(low), ctx.size(high)) for low, high in op.padding)
    return {**{name: getattr(op, name) for name in names}, "padding": padding}


_WINDOWED = {
    WindowKind.SUM: lax.add,
    WindowKind.PROD: lax.mul,
    WindowKind.MAX: lax.max,
    WindowKind.MIN: lax.min,
}


@to_jax_rule(ops.ReduceWindow)
def reduce_window(ctx: JaxContext, op: ops.ReduceWindow, x: Any) -> Any:
    initial = np.asarray(identity(op.kind, ctx.in_types[0].dtype))
    return lax.reduce_window(x, initial, _WINDOWED[op.kind], **_window(ctx, op))


@to_jax_rule(ops.ReduceWindowGeneral)
def reduce_window_general(ctx: JaxContext, op: ops.ReduceWindowGeneral, *operands: Any) -> Any:
    half = len(operands) // 2
    body = ctx.function(op.body)
    return cf.reduce_window(body, operands[:half], operands[half:], **_window(ctx, op))


def _selection(op: Any) -> Any:
    return lax.ge_p if op.select is ops.WindowSelect.GE else lax.le_p


@to_jax_rule(ops.SelectAndScatterAdd)
def select_and_scatter_add(
    ctx: JaxContext, op: ops.SelectAndScatterAdd, source: Any, operand: Any
) -> Any:
    return lax.select_and_scatter_add_p.bind(
        source,
        operand,
        select_prim=_selection(op),
        window_dimensions=op.window_dimensions,
        window_strides=op.window_strides,
        padding=tuple((ctx.size(low), ctx.size(high)) for low, high in op.padding),
    )


@to_jax_rule(ops.SelectAndGatherAdd)
def select_and_gather_add(
    ctx: JaxContext, op: ops.SelectAndGatherAdd, tangents: Any, operand: Any
) -> Any:
    return lax.select_and_gather_add_p.bind(
        tangents, operand, select_prim=_selection(op), **_window(ctx, op)
    )
