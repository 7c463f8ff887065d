"""Logic on bits and bool, shifts and bit counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops import bitwise as ops
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers

_UNARY: dict[type[Op], Callable[..., Any]] = {
    ops.Not: stablehlo.not_,
    ops.Clz: stablehlo.count_leading_zeros,
}
_BINARY: dict[type[Op], Callable[..., Any]] = {
    ops.And: stablehlo.and_,
    ops.Or: stablehlo.or_,
    ops.Xor: stablehlo.xor,
    ops.ShiftLeft: stablehlo.shift_left,
    ops.ShiftRightArithmetic: stablehlo.shift_right_arithmetic,
    ops.ShiftRightLogical: stablehlo.shift_right_logical,
}


@lowers(*_UNARY)
def unary(ctx: LoweringContext, op: Op, x: ir.Value) -> ir.Value:
    return _UNARY[type(op)](x)


@lowers(*_BINARY)
def binary(ctx: LoweringContext, op: Op, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return _BINARY[type(op)](lhs, rhs)


@lowers(ops.PopulationCount)
def population_count(ctx: LoweringContext, op: ops.PopulationCount, x: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    narrow = {DType.I2: DType.U2, DType.I4: DType.U4}
    if type_.dtype not in narrow:
        return stablehlo.popcnt(x)
    # XLA's CPU counts the copies of the sign bit that pad the byte.
    plain = stablehlo.convert(ctx.mlir_type(type_.with_dtype(narrow[type_.dtype])), x)
    return stablehlo.convert(ctx.mlir_type(type_), stablehlo.popcnt(plain))
