"""Reductions over sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ops.pooling import (
    ReduceWindow,
    ReduceWindowGeneral,
    SelectAndGatherAdd,
    SelectAndScatterAdd,
    WindowKind,
    identity,
    padding_value,
)
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, dense, i64_array
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.reduction import compare, convert

_COMBINE: dict[WindowKind, Callable[[ir.Value, ir.Value], ir.Value]] = {
    WindowKind.SUM: stablehlo.add,
    WindowKind.PROD: stablehlo.multiply,
    WindowKind.MAX: stablehlo.maximum,
    WindowKind.MIN: stablehlo.minimum,
}


def _padding(padding: Sequence[Sequence[Any]]) -> ir.DenseElementsAttr:
    return dense(np.array(padding, np.int64).reshape(len(padding), 2))


def _windows(
    ctx: LoweringContext,
    op: ReduceWindow | ReduceWindowGeneral | SelectAndGatherAdd,
    dtypes: Sequence[DType],
    operands: Sequence[ir.Value],
    initial: Sequence[ir.Value],
    body: Callable[..., ir.Value | Sequence[ir.Value]],
) -> list[ir.Value]:
    made = stablehlo.ReduceWindowOp(
        [ctx.mlir_type(ctx.output_types[0].with_dtype(d)) for d in dtypes],
        list(operands),
        list(initial),
        i64_array(op.window_dimensions),
        window_strides=i64_array(op.window_strides),
        base_dilations=i64_array(op.base_dilation),
        window_dilations=i64_array(op.window_dilation),
        padding=_padding(op.padding),
    )
    ctx.region(made.operation.regions[0], [ctx.tensor(d, []) for d in dtypes] * 2, body)
    return list(made.results)


@lowers(ReduceWindow)
def reduce_window(ctx: LoweringContext, op: ReduceWindow, x: ir.Value) -> ir.Value:
    dtype = ctx.input_types[0].dtype
    adds = op.kind in (WindowKind.SUM, WindowKind.PROD)
    wide = dtype.compute if adds and dtype.is_float else dtype
    initial = ctx.constant(identity(op.kind, dtype), wide)
    (found,) = _windows(ctx, op, [wide], [convert(ctx, x, wide)], [initial], _COMBINE[op.kind])
    return convert(ctx, found, dtype)


@lowers(ReduceWindowGeneral)
def reduce_window_general(
    ctx: LoweringContext, op: ReduceWindowGeneral, *operands: ir.Value
) -> Sequence[ir.Value]:
    count = len(operands) // 2
    dtypes = [t.dtype for t in ctx.output_types]
    return _windows(
        ctx,
        op,
        dtypes,
        operands[:count],
        operands[count:],
        lambda *xs: ctx.inline(op.body, list(xs)),
    )


@lowers(SelectAndScatterAdd)
def select_and_scatter_add(
    ctx: LoweringContext, op: SelectAndScatterAdd, source: ir.Value, operand: ir.Value
) -> ir.Value:
    type_ = ctx.output_types[0]
    dtype = type_.dtype
    wide = dtype.compute if dtype.is_float else dtype
    if 0 in ctx.input_types[0].shape:
        return ctx.full(0, type_)
    # XLA's CPU loses additions when select_and_scatter itself pads: pad before, and undo it after.
    low, high = ([int(p[i]) for p in op.padding] for i in range(2))
    fill = ctx.constant(padding_value(op.select, dtype), wide)
    padded = _pad(convert(ctx, operand, wide), fill, low, high)
    made = stablehlo.SelectAndScatterOp(
        padded.type,
        padded,
        convert(ctx, source, wide),
        ctx.constant(0, wide),
        window_dimensions=i64_array(op.window_dimensions),
        window_strides=i64_array(op.window_strides),
        padding=_padding([(0, 0)] * len(low)),
    )
    scalars = [ctx.tensor(wide, [])] * 2
    select, scatter = made.operation.regions
    ctx.region(select, scalars, lambda a, b: compare(a, b, op.select.name, wide))
    ctx.region(scatter, scalars, stablehlo.add)
    zero = ctx.constant(0, wide)
    result = _pad(made.results[0], zero, [-n for n in low], [-n for n in high])
    return convert(ctx, result, dtype)


def _pad(x: ir.Value, fill: ir.Value, low: Sequence[int], high: Sequence[int]) -> ir.Value:
    if not any((*low, *high)):
        return x
    none = i64_array([0] * len(low))
    return stablehlo.pad(x, fill, i64_array(low), i64_array(high), none)


@lowers(SelectAndGatherAdd)
def select_and_gather_add(
    ctx: LoweringContext, op: SelectAndGatherAdd, tangents: ir.Value, operand: ir.Value
) -> ir.Value:
    dtype = ctx.input_types[0].dtype
    start = padding_value(op.select, dtype)

    def body(best: ir.Value, at: ir.Value, other: ir.Value, there: ir.Value) -> list[ir.Value]:
        keep = compare(best, other, op.select.name, dtype)
        return [stablehlo.select(keep, best, other), stablehlo.select(keep, at, there)]

    initial = [ctx.constant(start, dtype), ctx.constant(0, dtype)]
    return _windows(ctx, op, [dtype, dtype], [operand, tangents], initial, body)[1]
