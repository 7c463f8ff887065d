"""Elementwise ops: arithmetic, transcendental and special functions, bits, choices, conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from rlx import ops
from rlx.ir.op import Op
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import JaxRule, to_jax_rule

_PLAIN: dict[type[Op], Any] = {
    ops.Neg: lax.neg,
    ops.Abs: lax.abs,
    ops.Sign: lax.sign,
    ops.Square: lax.square,
    ops.Floor: lax.floor,
    ops.Ceil: lax.ceil,
    ops.IsFinite: lax.is_finite,
    ops.Add: lax.add,
    ops.Sub: lax.sub,
    ops.Mul: lax.mul,
    ops.Div: lax.div,
    ops.Rem: lax.rem,
    ops.Max: lax.max,
    ops.Min: lax.min,
    ops.NextAfter: lax.nextafter,
    ops.Pow: lax.pow,
    ops.Clamp: lax.clamp,
    ops.Exp: lax.exp,
    ops.Exp2: lax.exp2,
    ops.Expm1: lax.expm1,
    ops.Log: lax.log,
    ops.Log1p: lax.log1p,
    ops.Logistic: lax.logistic,
    ops.Sqrt: lax.sqrt,
    ops.Rsqrt: lax.rsqrt,
    ops.Cbrt: lax.cbrt,
    ops.Sin: lax.sin,
    ops.Cos: lax.cos,
    ops.Tan: lax.tan,
    ops.Asin: lax.asin,
    ops.Acos: lax.acos,
    ops.Atan: lax.atan,
    ops.Atan2: lax.atan2,
    ops.Sinh: lax.sinh,
    ops.Cosh: lax.cosh,
    ops.Tanh: lax.tanh,
    ops.Asinh: lax.asinh,
    ops.Acosh: lax.acosh,
    ops.Atanh: lax.atanh,
    ops.Erf: lax.erf,
    ops.Erfc: lax.erfc,
    ops.ErfInv: lax.erf_inv,
    ops.Lgamma: lax.lgamma,
    ops.Digamma: lax.digamma,
    ops.BesselI0e: lax.bessel_i0e,
    ops.BesselI1e: lax.bessel_i1e,
    ops.Polygamma: lax.polygamma,
    ops.Zeta: lax.zeta,
    ops.Igamma: lax.igamma,
    ops.Igammac: lax.igammac,
    ops.IgammaGradA: lax.igamma_grad_a,
    ops.RegularizedIncompleteBeta: lax.betainc,
    ops.Not: lax.bitwise_not,
    ops.And: lax.bitwise_and,
    ops.Or: lax.bitwise_or,
    ops.Xor: lax.bitwise_xor,
    ops.PopulationCount: lax.population_count,
    ops.Clz: lax.clz,
    ops.ShiftLeft: lax.shift_left,
    ops.ShiftRightArithmetic: lax.shift_right_arithmetic,
    ops.ShiftRightLogical: lax.shift_right_logical,
    ops.Real: lax.real,
    ops.Imag: lax.imag,
    ops.Complex: lax.complex,
    ops.Conj: lax.conj,
    ops.SelectN: lax.select_n,
}


def _plain_rule(function: Any) -> JaxRule:
    def rule(ctx: JaxContext, op: Op, *arrays: Any) -> Any:
        return function(*arrays)

    return rule


for _op, _function in _PLAIN.items():
    to_jax_rule(_op)(_plain_rule(_function))


def _newer(op: type[Op], primitive: str, instead: Any) -> None:
    """A rule for a primitive that only newer versions of JAX have."""
    found = getattr(lax, f"{primitive}_p", None)
    to_jax_rule(op, named=found is None)(_plain_rule(instead if found is None else found.bind))


def _mulhi(lhs: Any, rhs: Any) -> Any:
    """The upper half of a product of integers, from products of halves."""
    bits = lhs.dtype.itemsize * 8
    half = np.asarray(bits // 2, lhs.dtype)
    mask = np.asarray((1 << (bits // 2)) - 1, lhs.dtype)
    signed = np.issubdtype(lhs.dtype, np.signedinteger)
    shift = lax.shift_right_arithmetic if signed else lax.shift_right_logical
    a1, a0, b1, b0 = (
        shift(lhs, _like(half, lhs)), lhs & mask, shift(rhs, _like(half, rhs)), rhs & mask,
    )  # fmt: skip
    low = lax.shift_right_logical(a0 * b0, _like(half, lhs))
    middle = a1 * b0 + low
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + shift(middle, _like(half, lhs)) + shift(other, _like(half, lhs))


def _like(scalar: Any, array: Any) -> Any:
    return lax.full(array.shape, scalar, array.dtype)


_newer(ops.MulHi, "mulhi", _mulhi)
_newer(ops.OneMinusSquare, "one_minus_square", lambda x: lax.sub(_like(1, x), lax.mul(x, x)))
_newer(ops.Log2, "log2", lambda x: lax.div(lax.log(x), lax.log(_like(2, x))))


@to_jax_rule(ops.IntegerPow)
def integer_pow(ctx: JaxContext, op: ops.IntegerPow, x: Any) -> Any:
    return lax.integer_pow_p.bind(x, y=op.exponent)


@to_jax_rule(ops.Round)
def round(ctx: JaxContext, op: ops.Round, x: Any) -> Any:
    even = op.ties is ops.Ties.EVEN
    methods = lax.RoundingMethod
    return lax.round(x, methods.TO_NEAREST_EVEN if even else methods.AWAY_FROM_ZERO)


_NEGATED = {"ne": ("eq", False), "gt": ("lt", True), "ge": ("le", True)}
"""In the total order: what JAX has instead, and whether the operands change places."""


@to_jax_rule(ops.Compare, named=lambda op: op.total_order and op.direction.value in _NEGATED)
def compare(ctx: JaxContext, op: ops.Compare, lhs: Any, rhs: Any) -> Any:
    direction = op.direction.value
    if not op.total_order:
        return getattr(lax, f"{direction}_p").bind(lhs, rhs)
    base, swapped = _NEGATED.get(direction, (direction, False))
    made = getattr(lax, f"{base}_to_p").bind(*((rhs, lhs) if swapped else (lhs, rhs)))
    return lax.bitwise_not(made) if direction == "ne" else made


@to_jax_rule(ops.Select)
def select(ctx: JaxContext, op: ops.Select, pred: Any, on_true: Any, on_false: Any) -> Any:
    return lax.select_n(pred, on_false, on_true)


@to_jax_rule(ops.Convert)
def convert(ctx: JaxContext, op: ops.Convert, x: Any) -> Any:
    return lax.convert_element_type(x, op.dtype.numpy)


@to_jax_rule(ops.BitcastConvert)
def bitcast_convert(ctx: JaxContext, op: ops.BitcastConvert, x: Any) -> Any:
    return lax.bitcast_convert_type(x, op.dtype.numpy)


@to_jax_rule(ops.ReducePrecision)
def reduce_precision(ctx: JaxContext, op: ops.ReducePrecision, x: Any) -> Any:
    return lax.reduce_precision_p.bind(
        x, exponent_bits=op.exponent_bits, mantissa_bits=op.mantissa_bits
    )


@to_jax_rule(ops.Copy)
def copy(ctx: JaxContext, op: ops.Copy, x: Any) -> Any:
    return lax.copy_p.bind(x)


@to_jax_rule(ops.StopGradient)
def stop_gradient(ctx: JaxContext, op: ops.StopGradient, x: Any) -> Any:
    return lax.stop_gradient_p.bind(x)


@to_jax_rule(ops.OptimizationBarrier)
def optimization_barrier(ctx: JaxContext, op: ops.OptimizationBarrier, *xs: Any) -> Any:
    return lax.optimization_barrier(tuple(xs))


@to_jax_rule(ops.Constant)
def constant(ctx: JaxContext, op: ops.Constant) -> Any:
    return op.value.array


@to_jax_rule(ops.CreateToken)
def create_token(ctx: JaxContext, op: ops.CreateToken) -> Any:
    return (None,)


@to_jax_rule(ops.Fft, named=lambda op: op.norm is not ops.FftNorm.BACKWARD)
def fft(ctx: JaxContext, op: ops.Fft, x: Any) -> Any:
    made = lax.fft(x, lax.FftType[op.fft_type.name], op.fft_lengths)
    if op.norm is ops.FftNorm.BACKWARD:
        return made
    count = float(np.prod(op.fft_lengths))
    inverse = op.fft_type in (ops.FftType.IFFT, ops.FftType.IRFFT)
    scale = count**0.5 if inverse else count**-0.5
    if op.norm is ops.FftNorm.FORWARD:
        scale = count if inverse else 1 / count
    return lax.mul(made, _like(scale, made))
