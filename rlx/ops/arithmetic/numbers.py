"""Number rules of arithmetic where NumPy's differ from XLA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.ir.attributes import Array
from rlx.ops.elementwise import parts


def direct(function: Callable[[Any, Any], Any], lhs: Array, rhs: Array) -> Array:
    """Apply a function in the arrays' own dtype, which must not be widened."""
    with np.errstate(all="ignore"):
        return np.asarray(function(lhs, rhs), lhs.dtype)


def divide(lhs: Array, rhs: Array) -> Array:
    """Quotient; integers truncate, and division by zero sets all bits."""
    if lhs.dtype.kind not in "iu":
        return np.asarray(np.true_divide(lhs, rhs), lhs.dtype)
    zero = rhs == 0
    safe = np.where(zero, rhs.dtype.type(1), rhs)
    quotient = np.floor_divide(lhs, safe)
    # Floor division is one too low where the signs differ and there is a remainder.
    inexact = quotient * safe != lhs
    quotient = quotient + (inexact & ((lhs < 0) != (safe < 0))).astype(lhs.dtype)
    least = np.iinfo(lhs.dtype).min
    if least:
        quotient = np.where((lhs == least) & (safe == -1), lhs, quotient)
    return np.where(zero, ~np.zeros((), lhs.dtype), quotient)


def remainder(lhs: Array, rhs: Array) -> Array:
    """Remainder with the sign of lhs; x rem 0 is x for integers."""
    if lhs.dtype.kind not in "iu":
        return np.fmod(lhs, rhs)
    zero = rhs == 0
    safe = np.where(zero, rhs.dtype.type(1), rhs)
    return np.where(zero, lhs, lhs - divide(lhs, safe) * safe)


def power(lhs: Array, rhs: Array) -> Array:
    """Power; integers wrap around, and a negative exponent of them gives 0, 1 or −1."""
    if lhs.dtype.kind not in "iu":
        return np.power(lhs, rhs)
    result = np.ones_like(lhs)
    base, left = lhs.copy(), np.where(rhs < 0, 0, rhs)
    while np.any(left):
        result = np.where(left & 1, result * base, result)
        base = base * base
        left = left >> 1
    sign = np.where(rhs & 1, lhs, result)
    negative = np.where(np.abs(lhs) == 1, sign, 0) if lhs.dtype.kind == "i" else result
    return np.where(rhs < 0, negative, result).astype(lhs.dtype)


def integer_power(x: Array, exponent: int) -> Array:
    """Power by repeated squaring; a negative exponent inverts the result."""
    result, base, left = np.ones_like(x), x, abs(exponent)
    while left:
        if left & 1:
            result = result * base
        left >>= 1
        base = base * base if left else base
    return np.true_divide(1, result) if exponent < 0 else result


def maximum(lhs: Array, rhs: Array) -> Array:
    """Maximum: NaN wins, −0 < +0, complex numbers compare lexicographically."""
    if np.iscomplexobj(lhs):
        return np.where(_before(rhs, lhs), lhs, rhs)
    if lhs.dtype.kind != "f":
        return np.maximum(lhs, rhs)
    tie = np.where(np.signbit(lhs), rhs, lhs)
    return np.where(lhs == rhs, tie, np.maximum(lhs, rhs))


def minimum(lhs: Array, rhs: Array) -> Array:
    """Minimum: NaN wins, −0 < +0, complex numbers compare lexicographically."""
    if np.iscomplexobj(lhs):
        return np.where(_before(lhs, rhs), lhs, rhs)
    if lhs.dtype.kind != "f":
        return np.minimum(lhs, rhs)
    tie = np.where(np.signbit(lhs), lhs, rhs)
    return np.where(lhs == rhs, tie, np.minimum(lhs, rhs))


def _before(lhs: Array, rhs: Array) -> Array:
    (left, left_imag), (right, right_imag) = parts(lhs), parts(rhs)
    return np.where(left == right, left_imag < right_imag, left < right)


def sign(x: Array) -> Array:
    """Sign; zeros keep theirs, NaN stays, complex numbers get modulus 1."""
    if np.iscomplexobj(x):
        size = np.abs(x)
        return np.where(size == 0, x, x / np.where(size == 0, 1, size))
    if x.dtype.kind != "f":
        return np.sign(x)
    return np.where((x == 0) | np.isnan(x), x, np.copysign(np.ones_like(x), x))


def round_away(x: Array) -> Array:
    """Nearest integer; half way goes away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(np.ones_like(x), x), whole)


def multiply_high(lhs: Array, rhs: Array) -> Array:
    """Upper half of an integer product."""
    bits = lhs.dtype.itemsize * 8
    if bits < 64:
        wide = np.int64 if lhs.dtype.kind == "i" else np.uint64
        return ((lhs.astype(wide) * rhs.astype(wide)) >> bits).astype(lhs.dtype)
    product = lhs.astype(object) * rhs.astype(object)
    return np.asarray(np.floor_divide(product, 1 << 64), object).astype(lhs.dtype)
