"""The general contraction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.dot import DotAlgorithm, DotGeneral, DotPrecision, RaggedDot
from rlx.passes.specialize.rows import row_read_once
from rlx.types import TensorType
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import chlo, ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64_array
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.reduction import convert


def precision_attribute(precision: Sequence[DotPrecision]) -> ir.ArrayAttr:
    """``[DEFAULT, HIGHEST]`` as an attribute."""
    return ir.ArrayAttr.get([stablehlo.PrecisionAttr.get(p.value.upper()) for p in precision])


def operand_dtype(dtype: DType, result: DType) -> DType:
    """What XLA's CPU needs an operand to be: it has no products of sub-byte types."""
    if dtype.bits >= 8:
        return dtype
    return result if result.bits >= 8 else result.compute


# XLA's CPU ignores the algorithm; it multiplies these no less exactly than they ask.
_CPU_ALGORITHMS = (
    DotAlgorithm.F16_F16_F16,
    DotAlgorithm.F32_F32_F32,
    DotAlgorithm.F64_F64_F64,
    DotAlgorithm.BF16_BF16_F32,
    DotAlgorithm.BF16_BF16_F32_X3,
    DotAlgorithm.BF16_BF16_F32_X6,
)
_PASSES = {"X3": 3, "X6": 6, "X9": 9}


def algorithm_attribute(algorithm: DotAlgorithm, left: DType, right: DType) -> ir.Attribute:
    """A named algorithm for the dtypes of operands, as an attribute."""
    words = algorithm.name.split("_")
    if algorithm.takes_f8:
        lhs, rhs = mlir.element_type(left.numpy), mlir.element_type(right.numpy)
        summed = ir.F32Type.get()
    else:
        lhs, rhs, summed = (_ELEMENTS[word].get() for word in words[:3])
    fast = algorithm is DotAlgorithm.ANY_F8_ANY_F8_F32_FAST_ACCUM  # of the two, as JAX says it
    passes = _PASSES.get(words[-1], 1)
    return stablehlo.DotAlgorithm.get(lhs, rhs, summed, 1, 1, passes, fast)


_ELEMENTS: dict[str, Any] = {
    "F16": ir.F16Type,
    "BF16": ir.BF16Type,
    "TF32": ir.FloatTF32Type,
    "F32": ir.F32Type,
    "F64": ir.F64Type,
}


def _is_doubled(ctx: LoweringContext, op: DotGeneral) -> bool:
    """Whether XLA for GPUs gets a product of bytes wrong, or refuses it.

    Where K is odd it gives twice the value, under ``jax.jit`` too (jax 0.11.2, H200); a result of
    bytes is refused for some sizes. Wider operands are right.
    """
    left, right = ctx.input_types
    inner = math.prod(dims.evaluate(left.shape[axis], {}) for axis in op.lhs_contracting)
    narrow = all(t.dtype.is_integer and t.dtype.bits <= 8 for t in (left, right))
    return narrow and (inner % 4 != 0 or ctx.output_types[0].dtype.bits <= 8)


def _float_precision(op: DotGeneral, left: DType, right: DType) -> Sequence[DotPrecision]:
    """The precision of a product of floats; integers are exact.

    XLA doubles the result of an i8 product whose precision is highest (jax 0.11, H200).
    """
    return (DotPrecision.DEFAULT,) * 2 if left.is_integer and right.is_integer else op.precision


def _unknown_algorithm(op: DotGeneral, types: Sequence[TensorType], platform: str) -> str | None:
    if platform != "cpu" or op.algorithm is None or op.algorithm in _CPU_ALGORITHMS:
        return None
    return (
        f"the CPU is required to have the algorithm; it has "
        f"{', '.join(a.value for a in _CPU_ALGORITHMS)}, not {op.algorithm.value}. Choose one of "
        "these, or leave it out."
    )


