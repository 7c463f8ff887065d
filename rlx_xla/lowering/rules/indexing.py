"""Reading and writing at computed places.

A clipped gather is StableHLO's own; FILL_OR_DROP masks what it clipped. A scatter drops windows
that are not wholly inside; CLIP clamps the indices first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    GatherGeneral,
    IndexMode,
    ScatterGeneral,
    ScatterKind,
)
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64_array
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules import arithmetic


@lowers(DynamicSlice)
def dynamic_slice(
    ctx: LoweringContext, op: DynamicSlice, x: ir.Value, *start_indices: ir.Value
) -> ir.Value:
    return stablehlo.dynamic_slice(x, _starts(ctx, 1, start_indices), i64_array(op.sizes))


@lowers(DynamicUpdateSlice)
def dynamic_update_slice(
    ctx: LoweringContext,
    op: DynamicUpdateSlice,
    x: ir.Value,
    update: ir.Value,
    *start_indices: ir.Value,
) -> ir.Value:
    return stablehlo.dynamic_update_slice(x, update, _starts(ctx, 2, start_indices))


@lowers(GatherGeneral)
def gather_general(
    ctx: LoweringContext, op: GatherGeneral, x: ir.Value, indices: ir.Value
) -> ir.Value:
    out = ctx.output_types[0]
    if 0 in out.shape:  # without indices a window may be larger than x, which StableHLO refuses
        return ctx.full(False, out)
    indices, type_ = _at_least_i32(ctx, indices)
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset_dims=list(op.offset_dims),
        collapsed_slice_dims=list(op.collapsed_slice_dims),
        operand_batching_dims=list(op.operand_batching_dims),
        start_indices_batching_dims=list(op.start_indices_batching_dims),
        start_index_map=list(op.start_index_map),
        index_vector_dim=type_.rank - 1,
    )
    picked = stablehlo.gather(
        x,
        indices,
        numbers,
        i64_array(op.slice_sizes),
        indices_are_sorted=ir.BoolAttr.get(op.indices_are_sorted),
    )
    if op.mode is not IndexMode.FILL_OR_DROP:
        return picked
    sizes = [int(size) for size in op.slice_sizes]
    inside = _inside(ctx, indices, type_, _last_starts(ctx, sizes, op.start_index_map))
    batch_axes = [axis for axis in range(out.rank) if axis not in op.offset_dims]
    mask_type = ctx.mlir_type(out.with_dtype(DType.BOOL))
    mask = stablehlo.broadcast_in_dim(mask_type, inside, i64_array(batch_axes))
    return stablehlo.select(mask, picked, ctx.full(op.fill(out.dtype), out))


@lowers(ScatterGeneral)
def scatter_general(
    ctx: LoweringContext, op: ScatterGeneral, x: ir.Value, indices: ir.Value, updates: ir.Value
) -> ir.Value:
    out = ctx.output_types[0]
    indices, type_ = _at_least_i32(ctx, indices)
    mapped = op.scatter_dims_to_operand_dims
    if not mapped:
        # XLA's CPU loses updates, or fails, when index vectors are empty: let them point at 0 on
        # an axis of one element before the others.
        type_ = type_.with_shape((*type_.shape[:-1], 1))
        zeros = ctx.full(0, type_)
        wide = ctx.mlir_type(out.with_shape((1, *out.shape)))
        x = stablehlo.reshape(wide, x)
        made = _scatter(ctx, op, wide, x, zeros, updates, type_.rank - 1, (0,), 1)
        return stablehlo.reshape(ctx.result_types[0], made)
    if op.mode is IndexMode.CLIP:
        windows = op.windows(ctx.input_types[2].shape, out.rank)
        bounds = _bounds(ctx, _last_starts(ctx, windows, mapped), type_)
        zero = ctx.splat(ctx.constant(0, type_.dtype), type_)
        indices = stablehlo.clamp(zero, indices, bounds)
    wide = ctx.result_types[0]
    return _scatter(ctx, op, wide, x, indices, updates, type_.rank - 1, mapped, 0)


def _scatter(
    ctx: LoweringContext,
    op: ScatterGeneral,
    result: ir.Type,
    x: ir.Value,
    indices: ir.Value,
    updates: ir.Value,
    vector_axis: int,
    mapped: Sequence[int],
    shift: int,
) -> ir.Value:
    """Emit the scatter; ``shift`` axes stand before those that the op knows."""
    inserted = [*range(shift), *(axis + shift for axis in op.inserted_window_dims)]
    numbers = stablehlo.ScatterDimensionNumbers.get(
        update_window_dims=list(op.update_window_dims),
        inserted_window_dims=inserted,
        input_batching_dims=[axis + shift for axis in op.operand_batching_dims],
        scatter_indices_batching_dims=list(op.scatter_indices_batching_dims),
        scattered_dims_to_operand_dims=list(mapped),
        index_vector_dim=vector_axis,
    )
    made = stablehlo.ScatterOp(
        [result],
        [x],
        indices,
        [updates],
        numbers,
        indices_are_sorted=ir.BoolAttr.get(op.indices_are_sorted),
        unique_indices=ir.BoolAttr.get(op.unique_indices),
    )
    scalar = ctx.tensor(ctx.output_types[0].dtype, [])
    combine = _COMBINE[op.kind]
    if ctx.output_types[0].dtype.is_complex:
        combine = _COMPLEX_COMBINE.get(op.kind, combine)
    ctx.region(made.update_computation, [scalar, scalar], combine)
    return made.results[0]


_COMBINE: dict[ScatterKind, Callable[[ir.Value, ir.Value], ir.Value]] = {
    ScatterKind.SET: lambda old, new: new,
    ScatterKind.ADD: lambda old, new: stablehlo.add(old, new),
    ScatterKind.SUB: lambda old, new: stablehlo.subtract(old, new),
    ScatterKind.MUL: lambda old, new: stablehlo.multiply(old, new),
    ScatterKind.MIN: lambda old, new: stablehlo.minimum(old, new),
    ScatterKind.MAX: lambda old, new: stablehlo.maximum(old, new),
}

_COMPLEX_COMBINE: dict[ScatterKind, Callable[[ir.Value, ir.Value], ir.Value]] = {
    ScatterKind.MIN: lambda old, new: arithmetic.lexicographic(old, new, "LT"),
    ScatterKind.MAX: lambda old, new: arithmetic.lexicographic(old, new, "GT"),
}


def _starts(ctx: LoweringContext, first: int, starts: Sequence[ir.Value]) -> list[ir.Value]:
    """Start indices, from operand ``first``; narrow ones become i32, as bounds need to fit."""
    types = ctx.input_types[first:]
    wide = ctx.mlir_type(TensorType(DType.I32))
    return [
        start if type_.dtype.bits >= DType.I32.bits else stablehlo.convert(wide, start)
        for start, type_ in zip(starts, types, strict=True)
    ]


def _at_least_i32(ctx: LoweringContext, indices: ir.Value) -> tuple[ir.Value, TensorType]:
    """Indices and their type; narrow ones become i32, as the bounds need not fit into theirs."""
    type_ = ctx.input_types[1]
    if type_.dtype.bits >= 32:
        return indices, type_
    wide = type_.with_dtype(DType.I32)
    return stablehlo.convert(ctx.mlir_type(wide), indices), wide


def _last_starts(ctx: LoweringContext, windows: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The last start that keeps a window inside, for each component of an index vector."""
    shape = ctx.input_types[0].shape
    return [int(shape[axis]) - windows[axis] for axis in axes]


