"""Constants, layouts, slices, joins and counters; dynamic forms whose shapes are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.shape import (
    BroadcastInDim,
    Concatenate,
    Iota,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from rlx_xla.tracing.stablehlo.context import OpContext, integer_constant
from rlx_xla.tracing.stablehlo.literals import constant_array
from rlx_xla.tracing.stablehlo.registry import imports


@imports("stablehlo.constant")
def constant_(ctx: OpContext) -> Value:
    """A constant; one element broadcast where all are alike."""
    type_ = ctx.out_types[0]
    array = constant_array(ctx.op, type_.dtype, tuple(int(str(d)) for d in type_.shape))
    return broadcast_to(constant(array), type_.shape)


@imports("stablehlo.iota", "stablehlo.dynamic_iota")
def iota(ctx: OpContext, *shape: Value) -> Any:
    """Counts along one axis."""
    type_ = ctx.out_types[0]
    if type_.dtype is DType.BOOL:
        return NotImplemented
    return Iota(dtype=type_.dtype, shape=type_.shape, axis=ctx.integer("iota_dimension"))()


@imports("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
def broadcast_in_dim(ctx: OpContext, x: Value, *shape: Value) -> Value:
    """Repetition along new axes and axes of one element."""
    axes = ctx.integers("broadcast_dimensions")
    wanted = ctx.out_types[0].shape
    if x.type.shape == wanted and axes == tuple(range(len(wanted))):
        return x
    return BroadcastInDim(shape=wanted, broadcast_dimensions=axes)(x)


@imports("stablehlo.broadcast")
def broadcast(ctx: OpContext, x: Value) -> Value:
    """New axes in front."""
    lead = len(ctx.integers("broadcast_sizes"))
    axes = tuple(range(lead, lead + x.rank))
    return BroadcastInDim(shape=ctx.out_types[0].shape, broadcast_dimensions=axes)(x)


@imports("stablehlo.reshape", "stablehlo.dynamic_reshape")
def reshape(ctx: OpContext, x: Value, *shape: Value) -> Value:
    """The same elements under the shape of the result."""
    wanted = ctx.out_types[0].shape
    return x if x.type.shape == wanted else Reshape(shape=wanted)(x)


@imports("stablehlo.transpose")
def transpose(ctx: OpContext, x: Value) -> Value:
    """Permuted axes."""
    return Transpose(permutation=ctx.integers("permutation"))(x)


@imports("stablehlo.reverse")
def reverse(ctx: OpContext, x: Value) -> Value:
    """Reversed axes."""
    return Reverse(axes=tuple(sorted(ctx.integers("dimensions"))))(x)


@imports("stablehlo.slice")
def slice_(ctx: OpContext, x: Value) -> Value:
    """A box with strides."""
    return Slice(
        start_indices=ctx.integers("start_indices"),
        limit_indices=ctx.integers("limit_indices"),
        strides=ctx.integers("strides"),
    )(x)


@imports("stablehlo.real_dynamic_slice")
def real_dynamic_slice(ctx: OpContext, x: Value, *bounds: Value) -> Any:
    """A box whose bounds are constants after all."""
    numbers = [integer_constant(b) for b in bounds]
    if None in numbers:
        return ctx.refuse("its bounds must be constants")
    starts, limits, strides = (n or () for n in numbers)
    return Slice(start_indices=starts, limit_indices=limits, strides=strides)(x)


@imports("stablehlo.concatenate")
def concatenate(ctx: OpContext, *xs: Value) -> Value:
    """Joined tensors."""
    return xs[0] if len(xs) == 1 else Concatenate(axis=ctx.integer("dimension"))(*xs)


@imports("stablehlo.pad")
def pad(ctx: OpContext, x: Value, padding_value: Value) -> Value:
    """Elements around and between."""
    return Pad(
        low=ctx.integers("edge_padding_low"),
        high=ctx.integers("edge_padding_high"),
        interior=ctx.integers("interior_padding"),
    )(x, padding_value)


@imports("stablehlo.dynamic_pad")
def dynamic_pad(ctx: OpContext, x: Value, padding_value: Value, *amounts: Value) -> Any:
    """Padding whose amounts are constants after all."""
    numbers = [integer_constant(a) for a in amounts]
    if None in numbers:
        return ctx.refuse("its amounts must be constants")
    low, high, interior = (n or () for n in numbers)
    return Pad(low=low, high=high, interior=interior)(x, padding_value)


@imports("stablehlo.get_dimension_size")
def get_dimension_size(ctx: OpContext, x: Value) -> Value:
    """A size, which is known."""
    return constant(np.int32(int(str(x.type.shape[ctx.integer("dimension")]))))
