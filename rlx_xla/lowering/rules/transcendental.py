"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops import transcendental as ops
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import chlo, ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules import arithmetic

_UNARY: dict[type[Op], Callable[..., Any]] = {
    ops.Exp: stablehlo.exponential,
    ops.Expm1: stablehlo.exponential_minus_one,
    ops.Log: stablehlo.log,
    ops.Log1p: stablehlo.log_plus_one,
    ops.Sqrt: stablehlo.sqrt,
    ops.Rsqrt: stablehlo.rsqrt,
    ops.Cbrt: stablehlo.cbrt,
    ops.Tan: stablehlo.tan,
    ops.Tanh: stablehlo.tanh,
    ops.Asin: chlo.asin,
    ops.Acos: chlo.acos,
    ops.Atan: chlo.atan,
    ops.Sinh: chlo.sinh,
    ops.Cosh: chlo.cosh,
    ops.Asinh: chlo.asinh,
    ops.Acosh: chlo.acosh,
    ops.Atanh: chlo.atanh,
}


@lowers(*_UNARY)
def unary(ctx: LoweringContext, op: Op, x: ir.Value) -> ir.Value:
    return _UNARY[type(op)](x)


@lowers(ops.Atan2)
def atan2(ctx: LoweringContext, op: ops.Atan2, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return stablehlo.atan2(lhs, rhs)


@lowers(ops.Exp2)
def exp2(ctx: LoweringContext, op: ops.Exp2, x: ir.Value) -> ir.Value:
    scale = ctx.full(np.log(2), ctx.output_types[0])
    return stablehlo.exponential(stablehlo.multiply(scale, x))


@lowers(ops.Log2)
def log2(ctx: LoweringContext, op: ops.Log2, x: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    natural = stablehlo.log(x)
    scale = ctx.full(1 / np.log(2), type_.with_dtype(type_.dtype.real))
    if not type_.dtype.is_complex:
        return stablehlo.multiply(natural, scale)
    # By parts: a complex product would turn an infinite part into NaN.
    real, imag = stablehlo.real(natural), stablehlo.imag(natural)
    return stablehlo.complex(stablehlo.multiply(real, scale), stablehlo.multiply(imag, scale))


@lowers(ops.Logistic)
def logistic(ctx: LoweringContext, op: ops.Logistic, x: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    if type_.dtype.bits > 8:
        return _logistic(ctx, x, type_)
    wide = type_.with_dtype(DType.F32)  # e^-x does not fit into 8 bits
    result = _logistic(ctx, stablehlo.convert(ctx.mlir_type(wide), x), wide)
    return stablehlo.convert(ctx.mlir_type(type_), result)


def _logistic(ctx: LoweringContext, x: ir.Value, type_: TensorType) -> ir.Value:
    one = ctx.full(1, type_)
    return stablehlo.divide(one, stablehlo.add(one, stablehlo.exponential(stablehlo.negate(x))))


@lowers(ops.Sin)
def sin(ctx: LoweringContext, op: ops.Sin, x: ir.Value) -> ir.Value:
    if not ctx.input_types[0].dtype.is_complex:
        return stablehlo.sine(x)
    parts = _ComplexAngle(ctx, x)
    real = stablehlo.multiply(parts.sine, parts.cosh)
    imag = stablehlo.multiply(parts.cosine, parts.sinh)
    return stablehlo.complex(parts.unless_real_is_zero(real), imag)


@lowers(ops.Cos)
def cos(ctx: LoweringContext, op: ops.Cos, x: ir.Value) -> ir.Value:
    if not ctx.input_types[0].dtype.is_complex:
        return stablehlo.cosine(x)
    parts = _ComplexAngle(ctx, x)
    real = stablehlo.multiply(parts.cosine, parts.cosh)
    imag = stablehlo.multiply(stablehlo.negate(parts.sine), parts.sinh)
    return stablehlo.complex(real, parts.unless_real_is_zero(imag))


@final
class _ComplexAngle:
    """Functions of the parts of a + bi: sin a, cos a, sinh b and cosh b.

    The hyperbolic ones come from expm1, which does not cancel near b = 0.
    """

    def __init__(self, ctx: LoweringContext, x: ir.Value) -> None:
        whole = ctx.input_types[0]
        part = TensorType(whole.dtype.real, whole.shape)
        self._zero, two = ctx.full(0, part), ctx.full(2, part)
        real, imag = stablehlo.real(x), stablehlo.imag(x)
        kind = arithmetic.compare_kind(part.dtype)
        self._real_is_zero = arithmetic.compare(real, self._zero, "EQ", kind)
        self.sine, self.cosine = stablehlo.sine(real), stablehlo.cosine(real)
        up = stablehlo.exponential_minus_one(imag)
        down = stablehlo.exponential_minus_one(stablehlo.negate(imag))
        self.sinh = stablehlo.divide(stablehlo.subtract(up, down), two)
        self.cosh = stablehlo.divide(stablehlo.add(stablehlo.add(up, down), two), two)

    def unless_real_is_zero(self, product: ir.Value) -> ir.Value:
        """The product with sin a, which is zero for a = 0 even where the other factor is ∞."""
        return stablehlo.select(self._real_is_zero, self._zero, product)
