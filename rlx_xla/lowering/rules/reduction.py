"""Reductions: one StableHLO reduce (or reduce_window) each; narrow floats accumulate in f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, Kind
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
    numbers,
)
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, dense, i64, i64_array
from rlx_xla.lowering.registry import lowers

Combine = Callable[[ir.Value, ir.Value], ir.Value]


def convert(ctx: LoweringContext, x: ir.Value, dtype: DType) -> ir.Value:
    """Convert the elements unless they have the dtype already."""
    target = ctx.tensor(dtype, list(ir.RankedTensorType(x.type).shape))
    return x if x.type == target else stablehlo.convert(target, x)


def compare(
    lhs: ir.Value, rhs: ir.Value, direction: str, dtype: DType, *, total_order: bool = False
) -> ir.Value:
    """Compare numbers of a dtype; direction is EQ, NE, LT, LE, GT or GE."""
    if dtype.is_float or dtype.is_complex:
        kind = "TOTALORDER" if total_order else "FLOAT"
    else:
        kind = "SIGNED" if dtype.kind is Kind.INT else "UNSIGNED"
    return stablehlo.compare(
        lhs,
        rhs,
        stablehlo.ComparisonDirectionAttr.get(direction),
        compare_type=stablehlo.ComparisonTypeAttr.get(kind),
    )


def reduce_axes(
    ctx: LoweringContext,
    x: ir.Value,
    type_: TensorType,
    axes: Sequence[int],
    initial: Any,
    combine: Combine,
) -> ir.Value:
    """Reduce axes of a value of a given RLX type; the result has the same dtype."""
    kept = [int(d) for i, d in enumerate(type_.shape) if i not in axes]  # type: ignore[arg-type]
    op = stablehlo.ReduceOp(
        [ctx.tensor(type_.dtype, kept)],
        [x],
        [ctx.constant(initial, type_.dtype)],
        i64_array(axes),
    )
    scalar = ctx.tensor(type_.dtype, [])
    ctx.region(op.operation.regions[0], [scalar, scalar], combine)
    return op.results[0]


def _wide_reduce(
    ctx: LoweringContext, x: ir.Value, axes: Sequence[int], initial: Any, combine: Combine
) -> ir.Value:
    source = ctx.input_types[0]
    wide = source.with_dtype(source.dtype.compute) if source.dtype.is_float else source
    found = reduce_axes(ctx, convert(ctx, x, wide.dtype), wide, axes, initial, combine)
    return convert(ctx, found, source.dtype)


@lowers(ReduceSum)
def reduce_sum(ctx: LoweringContext, op: ReduceSum, x: ir.Value) -> ir.Value:
    return _wide_reduce(ctx, x, op.axes, 0, stablehlo.add)


@lowers(ReduceProd)
def reduce_prod(ctx: LoweringContext, op: ReduceProd, x: ir.Value) -> ir.Value:
    return _wide_reduce(ctx, x, op.axes, 1, stablehlo.multiply)


@lowers(ReduceMax)
def reduce_max(ctx: LoweringContext, op: ReduceMax, x: ir.Value) -> ir.Value:
    type_ = ctx.input_types[0]
    initial = numbers.lowest(type_.dtype)
    return reduce_axes(ctx, x, type_, op.axes, initial, stablehlo.maximum)


@lowers(ReduceMin)
def reduce_min(ctx: LoweringContext, op: ReduceMin, x: ir.Value) -> ir.Value:
    type_ = ctx.input_types[0]
    initial = numbers.highest(type_.dtype)
    return reduce_axes(ctx, x, type_, op.axes, initial, stablehlo.minimum)


@lowers(ReduceAnd)
def reduce_and(ctx: LoweringContext, op: ReduceAnd, x: ir.Value) -> ir.Value:
    type_ = ctx.input_types[0]
    signed = type_.dtype.kind is Kind.INT
    initial = np.asarray(-1, type_.dtype.numpy) if signed else numbers.highest(type_.dtype)
    return reduce_axes(ctx, x, type_, op.axes, initial, stablehlo.and_)


@lowers(ReduceOr)
def reduce_or(ctx: LoweringContext, op: ReduceOr, x: ir.Value) -> ir.Value:
    return reduce_axes(ctx, x, ctx.input_types[0], op.axes, 0, stablehlo.or_)


@lowers(ReduceXor)
def reduce_xor(ctx: LoweringContext, op: ReduceXor, x: ir.Value) -> ir.Value:
    return reduce_axes(ctx, x, ctx.input_types[0], op.axes, 0, stablehlo.xor)


@lowers(Reduce)
def reduce(ctx: LoweringContext, op: Reduce, *operands: ir.Value) -> Sequence[ir.Value]:
    count = len(operands) // 2
    made = stablehlo.ReduceOp(
        ctx.result_types, list(operands[:count]), list(operands[count:]), i64_array(op.axes)
    )
    scalars = [ctx.tensor(t.dtype, []) for t in ctx.output_types]
    ctx.region(made.operation.regions[0], scalars * 2, lambda *xs: ctx.inline(op.body, list(xs)))
    return list(made.results)


@lowers(Argmax)
def argmax(ctx: LoweringContext, op: Argmax, x: ir.Value) -> ir.Value:
    return _arg_extreme(ctx, op, x, "GT", numbers.lowest(ctx.input_types[0].dtype))


@lowers(Argmin)
def argmin(ctx: LoweringContext, op: Argmin, x: ir.Value) -> ir.Value:
    return _arg_extreme(ctx, op, x, "LT", numbers.highest(ctx.input_types[0].dtype))


def _arg_extreme(
    ctx: LoweringContext, op: Argmax | Argmin, x: ir.Value, better: str, initial: Any
) -> ir.Value:
    source, result, index = ctx.input_types[0], ctx.output_types[0], op.index_dtype
    indices = stablehlo.iota(ctx.mlir_type(source.with_dtype(index)), i64(op.axis))
    made = stablehlo.ReduceOp(
        [ctx.mlir_type(result.with_dtype(source.dtype)), ctx.mlir_type(result)],
        [x, indices],
        [ctx.constant(initial, source.dtype), ctx.constant(0, index)],
        i64_array([op.axis]),
    )

    def body(best: ir.Value, at: ir.Value, other: ir.Value, there: ir.Value) -> list[ir.Value]:
        keep = compare(best, other, better, source.dtype)
        if source.dtype.is_float:  # NaN wins
            keep = stablehlo.or_(keep, compare(best, best, "NE", source.dtype))
        tie = stablehlo.and_(
            compare(best, other, "EQ", source.dtype), compare(at, there, "LT", index)
        )
        return [
            stablehlo.select(keep, best, other),
            stablehlo.select(stablehlo.or_(keep, tie), at, there),
        ]

    scalars = [ctx.tensor(source.dtype, []), ctx.tensor(index, [])]
    ctx.region(made.operation.regions[0], scalars * 2, body)
    return made.results[1]


def _cumulative(
    ctx: LoweringContext,
    op: CumSum | CumProd | CumMax | CumMin | CumLogSumExp,
    x: ir.Value,
    initial: Any,
    combine: Combine,
) -> ir.Value:
    """A window over everything up to each element; XLA rewrites it into a scan."""
    source = ctx.input_types[0]
    size = source.shape[op.axis]
    if 0 in source.shape:
        return x
    assert isinstance(size, int)
    wide = source.with_dtype(source.dtype.compute) if source.dtype.is_float else source
    shift = int(op.exclusive)
    before, after = size - 1 + shift, -shift
    rank = len(source.shape)
    padding = np.zeros((rank, 2), np.int64)
    padding[op.axis] = (after, before) if op.reverse else (before, after)
    ones = [1] * rank
    window = list(ones)
    window[op.axis] = size
    made = stablehlo.ReduceWindowOp(
        [ctx.mlir_type(wide)],
        [convert(ctx, x, wide.dtype)],
        [ctx.constant(initial, wide.dtype)],
        i64_array(window),
        window_strides=i64_array(ones),
        base_dilations=i64_array(ones),
        window_dilations=i64_array(ones),
        padding=dense(padding),
    )
    scalar = ctx.tensor(wide.dtype, [])
    ctx.region(made.operation.regions[0], [scalar, scalar], combine)
    return convert(ctx, made.results[0], source.dtype)


@lowers(CumSum)
def cumsum(ctx: LoweringContext, op: CumSum, x: ir.Value) -> ir.Value:
    return _cumulative(ctx, op, x, 0, stablehlo.add)


@lowers(CumProd)
def cumprod(ctx: LoweringContext, op: CumProd, x: ir.Value) -> ir.Value:
    return _cumulative(ctx, op, x, 1, stablehlo.multiply)


@lowers(CumMax)
def cummax(ctx: LoweringContext, op: CumMax, x: ir.Value) -> ir.Value:
    return _cumulative(ctx, op, x, numbers.lowest(_dtype(ctx)), stablehlo.maximum)


@lowers(CumMin)
def cummin(ctx: LoweringContext, op: CumMin, x: ir.Value) -> ir.Value:
    return _cumulative(ctx, op, x, numbers.highest(_dtype(ctx)), stablehlo.minimum)


@lowers(CumLogSumExp)
def cumlogsumexp(ctx: LoweringContext, op: CumLogSumExp, x: ir.Value) -> ir.Value:
    dtype = _dtype(ctx).compute

    def combine(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        top = stablehlo.maximum(lhs, rhs)
        delta = stablehlo.subtract(lhs, rhs)
        small = stablehlo.exponential(stablehlo.negate(stablehlo.abs(delta)))
        # The difference of two equal infinities, or with NaN, is NaN: then the sum is right.
        return stablehlo.select(
            compare(delta, delta, "NE", dtype),
            stablehlo.add(lhs, rhs),
            stablehlo.add(top, stablehlo.log_plus_one(small)),
        )

    return _cumulative(ctx, op, x, numbers.lowest(_dtype(ctx)), combine)


def _dtype(ctx: LoweringContext) -> DType:
    return ctx.input_types[0].dtype
