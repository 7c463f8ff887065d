"""Two inputs of one shape and one dtype."""

from __future__ import annotations

import numpy as np

from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.arithmetic import numbers
from rlx.ops.elementwise import (
    ANY,
    FLOATING,
    NUMBER,
    REAL,
    binary_result,
    compute2,
    require_same_type,
)
from rlx.types import TensorType


@define_op("add")
class Add(Op):
    """Elementwise sum; logical or for bool.

    y = lhs + rhs

    Inputs:
        lhs: T[...]   number or bool.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. Integers wrap around.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number or bool.

    Source: StableHLO `add`, `jax.lax.add`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, ANY)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(np.add, lhs, rhs)


@define_op("sub")
class Sub(Op):
    """Elementwise difference.

    y = lhs - rhs

    Inputs:
        lhs: T[...]   number.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. Integers wrap around.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number.

    Source: StableHLO `subtract`, `jax.lax.sub`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, NUMBER)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(np.subtract, lhs, rhs)


@define_op("mul")
class Mul(Op):
    """Elementwise product; logical and for bool.

    y = lhs · rhs

    Inputs:
        lhs: T[...]   number or bool.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. Integers wrap around.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number or bool.

    Source: StableHLO `multiply`, `jax.lax.mul`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, ANY)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(np.multiply, lhs, rhs)


@define_op("div")
class Div(Op):
    """Elementwise quotient; integers truncate toward zero.

    y = lhs / rhs

    Inputs:
        lhs: T[...]   number.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. Integers: x / 0 has all bits set, and the least integer / -1 is itself.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number.

    Source: StableHLO `divide`, `jax.lax.div`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, NUMBER)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(numbers.divide, lhs, rhs)


@define_op("rem")
class Rem(Op):
    """Remainder of the truncating division; it has the sign of lhs.

    y = lhs - trunc(lhs / rhs) · rhs

    Inputs:
        lhs: T[...]   integer or float.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. Integers: x rem 0 is x.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is integer or float.

    Source: StableHLO `remainder`, `jax.lax.rem`; RLX `BinaryOp::Mod`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, REAL)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(numbers.remainder, lhs, rhs)


@define_op("pow")
class Pow(Op):
    """Elementwise power.

    y = lhs ** rhs

    Inputs:
        lhs: T[...]   number.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. Integers wrap around; a negative exponent gives 0 unless lhs is 1 or -1.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number.

    Source: StableHLO `power`, `jax.lax.pow` (which converts an integer exponent first).
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, NUMBER)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(numbers.power, lhs, rhs)


@define_op("max")
class Max(Op):
    """Elementwise maximum; complex numbers compare by real, then imaginary part.

    y = lhs if lhs > rhs else rhs

    Inputs:
        lhs: T[...]   number or bool.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. NaN wins, and -0 < +0; a complex NaN does not compare, so rhs is kept.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number or bool.

    Source: StableHLO `maximum`, `jax.lax.max`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, ANY)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(numbers.maximum, lhs, rhs)


@define_op("min")
class Min(Op):
    """Elementwise minimum; complex numbers compare by real, then imaginary part.

    y = lhs if lhs < rhs else rhs

    Inputs:
        lhs: T[...]   number or bool.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. NaN wins, and -0 < +0; a complex NaN does not compare, so rhs is kept.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is number or bool.

    Source: StableHLO `minimum`, `jax.lax.min`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, ANY)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(numbers.minimum, lhs, rhs)


@define_op("nextafter")
class NextAfter(Op):
    """The next representable number after lhs in the direction of rhs.

    y = lhs stepped one unit in the last place toward rhs

    Inputs:
        lhs: T[...]   float.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; rhs where both are equal, NaN where one is NaN.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is float.

    Source: CHLO `next_after`, `jax.lax.nextafter`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, FLOATING)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return numbers.direct(np.nextafter, lhs, rhs)


@define_op("mulhi")
class MulHi(Op):
    """The upper half of a product of integers.

    y = floor(lhs · rhs / 2^bits)

    Inputs:
        lhs: T[...]   integer.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is integer of at least 8 bits.

    Source: `jax.lax.mulhi`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        require_same_type(self, "lhs", lhs, "rhs", rhs)
        self.require(
            "C3",
            lhs.dtype.is_integer and lhs.dtype.bits >= 8,
            f"the dtype is required to be an integer of at least 8 bits; got {lhs}. Convert it.",
            DTypeError,
        )
        return lhs

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return numbers.multiply_high(lhs, rhs)
