"""Reductions; JAX's `reduce_*` promote nothing, so the rules are one to one."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import as_dtype
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ops.reduction import (
    Argmax,
    Argmin,
    CumLogSumExp,
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    Reduce,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
)
from rlx_xla._jax_compat.jaxpr import ClosedJaxpr
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces


def _axes(params: dict[str, Any]) -> tuple[int, ...]:
    return tuple(sorted(int(a) for a in params["axes"]))


@traces("reduce_sum")
def reduce_sum(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ReduceSum(axes=_axes(params))(x)


@traces("reduce_prod")
def reduce_prod(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ReduceProd(axes=_axes(params))(x)


@traces("reduce_max")
def reduce_max(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    if x.dtype.is_complex:
        return NotImplemented
    return ReduceMax(axes=_axes(params))(x)


@traces("reduce_min")
def reduce_min(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    if x.dtype.is_complex:
        return NotImplemented
    return ReduceMin(axes=_axes(params))(x)


@traces("reduce_and")
def reduce_and(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ReduceAnd(axes=_axes(params))(x)


@traces("reduce_or")
def reduce_or(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ReduceOr(axes=_axes(params))(x)


@traces("reduce_xor")
def reduce_xor(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ReduceXor(axes=_axes(params))(x)


@traces("argmax")
def argmax(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    (axis,) = params["axes"]
    return Argmax(axis=int(axis), index_dtype=as_dtype(params["index_dtype"]))(x)


@traces("argmin")
def argmin(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    (axis,) = params["axes"]
    return Argmin(axis=int(axis), index_dtype=as_dtype(params["index_dtype"]))(x)


def _cumulative(op: type[Op], params: dict[str, Any], x: Value) -> Value:
    made: Any = op
    return made(axis=int(params["axis"]), reverse=bool(params["reverse"]), exclusive=False)(x)


@traces("cumsum")
def cumsum(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _cumulative(CumSum, params, x)


@traces("cumprod")
def cumprod(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _cumulative(CumProd, params, x)


@traces("cummax")
def cummax(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return NotImplemented if x.dtype.is_complex else _cumulative(CumMax, params, x)


@traces("cummin")
def cummin(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return NotImplemented if x.dtype.is_complex else _cumulative(CumMin, params, x)


@traces("cumlogsumexp")
def cumlogsumexp(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _cumulative(CumLogSumExp, params, x) if x.dtype.is_float else NotImplemented


def scalar_body(ctx: TraceContext, params: dict[str, Any], name: str) -> Graph | None:
    """The computation of a general reduction as a graph; None when it captures arrays."""
    jaxpr = params["jaxpr"]
    captured = params.get("consts", getattr(jaxpr, "consts", ()))
    if captured or getattr(jaxpr, "effects", None):
        return None
    closed = jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())
    return ctx.graph(closed, name)


@traces("reduce")
def reduce(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> tuple[Value, ...]:
    body = scalar_body(ctx, params, "reduce_body")
    if body is None:
        return NotImplemented
    axes = tuple(sorted(int(a) for a in params["dimensions"]))
    made = Reduce(axes=axes, body=body)(*operands)
    return made if isinstance(made, tuple) else (made,)
