"""Reductions over sliding windows."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ops.arithmetic import Max, Min
from rlx.ops.pooling import (
    ReduceWindow,
    ReduceWindowGeneral,
    SelectAndGatherAdd,
    SelectAndScatterAdd,
    WindowKind,
    WindowSelect,
)
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.primitives.reduction import complex_order, scalar_body
from rlx_xla.tracing.registry import traces


def _window(ctx: TraceContext, params: dict[str, Any], *, dilations: bool = True) -> dict[str, Any]:
    """Attributes that all windowed ops have, from JAX's parameters."""
    rank = len(params["window_dimensions"])
    found: dict[str, Any] = {
        name: tuple(map(int, params[name])) for name in ("window_dimensions", "window_strides")
    }
    found["padding"] = tuple((ctx.dim(low), ctx.dim(high)) for low, high in params["padding"])
    if dilations:
        for name in ("base_dilation", "window_dilation"):
            found[name] = tuple(map(int, params.get(name) or (1,) * rank))
    return found


def _is_static(ctx: TraceContext, params: dict[str, Any]) -> bool:
    """Whether window and strides are numbers, which they are unless they follow a symbol."""
    sizes = (*params["window_dimensions"], *params["window_strides"])
    return all(isinstance(ctx.dim(n), int) for n in sizes)


def _plain(kind: WindowKind, ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    if not _is_static(ctx, params):
        return NotImplemented
    if x.dtype.is_complex and kind in (WindowKind.MAX, WindowKind.MIN):
        body, initial = complex_order(Max if kind is WindowKind.MAX else Min, x.dtype)
        made = ReduceWindowGeneral(body=body, **_window(ctx, params))(x, initial)
        return made[0] if isinstance(made, tuple) else made
    return ReduceWindow(kind=kind, **_window(ctx, params))(x)


@traces("reduce_window_sum")
def reduce_window_sum(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _plain(WindowKind.SUM, ctx, params, x)


@traces("reduce_window_max")
def reduce_window_max(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _plain(WindowKind.MAX, ctx, params, x)


@traces("reduce_window_min")
def reduce_window_min(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _plain(WindowKind.MIN, ctx, params, x)


@traces("reduce_window")
def reduce_window(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> tuple[Value, ...]:
    body = scalar_body(ctx, params, "window_body")
    if body is None or not _is_static(ctx, params):
        return NotImplemented
    made = ReduceWindowGeneral(body=body, **_window(ctx, params))(*operands)
    return made if isinstance(made, tuple) else (made,)


def _selected(params: dict[str, Any]) -> WindowSelect:
    return WindowSelect(params["select_prim"].name)


@traces("select_and_scatter_add")
def select_and_scatter_add(
    ctx: TraceContext, params: dict[str, Any], source: Value, operand: Value
) -> Value:
    if operand.dtype is DType.BOOL:  # the sum of truth values is whether any is true
        numbers = (source.convert(DType.I32), operand.convert(DType.I32))
        return select_and_scatter_add(ctx, params, *numbers).convert(DType.BOOL)
    number = operand.dtype.is_integer or operand.dtype.is_float
    if not number or not _is_static(ctx, params):
        return NotImplemented
    window = _window(ctx, params, dilations=False)
    return SelectAndScatterAdd(select=_selected(params), **window)(source, operand)


@traces("select_and_gather_add")
def select_and_gather_add(
    ctx: TraceContext, params: dict[str, Any], tangents: Value, operand: Value
) -> Value:
    if not operand.dtype.is_float or not _is_static(ctx, params):
        return NotImplemented
    return SelectAndGatherAdd(select=_selected(params), **_window(ctx, params))(tangents, operand)