def _bounds(ctx: LoweringContext, lasts: Sequence[int], type_: TensorType) -> ir.Value:
    """The last starts along the last axis of the indices' type."""
    most = np.iinfo(type_.dtype.numpy).max
    least = 0 if type_.dtype.kind is Kind.UINT else -1
    row = np.array([max(least, min(last, most)) for last in lasts], type_.dtype.numpy)
    axes = i64_array([type_.rank - 1])
    return stablehlo.broadcast_in_dim(ctx.mlir_type(type_), ctx.constant(row), axes)


def _inside(
    ctx: LoweringContext, indices: ir.Value, type_: TensorType, lasts: Sequence[int]
) -> ir.Value:
    """Whether each index vector puts its window inside: bool over the batch axes."""
    batch = type_.with_shape(type_.shape[:-1]).with_dtype(DType.BOOL)
    if not lasts:
        return ctx.full(True, batch)
    kind = arithmetic.compare_kind(type_.dtype)
    zero = ctx.splat(ctx.constant(0, type_.dtype), type_)
    good = stablehlo.and_(
        arithmetic.compare(indices, zero, "GE", kind),
        arithmetic.compare(indices, _bounds(ctx, lasts, type_), "LE", kind),
    )
    if len(lasts) == 1:
        return stablehlo.reshape(ctx.mlir_type(batch), good)
    true = ctx.constant(True)
    made = stablehlo.ReduceOp([ctx.mlir_type(batch)], [good], [true], i64_array([type_.rank - 1]))
    scalar = ctx.tensor(DType.BOOL, [])
    ctx.region(made.body, [scalar, scalar], lambda lhs, rhs: stablehlo.and_(lhs, rhs))
    return made.results[0]
