"""Layouts, slices, joins and counters.

A PRNG key array is u32 with trailing axes inside the graph, while parameters speak of the key
array's own axes: the rules append what concerns the trailing ones.
"""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Value
from rlx.ops.shape import (
    BroadcastInDim,
    Concatenate,
    DimValue,
    Iota,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Split,
    Tile,
    Transpose,
)
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces

Params = dict[str, Any]


def key_shape(ctx: TraceContext, position: int = 0) -> tuple[int, ...]:
    """Sizes of the trailing axes that a key array has in the graph; empty for plain arrays."""
    found = ctx.in_types[position].shape[len(ctx.in_avals[position].shape) :]
    return tuple(int(size) for size in found)


@traces("broadcast_in_dim")
def broadcast_in_dim(ctx: TraceContext, params: Params, x: Value, *sizes: Value) -> Value:
    # Values of dynamic sizes may follow x; the result's type already says them.
    extra = len(key_shape(ctx))
    rank = ctx.out_type.rank
    axes = (*params["broadcast_dimensions"], *range(rank - extra, rank))
    return BroadcastInDim(shape=ctx.out_type.shape, broadcast_dimensions=axes)(x)


@traces("reshape")
def reshape(ctx: TraceContext, params: Params, x: Value, *sizes: Value) -> Value:
    order = params["dimensions"]
    if order is not None:
        x = _transpose(ctx, order, x)
    return _reshape(ctx, x)


@traces("squeeze", "expand_dims")
def same_elements(ctx: TraceContext, params: Params, x: Value) -> Value:
    return _reshape(ctx, x)


@traces("transpose")
def transpose(ctx: TraceContext, params: Params, x: Value) -> Value:
    return _transpose(ctx, params["permutation"], x)


@traces("rev")
def rev(ctx: TraceContext, params: Params, x: Value) -> Value:
    return Reverse(axes=tuple(params["dimensions"]))(x)


@traces("slice")
def slice(ctx: TraceContext, params: Params, x: Value) -> Value:
    extra = key_shape(ctx)
    starts, limits = ctx.shape(params["start_indices"]), ctx.shape(params["limit_indices"])
    steps = params["strides"]
    strides = (1,) * len(starts) if steps is None else tuple(int(step) for step in steps)
    return Slice(
        start_indices=(*starts, *(0 for _ in extra)),
        limit_indices=(*limits, *extra),
        strides=(*strides, *(1 for _ in extra)),
    )(x)


@traces("split")
def split(ctx: TraceContext, params: Params, x: Value) -> tuple[Value, ...]:
    parts = Split(axis=params["axis"], sizes=ctx.shape(params["sizes"]))(x)
    return parts if isinstance(parts, tuple) else (parts,)


@traces("concatenate")
def concatenate(ctx: TraceContext, params: Params, *xs: Value) -> Value:
    return Concatenate(axis=params["dimension"])(*xs)


@traces("stack")
def stack(ctx: TraceContext, params: Params, *xs: Value) -> Value:
    axis = params["axis"]
    shape = xs[0].type.shape
    column = (*shape[:axis], 1, *shape[axis:])
    return Concatenate(axis=axis)(*(Reshape(shape=column)(x) for x in xs))


@traces("unstack")
def unstack(ctx: TraceContext, params: Params, x: Value) -> tuple[Value, ...]:
    parts = Split(axis=params["axis"], sizes=(1,) * len(ctx.out_types))(x)
    results = parts if isinstance(parts, tuple) else (parts,)
    return tuple(
        Reshape(shape=t.shape)(part) for part, t in zip(results, ctx.out_types, strict=True)
    )


@traces("tile")
def tile(ctx: TraceContext, params: Params, x: Value) -> Value:
    return Tile(reps=(*ctx.shape(params["reps"]), *(1 for _ in key_shape(ctx))))(x)


@traces("pad")
def pad(ctx: TraceContext, params: Params, x: Value, padding_value: Value) -> Value:
    if key_shape(ctx):
        return NotImplemented  # the padding key is no scalar of the graph
    config = params["padding_config"]
    return Pad(
        low=ctx.shape([low for low, _, _ in config]),
        high=ctx.shape([high for _, high, _ in config]),
        interior=tuple(int(inner) for _, _, inner in config),
    )(x, padding_value)


@traces("iota")
def iota(ctx: TraceContext, params: Params, *sizes: Value) -> Value:
    out = ctx.out_type
    return Iota(dtype=out.dtype, shape=out.shape, axis=params["dimension"])()


@traces("empty", "empty2")
def empty(ctx: TraceContext, params: Params, *sizes: Value) -> Value:
    return ctx.full(0, ctx.out_type)


@traces("dim_as_value")
def dim_as_value(ctx: TraceContext, params: Params) -> Value:
    return DimValue(dim=ctx.dim(params["dim"]), dtype=ctx.out_type.dtype)()


def _reshape(ctx: TraceContext, x: Value) -> Value:
    return Reshape(shape=ctx.out_type.shape)(x)


def _transpose(ctx: TraceContext, order: Any, x: Value) -> Value:
    rank = len(order)
    return Transpose(permutation=(*order, *range(rank, rank + len(key_shape(ctx)))))(x)
