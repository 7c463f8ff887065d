"""Reductions; JAX's `reduce_*` promote nothing, so the rules are one to one."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ir.operators import constant
from rlx.ops.arithmetic import Max, Min
from rlx.ops.io import Input
from rlx.ops.pooling import ReduceWindowGeneral
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
        body, initial = complex_order(Max, x.dtype)
        return _single(Reduce(axes=_axes(params), body=body)(x, initial))
    return ReduceMax(axes=_axes(params))(x)


@traces("reduce_min")
def reduce_min(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    if x.dtype.is_complex:
        body, initial = complex_order(Min, x.dtype)
        return _single(Reduce(axes=_axes(params), body=body)(x, initial))
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


def complex_order(op: type[Max | Min], dtype: DType) -> tuple[Graph, Value]:
    """JAX's order of complex numbers: a reduction's computation, and where it starts."""
    least = -np.inf if op is Max else np.inf
    return _order_body(op, dtype), constant(np.asarray(complex(least), dtype.numpy))


@functools.cache
def _order_body(op: type[Max | Min], dtype: DType) -> Graph:
    leaves: list[Value] = [Input(name=name, dtype=dtype, shape=())() for name in ("x0", "x1")]
    return Graph(leaves, (), (op()(*leaves),), name=f"complex_{op.op_name}")


def _ordered_scan(op: type[Max | Min], params: dict[str, Any], x: Value) -> Value:
    """A cumulative reduction as a window that ends, or begins, at each element."""
    axis, size = int(params["axis"]), x.shape[int(params["axis"])]
    if not isinstance(size, int):
        return NotImplemented
    if not size:
        return x
    body, initial = complex_order(op, x.dtype)
    ones, none = (1,) * x.rank, ((0, 0),) * x.rank
    pad = (0, size - 1) if params["reverse"] else (size - 1, 0)
    made = ReduceWindowGeneral(
        body=body,
        window_dimensions=(*ones[:axis], size, *ones[axis + 1 :]),
        window_strides=ones,
        padding=(*none[:axis], pad, *none[axis + 1 :]),
        base_dilation=ones,
        window_dilation=ones,
    )
    return _single(made(x, initial))


def _single(made: Any) -> Value:
    return made[0] if isinstance(made, tuple) else made


@traces("cumsum")
def cumsum(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _cumulative(CumSum, params, x)


@traces("cumprod")
def cumprod(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _cumulative(CumProd, params, x)


@traces("cummax")
def cummax(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _ordered_scan(Max, params, x) if x.dtype.is_complex else _cumulative(CumMax, params, x)


@traces("cummin")
def cummin(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return _ordered_scan(Min, params, x) if x.dtype.is_complex else _cumulative(CumMin, params, x)


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
