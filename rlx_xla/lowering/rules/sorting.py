"""Sort and top_k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DType
from rlx.ops.reduction import numbers
from rlx.ops.sorting import ApproxTopK, Sort, TopK, TopNan
from rlx_xla._jax_compat.mlir import chlo, func, ir, stablehlo
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


@lowers(ApproxTopK)
def approx_top_k(ctx: LoweringContext, op: ApproxTopK, x: ir.Value) -> Sequence[ir.Value]:
    """XLA's own call; where a device has no such search, XLA sorts."""
    if ctx.portable:
        return ctx.decomposed([x])
    type_ = ctx.input_types[0]
    index = stablehlo.iota(ctx.mlir_type(type_.with_dtype(DType.I32)), i64(op.axis))
    least = ctx.constant(-np.inf if op.largest else np.inf, type_.dtype)
    whole = -1 if op.input_size is None else op.input_size
    config: dict[str, ir.Attribute] = {
        "top_k": i64(op.k),
        "reduction_dim": i64(op.axis),
        "recall_target": ir.FloatAttr.get(ir.F32Type.get(), op.recall),
        "aggregate_to_topk": ir.BoolAttr.get(op.size is None),
        "reduction_input_size_override": i64(whole),
    }
    if ctx.platform != "tpu":
        config["is_fallback"] = ir.BoolAttr.get(True)
    order = _order(ctx, "GT" if op.largest else "LT", type_.dtype)
    made = stablehlo.CustomCallOp(
        ctx.result_types,
        [x, index, least, ctx.constant(-1, DType.I32)],
        call_target_name="ApproxTopK",
        called_computations=ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(order)]),
        backend_config=ir.StringAttr.get(""),
    )
    made.operation.attributes["mhlo.backend_config"] = ir.DictAttr.get(config)
    return list(made.results)


def _order(ctx: LoweringContext, direction: str, dtype: DType) -> str:
    """A function of two (element, index) pairs that compares the elements; return its name."""
    scalars = [ctx.tensor(d, []) for d in (dtype, dtype, DType.I32, DType.I32)]
    signature = ir.FunctionType.get(scalars, [ctx.tensor(DType.BOOL, [])])
    with ir.InsertionPoint(ctx.module.module.body):
        made = func.FuncOp(f"top_k_{direction.lower()}_{dtype}", signature, visibility="private")
    with ir.InsertionPoint(made.add_entry_block()):
        lhs, rhs, *_ = made.arguments
        func.return_([compare(lhs, rhs, direction, dtype)])
    ctx.module.symbols.insert(made.operation)
    return ir.StringAttr(made.operation.attributes["sym_name"]).value
