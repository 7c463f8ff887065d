"""Logic on bits and bool, shifts and bit counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlx.dtypes import as_dtype
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import (
    INTEGER,
    LOGICAL,
    binary_result,
    compute1,
    compute2,
    round_to,
    unary_result,
)
from rlx.types import TensorType


@define_op("and")
class And(Op):
    """Bitwise and; logical for bool.

    y = lhs & rhs

    Inputs:
        lhs: T[...]   bool or integer.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is bool or integer.

    Source: StableHLO `and`, `jax.lax.bitwise_and`; RLX `BinaryOp::BitAnd`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, LOGICAL)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(np.bitwise_and, lhs, rhs)


@define_op("or")
class Or(Op):
    """Bitwise or; logical for bool.

    y = lhs | rhs

    Inputs:
        lhs: T[...]   bool or integer.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is bool or integer.

    Source: StableHLO `or`, `jax.lax.bitwise_or`; RLX `BinaryOp::BitOr`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, LOGICAL)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(np.bitwise_or, lhs, rhs)


@define_op("xor")
class Xor(Op):
    """Bitwise exclusive or; logical for bool.

    y = lhs ^ rhs

    Inputs:
        lhs: T[...]   bool or integer.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is bool or integer.

    Source: StableHLO `xor`, `jax.lax.bitwise_xor`; RLX `BinaryOp::BitXor`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, LOGICAL)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(np.bitwise_xor, lhs, rhs)


@define_op("not")
class Not(Op):
    """Bitwise complement; logical for bool.

    y = ~x

    Inputs:
        x: T[...]   bool or integer.

    Result:
        Same type as x.

    Constraints:
        C1: x is bool or integer.

    Source: StableHLO `not`, `jax.lax.bitwise_not`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, LOGICAL)

    def evaluate(self, x: Array) -> Array:
        return compute1(np.invert, x)


@define_op("shift_left")
class ShiftLeft(Op):
    """Shift to the left, zeros come in.

    y = lhs · 2^rhs

    Inputs:
        lhs: T[...]   integer.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; 0 when rhs is negative or not less than the width.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is integer.

    Source: StableHLO `shift_left`, `jax.lax.shift_left`; RLX `BinaryOp::Shl`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, INTEGER)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return _shift(_left, lhs, rhs)


@define_op("shift_right_arithmetic")
class ShiftRightArithmetic(Op):
    """Shift to the right, copies of the sign bit come in.

    y = floor(lhs / 2^rhs), lhs read as signed

    Inputs:
        lhs: T[...]   integer.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; all sign bits when rhs is negative or not less than the width.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is integer.

    Source: StableHLO and `jax.lax` `shift_right_arithmetic`; RLX `BinaryOp::Shr`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, INTEGER)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return _shift(_right_arithmetic, lhs, rhs)


@define_op("shift_right_logical")
class ShiftRightLogical(Op):
    """Shift to the right, zeros come in.

    y = floor(lhs / 2^rhs), lhs read as unsigned

    Inputs:
        lhs: T[...]   integer.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; 0 when rhs is negative or not less than the width.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is integer.

    Source: StableHLO `shift_right_logical`, `jax.lax.shift_right_logical`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, INTEGER)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return _shift(_right_logical, lhs, rhs)


@define_op("population_count")
class PopulationCount(Op):
    """How many bits are set.

    y = number of ones in x

    Inputs:
        x: T[...]   integer.

    Result:
        Same type as x.

    Constraints:
        C1: x is integer.

    Source: StableHLO `popcnt`, `jax.lax.population_count`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INTEGER)

    def evaluate(self, x: Array) -> Array:
        return _count(_ones, x)


@define_op("clz")
class Clz(Op):
    """How many zeros stand before the first one.

    y = width - 1 - position of the highest one; the width for 0

    Inputs:
        x: T[...]   integer.

    Result:
        Same type as x.

    Constraints:
        C1: x is integer.

    Source: StableHLO `count_leading_zeros`, `jax.lax.clz`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INTEGER)

    def evaluate(self, x: Array) -> Array:
        return _count(_leading_zeros, x)


def _unsigned(x: Array) -> Array:
    """The bits as u64, zeros in front."""
    bits = as_dtype(x.dtype).bits
    return x.astype(np.int64 if x.dtype.kind == "i" or bits < 8 else np.uint64).astype(
        np.uint64
    ) & np.uint64(2**bits - 1)


def _shift(function: Callable[[Array, Array, int], Array], lhs: Array, rhs: Array) -> Array:
    """Apply a shift of 64-bit values to bits whose amounts read as unsigned."""
    dtype = as_dtype(lhs.dtype)
    amount = np.minimum(_unsigned(rhs), np.uint64(dtype.bits))
    return round_to(function(_unsigned(lhs), amount, dtype.bits), dtype)


def _left(value: Array, amount: Array, width: int) -> Array:
    inside = amount < width
    shifted = value << np.where(inside, amount, np.uint64(0))
    return np.where(inside, shifted, np.uint64(0)) & np.uint64(2**width - 1)


def _right_logical(value: Array, amount: Array, width: int) -> Array:
    inside = amount < width
    return np.where(inside, value >> np.where(inside, amount, np.uint64(0)), np.uint64(0))


def _right_arithmetic(value: Array, amount: Array, width: int) -> Array:
    spare = np.uint64(64 - width)
    signed = (value << spare).astype(np.int64) >> np.int64(64 - width)
    return signed >> np.minimum(amount, np.uint64(width - 1)).astype(np.int64)


def _count(function: Callable[[Array, int], Array], x: Array) -> Array:
    dtype = as_dtype(x.dtype)
    return round_to(function(_unsigned(x), dtype.bits), dtype)


def _ones(value: Array, width: int) -> Array:
    return np.bitwise_count(value).astype(np.int64)


def _leading_zeros(value: Array, width: int) -> Array:
    length = np.zeros(value.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        high = (value >> np.uint64(step)) > 0
        length += np.where(high, step, 0)
        value = np.where(high, value >> np.uint64(step), value)
    return width - length - value.astype(np.int64)
