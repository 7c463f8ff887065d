"""Layouts, slices, joins and counters."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.shape import (
    BroadcastInDim,
    Concatenate,
    DimValue,
    Iota,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64, i64_array
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.reduction import convert

_ABORTS = frozenset({DType.I2, DType.U2, DType.F6E2M3FN, DType.F6E3M2FN})
"""Joining these aborts the process inside XLA's CPU emitter."""


@lowers(BroadcastInDim)
def broadcast_in_dim(ctx: LoweringContext, op: BroadcastInDim, x: ir.Value) -> ir.Value:
    axes = i64_array(op.broadcast_dimensions)
    return stablehlo.broadcast_in_dim(ctx.result_types[0], x, axes)


@lowers(Reshape)
def reshape(ctx: LoweringContext, op: Reshape, x: ir.Value) -> ir.Value:
    return stablehlo.reshape(ctx.result_types[0], x)


@lowers(Transpose)
def transpose(ctx: LoweringContext, op: Transpose, x: ir.Value) -> ir.Value:
    return stablehlo.transpose(x, i64_array(op.permutation))


@lowers(Reverse)
def reverse(ctx: LoweringContext, op: Reverse, x: ir.Value) -> ir.Value:
    return stablehlo.reverse(x, i64_array(op.axes))


@lowers(Slice)
def slice(ctx: LoweringContext, op: Slice, x: ir.Value) -> ir.Value:
    starts, limits = i64_array(op.start_indices), i64_array(op.limit_indices)
    return stablehlo.slice(x, starts, limits, i64_array(op.strides))


def _narrow_floats(op: Concatenate, types: Sequence[TensorType], platform: str) -> str | None:
    dtype = types[0].dtype
    if platform != "cpu" or dtype not in _ABORTS or dtype.is_integer:
        return None
    return f"XLA's CPU has no {dtype}. Convert the inputs to bf16 before."


@lowers(Concatenate, refuses=_narrow_floats)
def concatenate(ctx: LoweringContext, op: Concatenate, *xs: ir.Value) -> ir.Value:
    if ctx.platform == "cpu" and ctx.output_types[0].dtype in _ABORTS:
        return _concatenate_bytes(ctx, op, xs)
    return stablehlo.concatenate(list(xs), i64(op.axis))


def _concatenate_bytes(ctx: LoweringContext, op: Concatenate, xs: Sequence[ir.Value]) -> ir.Value:
    dtype = ctx.output_types[0].dtype
    byte = DType.I8 if dtype.is_signed else DType.U8
    wide = [
        stablehlo.convert(ctx.mlir_type(t.with_dtype(byte)), x)
        for x, t in zip(xs, ctx.input_types, strict=True)
    ]
    return stablehlo.convert(ctx.result_types[0], stablehlo.concatenate(wide, i64(op.axis)))


@lowers(Pad)
def pad(ctx: LoweringContext, op: Pad, x: ir.Value, padding_value: ir.Value) -> ir.Value:
    low, high, interior = i64_array(op.low), i64_array(op.high), i64_array(op.interior)
    dtype = ctx.output_types[0].dtype
    if dtype.bits >= 8 or ctx.platform not in ("cuda", "rocm"):
        return stablehlo.pad(x, padding_value, low, high, interior)
    # XLA for GPUs ends the process on pads of elements that share a byte.
    byte = DType.I8 if dtype.is_signed else DType.U8
    x, padding_value = convert(ctx, x, byte), convert(ctx, padding_value, byte)
    return convert(ctx, stablehlo.pad(x, padding_value, low, high, interior), dtype)


@lowers(Iota)
def iota(ctx: LoweringContext, op: Iota) -> ir.Value:
    return stablehlo.iota(ctx.result_types[0], i64(op.axis))


@lowers(DimValue)
def dim_value(ctx: LoweringContext, op: DimValue) -> ir.Value:
    return ctx.constant(op.evaluate())
