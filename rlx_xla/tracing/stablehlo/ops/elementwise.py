"""Elementwise ops, one to one: StableHLO's, CHLO's, and the composites that stand for CHLO's."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import Kind
from rlx.ir.graph import Value
from rlx.ir.op import Op
from rlx.ops import arithmetic, bitwise, complex_fft, special, transcendental
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convert import BitcastConvert, Convert, OptimizationBarrier, ReducePrecision
from rlx_xla.tracing.stablehlo.context import OpContext
from rlx_xla.tracing.stablehlo.registry import imports

STABLEHLO: dict[str, type[Op]] = {
    "abs": arithmetic.Abs,
    "add": arithmetic.Add,
    "and": bitwise.And,
    "atan2": transcendental.Atan2,
    "cbrt": transcendental.Cbrt,
    "ceil": arithmetic.Ceil,
    "clamp": arithmetic.Clamp,
    "complex": complex_fft.Complex,
    "cosine": transcendental.Cos,
    "count_leading_zeros": bitwise.Clz,
    "divide": arithmetic.Div,
    "exponential": transcendental.Exp,
    "exponential_minus_one": transcendental.Expm1,
    "floor": arithmetic.Floor,
    "is_finite": arithmetic.IsFinite,
    "log": transcendental.Log,
    "log_plus_one": transcendental.Log1p,
    "logistic": transcendental.Logistic,
    "maximum": arithmetic.Max,
    "minimum": arithmetic.Min,
    "multiply": arithmetic.Mul,
    "negate": arithmetic.Neg,
    "not": bitwise.Not,
    "or": bitwise.Or,
    "popcnt": bitwise.PopulationCount,
    "power": arithmetic.Pow,
    "remainder": arithmetic.Rem,
    "rsqrt": transcendental.Rsqrt,
    "select": Select,
    "shift_left": bitwise.ShiftLeft,
    "shift_right_arithmetic": bitwise.ShiftRightArithmetic,
    "shift_right_logical": bitwise.ShiftRightLogical,
    "sign": arithmetic.Sign,
    "sine": transcendental.Sin,
    "sqrt": transcendental.Sqrt,
    "subtract": arithmetic.Sub,
    "tan": transcendental.Tan,
    "tanh": transcendental.Tanh,
    "xor": bitwise.Xor,
}
CHLO: dict[str, type[Op]] = {
    "acos": transcendental.Acos,
    "acosh": transcendental.Acosh,
    "asin": transcendental.Asin,
    "asinh": transcendental.Asinh,
    "atan": transcendental.Atan,
    "atanh": transcendental.Atanh,
    "bessel_i1e": special.BesselI1e,
    "conj": complex_fft.Conj,
    "cosh": transcendental.Cosh,
    "digamma": special.Digamma,
    "erf": special.Erf,
    "erf_inv": special.ErfInv,
    "erfc": special.Erfc,
    "lgamma": special.Lgamma,
    "next_after": arithmetic.NextAfter,
    "polygamma": special.Polygamma,
    "sinh": transcendental.Sinh,
    "square": arithmetic.Square,
    "tan": transcendental.Tan,
    "zeta": special.Zeta,
}


def _one_to_one(name: str, op: type[Op]) -> None:
    @imports(name)
    def rule(ctx: OpContext, *operands: Value) -> Any:
        if ctx.has("result_accuracy") and "DEFAULT" not in str(ctx.attribute("result_accuracy")):
            return NotImplemented
        return op()(*operands)


for _name, _op in STABLEHLO.items():
    _one_to_one(f"stablehlo.{_name}", _op)
for _name, _op in CHLO.items():
    _one_to_one(f"chlo.{_name}", _op)


@imports("stablehlo.real")
def real(ctx: OpContext, x: Value) -> Value:
    """The real part; of a real number, the number."""
    return complex_fft.Real()(x) if x.type.dtype.is_complex else x


@imports("stablehlo.imag")
def imag(ctx: OpContext, x: Value) -> Any:
    """The imaginary part."""
    return complex_fft.Imag()(x) if x.type.dtype.is_complex else NotImplemented


@imports("stablehlo.round_nearest_even")
def round_nearest_even(ctx: OpContext, x: Value) -> Value:
    """Ties go to the even number."""
    return arithmetic.Round(ties=arithmetic.Ties.EVEN)(x)


@imports("stablehlo.round_nearest_afz")
def round_nearest_afz(ctx: OpContext, x: Value) -> Any:
    """Ties go away from zero."""
    away = next(t for t in arithmetic.Ties if t is not arithmetic.Ties.EVEN)
    return arithmetic.Round(ties=away)(x)


@imports("stablehlo.compare")
def compare(ctx: OpContext, lhs: Value, rhs: Value) -> Any:
    """Comparison; only floats have a total order of their own."""
    direction = Direction[ctx.word("comparison_direction")]
    total = ctx.word("compare_type") == "TOTALORDER" and lhs.type.dtype.kind is Kind.FLOAT
    return Compare(direction=direction, total_order=total)(lhs, rhs)


@imports("stablehlo.convert")
def convert(ctx: OpContext, x: Value) -> Value:
    """Conversion to the dtype of the result."""
    target = ctx.out_types[0].dtype
    return x if target is x.type.dtype else Convert(dtype=target)(x)


@imports("stablehlo.bitcast_convert")
def bitcast_convert(ctx: OpContext, x: Value) -> Any:
    """The same bits; RLX has no bits of complex numbers and bools."""
    target = ctx.out_types[0].dtype
    plain = (Kind.INT, Kind.UINT, Kind.FLOAT)
    if target is not x.type.dtype and not all(d.kind in plain for d in (target, x.type.dtype)):
        return NotImplemented
    return BitcastConvert(dtype=target)(x)


@imports("stablehlo.reduce_precision")
def reduce_precision(ctx: OpContext, x: Value) -> Value:
    """Rounding to a format of fewer bits."""
    op = ReducePrecision(
        exponent_bits=ctx.integer("exponent_bits"), mantissa_bits=ctx.integer("mantissa_bits")
    )
    return op(x)


@imports("stablehlo.optimization_barrier")
def optimization_barrier(ctx: OpContext, *operands: Value) -> Any:
    """A barrier over all operands."""
    return OptimizationBarrier()(*operands) if operands else ()


@imports("stablehlo.fft")
def fft(ctx: OpContext, x: Value) -> Any:
    """A Fourier transform with StableHLO's scaling, which is RLX's default."""
    lengths = ctx.integers("fft_length")
    if 0 in lengths:
        return NotImplemented
    kind = complex_fft.FftType[ctx.word("fft_type")]
    return complex_fft.Fft(fft_type=kind, fft_lengths=lengths)(x)
