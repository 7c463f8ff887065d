"""Elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from rlx.dtypes import DType, Kind
from rlx.ir.op import Op
from rlx.ops import arithmetic as ops
from rlx.types import TensorType
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import JaxRule, to_jax_rule

_PLAIN: dict[type[Op], Any] = {
    ops.Neg: lax.neg,
    ops.Sign: lax.sign,
    ops.Square: lax.square,
    ops.Floor: lax.floor,
    ops.Ceil: lax.ceil,
    ops.IsFinite: lax.is_finite,
    ops.Sub: lax.sub,
    ops.Div: lax.div,
    ops.Rem: lax.rem,
    ops.Max: lax.max,
    ops.Min: lax.min,
    ops.NextAfter: lax.nextafter,
    ops.Clamp: lax.clamp,
}


def plain_rule(function: Callable[..., Any]) -> JaxRule:
    """Rule of an op without attributes that is a function of JAX."""

    def rule(ctx: JaxContext, op: Op, *arrays: Any) -> Any:
        return function(*arrays)

    return rule


def newer_rule(op: type[Op], primitive: str, instead: Callable[..., Any]) -> None:
    """Register a primitive that only newer versions of JAX have, or what it is made of."""
    found = getattr(lax, f"{primitive}_p", None)
    # The function knows the primitive's parameters; some primitives have none in jax.lax.
    bind = None if found is None else getattr(lax, primitive, found.bind)
    chosen = instead if bind is None else lambda *arrays: bind(*arrays)
    to_jax_rule(op, named=found is None)(plain_rule(chosen))


def is_narrow(op: Op, types: Sequence[TensorType]) -> bool:
    """Whether the operands are integers below a byte, which some of JAX's functions refuse."""
    return types[0].dtype.is_integer and types[0].dtype.bits < 8


def is_bool(op: Op, types: Sequence[TensorType]) -> bool:
    """Whether the operands are bool."""
    return types[0].dtype is DType.BOOL


def through(wide: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    """Compute in a wider dtype and convert back."""
    made = function(*(lax.convert_element_type(x, wide) for x in arrays))
    return lax.convert_element_type(made, arrays[0].dtype)


def full_like(value: Any, array: Any) -> Any:
    """An array of one value, in the shape and dtype of another."""
    return lax.full(array.shape, value, array.dtype)


for _op, _function in _PLAIN.items():
    to_jax_rule(_op)(plain_rule(_function))


@to_jax_rule(ops.Add, named=is_bool)
def add(ctx: JaxContext, op: ops.Add, lhs: Any, rhs: Any) -> Any:
    return lax.bitwise_or(lhs, rhs) if lhs.dtype == bool else lax.add(lhs, rhs)


@to_jax_rule(ops.Mul, named=is_bool)
def mul(ctx: JaxContext, op: ops.Mul, lhs: Any, rhs: Any) -> Any:
    return lax.bitwise_and(lhs, rhs) if lhs.dtype == bool else lax.mul(lhs, rhs)


@to_jax_rule(ops.Abs, named=is_narrow)
def abs(ctx: JaxContext, op: ops.Abs, x: Any) -> Any:
    return through(np.int32, lax.abs, x) if is_narrow(op, ctx.in_types) else lax.abs(x)


@to_jax_rule(ops.Pow, named=lambda op, types: types[0].dtype.is_integer)
def pow(ctx: JaxContext, op: ops.Pow, lhs: Any, rhs: Any) -> Any:
    """JAX has no power of integers: square repeatedly, one turn per bit of the exponent."""
    dtype = ctx.in_types[0].dtype
    if not dtype.is_integer:
        return lax.pow(lhs, rhs)
    if dtype.bits < 8:
        return through(np.int32, lambda a, b: pow(ctx, op, a, b), lhs, rhs)
    zero, one = full_like(0, lhs), full_like(1, lhs)
    result, base, left = one, lhs, lax.max(rhs, zero)
    for _ in range(dtype.bits):
        odd = lax.ne(lax.bitwise_and(left, one), zero)
        result = lax.select(odd, lax.mul(result, base), result)
        base = lax.mul(base, base)
        left = lax.shift_right_logical(left, one)
    if dtype.kind is Kind.UINT:
        return result
    odd = lax.ne(lax.bitwise_and(rhs, one), zero)
    unit = lax.eq(lax.abs(lhs), one)
    inverse = lax.select(unit, lax.select(odd, lhs, one), zero)
    return lax.select(lax.lt(rhs, zero), inverse, result)


@to_jax_rule(ops.IntegerPow)
def integer_pow(ctx: JaxContext, op: ops.IntegerPow, x: Any) -> Any:
    return lax.integer_pow_p.bind(x, y=op.exponent)


@to_jax_rule(ops.Round)
def round(ctx: JaxContext, op: ops.Round, x: Any) -> Any:
    methods = lax.RoundingMethod
    even = op.ties is ops.Ties.EVEN
    return lax.round(x, methods.TO_NEAREST_EVEN if even else methods.AWAY_FROM_ZERO)


def _mulhi(lhs: Any, rhs: Any) -> Any:
    """The upper half of a product of integers, from products of halves."""
    bits = lhs.dtype.itemsize * 8
    half, mask = full_like(bits // 2, lhs), full_like((1 << (bits // 2)) - 1, lhs)
    signed = np.issubdtype(lhs.dtype, np.signedinteger)
    shift = lax.shift_right_arithmetic if signed else lax.shift_right_logical
    a1, a0 = shift(lhs, half), lax.bitwise_and(lhs, mask)
    b1, b0 = shift(rhs, half), lax.bitwise_and(rhs, mask)
    middle = lax.add(lax.mul(a1, b0), lax.shift_right_logical(lax.mul(a0, b0), half))
    other = lax.add(lax.mul(a0, b1), lax.bitwise_and(middle, mask))
    return lax.add(lax.add(lax.mul(a1, b1), shift(middle, half)), shift(other, half))


newer_rule(ops.MulHi, "mulhi", _mulhi)
newer_rule(
    ops.OneMinusSquare, "one_minus_square", lambda x: lax.sub(full_like(1, x), lax.mul(x, x))
)
