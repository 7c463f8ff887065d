"""Elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.ir.op import Op
from rlx.ops import arithmetic as ops
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import chlo, ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers

_UNARY: dict[type[Op], Callable[..., Any]] = {
    ops.Neg: stablehlo.negate,
    ops.Abs: stablehlo.abs,
    ops.Floor: stablehlo.floor,
    ops.Ceil: stablehlo.ceil,
    ops.IsFinite: stablehlo.is_finite,
}
_BINARY: dict[type[Op], Callable[..., Any]] = {
    ops.Add: stablehlo.add,
    ops.Sub: stablehlo.subtract,
    ops.Mul: stablehlo.multiply,
    ops.Div: stablehlo.divide,
    ops.Rem: stablehlo.remainder,
    ops.Pow: stablehlo.power,
    ops.NextAfter: chlo.next_after,
}


@lowers(*_UNARY)
def unary(ctx: LoweringContext, op: Op, x: ir.Value) -> ir.Value:
    return _UNARY[type(op)](x)


@lowers(*_BINARY)
def binary(ctx: LoweringContext, op: Op, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return _BINARY[type(op)](lhs, rhs)


@lowers(ops.Max)
def maximum(ctx: LoweringContext, op: ops.Max, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    if ctx.input_types[0].dtype.is_complex:
        return lexicographic(lhs, rhs, "GT")
    return stablehlo.maximum(lhs, rhs)


@lowers(ops.Min)
def minimum(ctx: LoweringContext, op: ops.Min, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    if ctx.input_types[0].dtype.is_complex:
        return lexicographic(lhs, rhs, "LT")
    return stablehlo.minimum(lhs, rhs)


def compare_kind(dtype: DType, *, total_order: bool = False) -> ir.Attribute:
    """How StableHLO compares elements of a dtype."""
    if dtype.kind in (Kind.FLOAT, Kind.COMPLEX):
        name = "TOTALORDER" if total_order else "FLOAT"
    else:
        name = "SIGNED" if dtype.kind is Kind.INT else "UNSIGNED"
    return stablehlo.ComparisonTypeAttr.get(name)


def compare(lhs: ir.Value, rhs: ir.Value, direction: str, kind: ir.Attribute) -> ir.Value:
    """Emit a comparison; the direction is ``EQ NE LT LE GT GE``."""
    where = stablehlo.ComparisonDirectionAttr.get(direction)
    return stablehlo.compare(lhs, rhs, where, compare_type=kind)


def lexicographic(lhs: ir.Value, rhs: ir.Value, direction: str) -> ir.Value:
    """The one of two complex numbers that comes first by real, then by imaginary part."""
    kind = compare_kind(DType.F32)
    left, right = stablehlo.real(lhs), stablehlo.real(rhs)
    by_imag = compare(stablehlo.imag(lhs), stablehlo.imag(rhs), direction, kind)
    tie = compare(left, right, "EQ", kind)
    first = stablehlo.select(tie, by_imag, compare(left, right, direction, kind))
    return stablehlo.select(first, lhs, rhs)


@lowers(ops.Sign)
def sign(ctx: LoweringContext, op: ops.Sign, x: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    if type_.dtype.kind is not Kind.UINT:
        return stablehlo.sign(x)
    zero, one = ctx.full(0, type_), ctx.full(1, type_)
    return stablehlo.select(compare(x, zero, "EQ", compare_kind(type_.dtype)), zero, one)


@lowers(ops.Square)
def square(ctx: LoweringContext, op: ops.Square, x: ir.Value) -> ir.Value:
    if ctx.input_types[0].dtype.is_complex:
        return chlo.square(x)
    return stablehlo.multiply(x, x)


@lowers(ops.IntegerPow)
def integer_pow(ctx: LoweringContext, op: ops.IntegerPow, x: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    if op.exponent == 0:
        return ctx.full(1, type_)
    result = _power_of(x, abs(op.exponent))
    return stablehlo.divide(ctx.full(1, type_), result) if op.exponent < 0 else result


def _power_of(x: ir.Value, exponent: int) -> ir.Value:
    """X to a power ≥ 1, from the lowest bit of the exponent upward."""
    while not exponent & 1:
        x, exponent = stablehlo.multiply(x, x), exponent >> 1
    result = x
    while exponent := exponent >> 1:
        x = stablehlo.multiply(x, x)
        result = stablehlo.multiply(result, x) if exponent & 1 else result
    return result


@lowers(ops.OneMinusSquare)
def one_minus_square(ctx: LoweringContext, op: ops.OneMinusSquare, x: ir.Value) -> ir.Value:
    one = ctx.full(1, ctx.output_types[0])
    return stablehlo.multiply(stablehlo.add(one, x), stablehlo.subtract(one, x))


@lowers(ops.Clamp)
def clamp(
    ctx: LoweringContext, op: ops.Clamp, lower: ir.Value, x: ir.Value, upper: ir.Value
) -> ir.Value:
    low, whole, high = ctx.input_types
    if low.rank != high.rank:  # StableHLO wants both bounds alike
        lower, upper = _spread(ctx, lower, low, whole), _spread(ctx, upper, high, whole)
    return stablehlo.clamp(lower, x, upper)


def _spread(
    ctx: LoweringContext, bound: ir.Value, bound_type: TensorType, whole: TensorType
) -> ir.Value:
    return bound if bound_type.rank else ctx.splat(bound, whole)


@lowers(ops.Round)
def round(ctx: LoweringContext, op: ops.Round, x: ir.Value) -> ir.Value:
    if op.ties is ops.Ties.EVEN:
        return stablehlo.round_nearest_even(x)
    return stablehlo.round_nearest_afz(x)


@lowers(ops.MulHi)
def mulhi(ctx: LoweringContext, op: ops.MulHi, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    if type_.dtype.bits < 64:
        wide = type_.with_dtype(DType.I64 if type_.dtype.kind is Kind.INT else DType.U64)
        left, right = (stablehlo.convert(ctx.mlir_type(wide), v) for v in (lhs, rhs))
        product = stablehlo.multiply(left, right)
        upper = stablehlo.shift_right_logical(product, ctx.full(type_.dtype.bits, wide))
        return stablehlo.convert(ctx.mlir_type(type_), upper)
    return _mulhi64(ctx, type_, lhs, rhs)


def _mulhi64(ctx: LoweringContext, type_: TensorType, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Schoolbook product of 32-bit halves; a signed product is corrected afterwards."""
    unsigned = type_.with_dtype(DType.U64)
    half, mask = ctx.full(32, unsigned), ctx.full(np.uint64(0xFFFFFFFF), unsigned)
    parts: list[tuple[ir.Value, ir.Value]] = []
    for value in (lhs, rhs):
        bits = stablehlo.convert(ctx.mlir_type(unsigned), value)
        parts.append((stablehlo.and_(bits, mask), stablehlo.shift_right_logical(bits, half)))
    (low, high), (other_low, other_high) = parts
    lowest = stablehlo.multiply(low, other_low)
    cross = stablehlo.multiply(low, other_high), stablehlo.multiply(high, other_low)
    carry = stablehlo.shift_right_logical(lowest, half)
    upper = stablehlo.multiply(high, other_high)
    for product in cross:
        carry = stablehlo.add(carry, stablehlo.and_(product, mask))
        upper = stablehlo.add(upper, stablehlo.shift_right_logical(product, half))
    upper = stablehlo.add(upper, stablehlo.shift_right_logical(carry, half))
    result = stablehlo.convert(ctx.mlir_type(type_), upper)
    if type_.dtype.kind is Kind.UINT:
        return result
    sign = ctx.full(63, type_)
    for value, other in ((lhs, rhs), (rhs, lhs)):
        negative = stablehlo.shift_right_arithmetic(value, sign)
        result = stablehlo.subtract(result, stablehlo.and_(negative, other))
    return result
