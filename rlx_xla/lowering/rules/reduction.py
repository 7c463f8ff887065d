"""Reductions: one StableHLO reduce (or reduce_window) each; narrow floats accumulate in f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.ops.reduction import (
    Argmax,
    Argmin,
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
from rlx_xla.lowering.context import LoweringContext, i64, i64_array
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


_QUICK = (DType.F32, DType.F64, DType.BF16, DType.F16)
_LONG = 32
"""Elements along the axis from which two reductions gain; XLA writes out shorter ones."""


def _arg_extreme(
    ctx: LoweringContext, op: Argmax | Argmin, x: ir.Value, better: str, initial: Any
) -> ir.Value:
    source = ctx.input_types[0]
    signed = op.index_dtype in (DType.I32, DType.I64)
    counted = signed and int(source.shape[op.axis]) >= _LONG  # type: ignore[arg-type]
    if ctx.platform == "cpu" and not ctx.portable and counted and source.dtype in _QUICK:
        return _first_of_extreme(ctx, op, x, initial)
    return _pairwise_extreme(ctx, op, x, better, initial)


def _first_of_extreme(
    ctx: LoweringContext, op: Argmax | Argmin, x: ir.Value, initial: Any
) -> ir.Value:
    """The smallest index of what equals the extreme; of NaN, where there is one.

    Both reductions run in vector lanes, which one over pairs of value and index does not:
    8 × 131072 in 0.5 ms for 2.2, 64 × 65 in 10 µs for 21 (``bench_specialize``). Integers lose.
    The same index comes out: a NaN counts n less than its place, so that it comes before all else.
    XLA's maximum of a long row does not say whether there is one (jax 0.10.2).
    """
    source, index = ctx.input_types[0], op.index_dtype
    combine = stablehlo.maximum if isinstance(op, Argmax) else stablehlo.minimum
    extreme = reduce_axes(ctx, x, source, [op.axis], initial, combine)
    kept = [i for i in range(len(source.shape)) if i != op.axis]
    spread = stablehlo.broadcast_in_dim(ctx.mlir_type(source), extreme, i64_array(kept))
    numbered = source.with_dtype(index)
    size = int(source.shape[op.axis])  # type: ignore[arg-type]
    places = stablehlo.iota(ctx.mlir_type(numbered), i64(op.axis))
    count = ctx.full(size, numbered)
    found = stablehlo.select(compare(x, spread, "EQ", source.dtype), places, count)
    before = stablehlo.subtract(places, count)
    found = stablehlo.select(compare(x, x, "NE", source.dtype), before, found)
    least = reduce_axes(ctx, found, numbered, [op.axis], size, stablehlo.minimum)
    result = ctx.output_types[0]
    is_nan = compare(least, ctx.full(0, result), "LT", index)
    return stablehlo.select(is_nan, stablehlo.add(least, ctx.full(size, result)), least)


def _pairwise_extreme(
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