@lowers(DotGeneral, refuses=_unknown_algorithm)
def dot_general(ctx: LoweringContext, op: DotGeneral, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    if ctx.platform == "cpu" and not ctx.as_written:
        side = row_read_once(op, ctx.input_types)
        if side is not None:
            return _row_by_turned_matrix(ctx, op, lhs, rhs, side)
    left, right = (t.dtype for t in ctx.input_types)
    result = ctx.output_types[0]
    wide = result.dtype
    named: dict[str, Any] = {}
    if op.algorithm is not None:
        wide = op.algorithm.accumulation(left, right, wide)
        left, right = op.algorithm.storage(left), op.algorithm.storage(right)
        lhs, rhs = convert(ctx, lhs, left), convert(ctx, rhs, right)
        if ctx.platform != "cpu":
            named["algorithm"] = algorithm_attribute(op.algorithm, left, right)
    if ctx.platform == "cpu":
        # f32 results of narrow operands are 2 to 3 times as fast here as narrow results.
        summed, wide = wide, wide.compute
        lhs = convert(ctx, lhs, operand_dtype(left, wide))
        rhs = convert(ctx, rhs, operand_dtype(right, wide))
    else:
        summed = wide
        if ctx.platform in ("cuda", "rocm") and _is_doubled(ctx, op):
            if wide.bits <= 8:
                wide = DType.I32 if wide.is_signed else DType.U32
            lhs, rhs = convert(ctx, lhs, wide), convert(ctx, rhs, wide)
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(op.lhs_batch),
        rhs_batching_dimensions=list(op.rhs_batch),
        lhs_contracting_dimensions=list(op.lhs_contracting),
        rhs_contracting_dimensions=list(op.rhs_contracting),
    )
    product = stablehlo.dot_general(
        ctx.mlir_type(result.with_dtype(wide)),
        lhs,
        rhs,
        numbers,
        precision_config=precision_attribute(_float_precision(op, left, right)),
        **named,
    )
    return convert(ctx, convert(ctx, product, summed), result.dtype)


def _row_by_turned_matrix(
    ctx: LoweringContext, op: DotGeneral, lhs: ir.Value, rhs: ir.Value, side: int
) -> ir.Value:
    """One row times a matrix [n, k], which is turned where XLA does not write the result out."""
    sizes = [int(str(d)) for d in (*ctx.input_types[0].shape, *ctx.input_types[1].shape)]
    row, matrix = (lhs, rhs) if side == 0 else (rhs, lhs)
    n, k = sizes[-2:] if side == 0 else sizes[:2]
    dtype, result = ctx.input_types[0].dtype, ctx.output_types[0]
    row = stablehlo.reshape(ctx.tensor(dtype, [1, k]), row)
    turned = stablehlo.transpose(matrix, i64_array([1, 0]))
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[],
        rhs_batching_dimensions=[],
        lhs_contracting_dimensions=[1],
        rhs_contracting_dimensions=[0],
    )
    product = stablehlo.dot_general(
        ctx.tensor(result.dtype.compute, [1, n]),
        row,
        turned,
        numbers,
        precision_config=precision_attribute(_float_precision(op, dtype, dtype)),
    )
    return stablehlo.reshape(ctx.mlir_type(result), convert(ctx, product, result.dtype))


@lowers(RaggedDot, platform="tpu")
def ragged_dot(
    ctx: LoweringContext, op: RaggedDot, lhs: ir.Value, rhs: ir.Value, group_sizes: ir.Value
) -> ir.Value:
    """XLA's own op, which skips what lies outside a group; elsewhere the decomposition is all."""
    if ctx.portable or op.algorithm is not None:
        return ctx.decomposed([lhs, rhs, group_sizes])[0]
    numbers = chlo.RaggedDotDimensionNumbers.get(
        lhs_batching_dimensions=list(op.lhs_batch),
        rhs_batching_dimensions=list(op.rhs_batch),
        lhs_contracting_dimensions=list(op.lhs_contracting),
        rhs_contracting_dimensions=list(op.rhs_contracting),
        lhs_ragged_dimensions=[op.lhs_ragged],
        rhs_group_dimensions=[] if op.rhs_group is None else [op.rhs_group],
    )
    precision = ir.ArrayAttr.get([chlo.PrecisionAttr.get(p.value.upper()) for p in op.precision])
    return chlo.ragged_dot(
        ctx.result_types[0], lhs, rhs, group_sizes, numbers, precision_config=precision
    )
