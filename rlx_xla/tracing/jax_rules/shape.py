"""Layouts, slices, joins and counters."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ops import shape as ops
from rlx_xla._jax_compat import control_flow as cf
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(ops.BroadcastInDim)
def broadcast_in_dim(ctx: JaxContext, op: ops.BroadcastInDim, x: Any) -> Any:
    return lax.broadcast_in_dim(x, ctx.shape(op.shape), op.broadcast_dimensions)


@to_jax_rule(ops.Reshape)
def reshape(ctx: JaxContext, op: ops.Reshape, x: Any) -> Any:
    return lax.reshape(x, ctx.shape(op.shape))


@to_jax_rule(ops.Transpose)
def transpose(ctx: JaxContext, op: ops.Transpose, x: Any) -> Any:
    return lax.transpose(x, op.permutation)


@to_jax_rule(ops.Reverse)
def reverse(ctx: JaxContext, op: ops.Reverse, x: Any) -> Any:
    return lax.rev(x, op.axes)


@to_jax_rule(ops.Slice)
def slice(ctx: JaxContext, op: ops.Slice, x: Any) -> Any:
    return lax.slice(x, ctx.shape(op.start_indices), ctx.shape(op.limit_indices), op.strides)


@to_jax_rule(ops.Split)
def split(ctx: JaxContext, op: ops.Split, x: Any) -> Any:
    return lax.split(x, ctx.shape(op.sizes), op.axis)


@to_jax_rule(ops.Concatenate)
def concatenate(ctx: JaxContext, op: ops.Concatenate, *xs: Any) -> Any:
    return lax.concatenate(xs, op.axis)


@to_jax_rule(ops.Pad)
def pad(ctx: JaxContext, op: ops.Pad, x: Any, padding_value: Any) -> Any:
    config = zip(ctx.shape(op.low), ctx.shape(op.high), op.interior, strict=True)
    return lax.pad(x, padding_value, tuple(config))


@to_jax_rule(ops.Iota)
def iota(ctx: JaxContext, op: ops.Iota) -> Any:
    return lax.broadcasted_iota(op.dtype.numpy, ctx.shape(op.shape), op.axis)


@to_jax_rule(ops.DimValue, named=lambda op, types: isinstance(op.dim, int))
def dim_value(ctx: JaxContext, op: ops.DimValue) -> Any:
    return cf.size_value(ctx.size(op.dim), op.dtype.numpy)
