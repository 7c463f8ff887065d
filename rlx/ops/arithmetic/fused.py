"""A product and a sum with one rounding."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.ir.attributes import Array
from rlx.ir.derivatives import Values, jvp_rule
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import FLOATING, require_kind, require_same_type
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


_LAST_OF_SINGLE = 1 << 29
"""In an f64, the last bit that f32 has too."""
_BELOW_SINGLE = _LAST_OF_SINGLE - 1


@define_op("fma")
class Fma(Op):
    """Fused multiply-add.

    y = a · b + c, rounded once

    Inputs:
        a: T[...]   float.
        b: T[...]   same type as a.
        c: T[...]   same type as a.

    Result:
        Same type as a.

    Constraints:
        C1: a, b and c have one shape.
        C2: a, b and c have one dtype.
        C3: the dtype is float.

    Numerics: floats up to f32 are exact to the last bit on every device: the product is exact in
    f64, and the sum is rounded to odd before it is rounded to T. For f64 a device rounds once
    where it fuses the two, and twice otherwise.
    Source: RLX `Op::Fma`, IEEE 754 fusedMultiplyAdd; Boldo & Melquiond 2008 (rounding to odd).

    Example:
        >>> x = np.array([1 + 2.0**-12], np.float32)
        >>> Fma().evaluate(x, x, np.array([-1], np.float32)) == np.float32(2**-11 + 2**-24)
        array([ True])
    """

    def infer(self, a: TensorType, b: TensorType, c: TensorType) -> TensorType:
        require_same_type(self, "a", a, "b", b)
        require_same_type(self, "a", a, "c", c)
        require_kind(self, "C3", "a", a, FLOATING)
        return a

    def evaluate(self, a: Array, b: Array, c: Array) -> Array:
        dtype = as_dtype(a.dtype)
        with np.errstate(all="ignore"):
            if dtype is DType.F64:
                triples = zip(a.reshape(-1), b.reshape(-1), c.reshape(-1), strict=True)
                return np.array([_exact(*t) for t in triples], np.float64).reshape(a.shape)
            product = a.astype(np.float64) * b.astype(np.float64)
            total = _odd_sum(product, c.astype(np.float64))
            if dtype is DType.F32:
                return total.astype(np.float32)
            return _odd_single(total).astype(np.float32).astype(dtype.numpy)

    def decompose(self, a: Value, b: Value, c: Value) -> Value:
        if a.dtype is DType.F64:
            return a * b + c
        total = _odd_sum_values(a.convert(DType.F64) * b.convert(DType.F64), c.convert(DType.F64))
        if a.dtype is DType.F32:
            return total.convert(DType.F32)
        return _odd_single_values(total).convert(DType.F32).convert(a.dtype)


@jvp_rule(Fma)
def _tangent(op: Op, inputs: Values, results: Values, tangents: Values) -> Values:
    """That of a · b + c: rounding to odd goes through bits, which have no derivative."""
    del op, results
    (a, b, _), (da, db, dc) = inputs, tangents
    return (da * b + a * db + dc,)


def _exact(a: Any, b: Any, c: Any) -> float:
    """A · b + c of f64 numbers, by rational arithmetic."""
    plain = float(a * b + c)
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)) or not (a and b):
        return plain
    total = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    try:
        return float(total)
    except OverflowError:
        return np.inf if total > 0 else -np.inf


def _odd_sum(x: Array, y: Array) -> Array:
    """X + y in f64, rounded to odd: what is inexact gets a last bit of 1."""
    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + step, bits).view(np.float64)


def _odd_single(x: Array) -> Array:
    """f64 rounded to odd at the precision of f32, so that a second rounding is right."""
    bits = x.view(np.int64)
    kept = bits & ~_BELOW_SINGLE
    return np.where(bits & _BELOW_SINGLE, kept | _LAST_OF_SINGLE, kept).view(np.float64)


def _odd_sum_values(x: Value, y: Value) -> Value:
    from rlx.ops.arithmetic.rounding import IsFinite
    from rlx.ops.compare import Compare, Direction, Select
    from rlx.ops.convert import BitcastConvert

    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)
    bits: Value = BitcastConvert(dtype=DType.I64)(total)
    inexact = error.ne(0.0) & IsFinite()(total) & (bits & 1).eq(0)
    same = Compare(direction=Direction.EQ)(error > 0.0, total > 0.0)
    moved = Select()(same, bits + 1, bits - 1)
    return BitcastConvert(dtype=DType.F64)(Select()(inexact, moved, bits))


def _odd_single_values(x: Value) -> Value:
    from rlx.ops.compare import Select
    from rlx.ops.convert import BitcastConvert

    bits: Value = BitcastConvert(dtype=DType.I64)(x)
    kept = bits & ~_BELOW_SINGLE
    odd = Select()((bits & _BELOW_SINGLE).ne(0), kept | _LAST_OF_SINGLE, kept)
    return BitcastConvert(dtype=DType.F64)(odd)
