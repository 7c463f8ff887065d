"""Sort and top_k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DType
from rlx.ops.reduction import numbers
from rlx.ops.sorting import Sort, TopK, TopNan
from rlx_xla._jax_compat.mlir import chlo, ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.reduction import compare, convert

_ONLY_NEGATIVE_NAN = (DType.F8E4M3B11FNUZ, DType.F8E4M3FNUZ, DType.F8E5M2FNUZ)


def _key(ctx: LoweringContext, x: ir.Value, dtype: DType) -> tuple[ir.Value, DType]:
    """A float whose total order is the sort order: one zero and one NaN, above everything."""
    if not dtype.is_float:
        return x, dtype
    if dtype in _ONLY_NEGATIVE_NAN:
        x, dtype = convert(ctx, x, DType.F32), DType.F32
    zero = ctx.constant(0, dtype)
    x = stablehlo.select(compare(x, zero, "EQ", dtype), zero, x)
    nan = ctx.constant(np.nan, dtype)
    return stablehlo.select(compare(x, x, "NE", dtype), nan, x), dtype


def _parts(x: ir.Value, dtype: DType) -> list[ir.Value]:
    return [stablehlo.real(x), stablehlo.imag(x)] if dtype.is_complex else [x]


@lowers(Sort)
def sort(ctx: LoweringContext, op: Sort, *operands: ir.Value) -> Sequence[ir.Value]:
    made = stablehlo.SortOp(
        ctx.result_types, list(operands), dimension=i64(op.axis), is_stable=op.is_stable
    )
    dtypes = [t.dtype for t in ctx.input_types]

    def comes_first(*pairs: ir.Value) -> ir.Value:
        result: ir.Value | None = None
        for index in reversed(range(op.num_keys)):
            dtype = dtypes[index]
            lefts, rights = _parts(pairs[2 * index], dtype), _parts(pairs[2 * index + 1], dtype)
            for left, right in zip(reversed(lefts), reversed(rights), strict=True):
                (lhs, key), (rhs, _) = (_key(ctx, x, dtype.real) for x in (left, right))
                less = compare(lhs, rhs, "LT", key, total_order=True)
                if result is not None:
                    same = compare(lhs, rhs, "EQ", key, total_order=True)
                    less = stablehlo.or_(less, stablehlo.and_(same, result))
                result = less
        assert result is not None
        return result

    scalars = [ctx.tensor(d, []) for d in dtypes for _ in range(2)]
    ctx.region(made.operation.regions[0], scalars, comes_first)
    return list(made.results)


@lowers(TopK)
def top_k(ctx: LoweringContext, op: TopK, x: ir.Value) -> Sequence[ir.Value]:
    type_ = ctx.input_types[0]
    if 0 in ctx.output_types[0].shape:
        return [ctx.full(0, t) for t in ctx.output_types]
    if op.nan is TopNan.NEVER and type_.dtype.is_float:
        lowest = ctx.full(numbers.lowest(type_.dtype), type_)
        x = stablehlo.select(compare(x, x, "NE", type_.dtype), lowest, x)
    return list(chlo.TopKOp(x, i64(op.k)).results)
