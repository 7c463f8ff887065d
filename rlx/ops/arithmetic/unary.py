"""Signs, powers, bounds and polynomials of one input."""

from __future__ import annotations

import numpy as np

from rlx.errors import DTypeError, ShapeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.arithmetic import numbers
from rlx.ops.arithmetic.binary import Add, Mul
from rlx.ops.elementwise import (
    NUMBER,
    ORDERED,
    SIGNED,
    compute1,
    compute2,
    require_kind,
    require_same_type,
    unary_result,
)
from rlx.types import TensorType


@define_op("neg")
class Neg(Op):
    """Elementwise negation.

    y = -x

    Inputs:
        x: T[...]   number.

    Result:
        Same type as x. Integers wrap around.

    Constraints:
        C1: x is number.

    Source: StableHLO `negate`, `jax.lax.neg`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, NUMBER)

    def evaluate(self, x: Array) -> Array:
        return compute1(np.negative, x)


@define_op("abs")
class Abs(Op):
    """Elementwise magnitude.

    y = |x|

    Inputs:
        x: T[...]   signed integer, float or complex.

    Result:
        Same shape; the type of the parts for complex. The least integer is its own magnitude.

    Constraints:
        C1: x is signed integer, float or complex.

    Source: StableHLO `abs`, `jax.lax.abs`.
    """

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, SIGNED)
        return x.with_dtype(x.dtype.real)

    def evaluate(self, x: Array) -> Array:
        return np.abs(x) if np.iscomplexobj(x) else compute1(np.abs, x)


@define_op("sign")
class Sign(Op):
    """Elementwise sign.

    y = -1, 0 or 1; x / |x| for complex

    Inputs:
        x: T[...]   number.

    Result:
        Same type as x. Zeros keep their sign, NaN stays.

    Constraints:
        C1: x is number.

    Source: StableHLO `sign`, `jax.lax.sign`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, NUMBER)

    def evaluate(self, x: Array) -> Array:
        return compute1(numbers.sign, x)


@define_op("square")
class Square(Op):
    """Elementwise square.

    y = x · x

    Inputs:
        x: T[...]   number.

    Result:
        Same type as x. Integers wrap around.

    Constraints:
        C1: x is number.

    Source: CHLO `square`, `jax.lax.square`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, NUMBER)

    def evaluate(self, x: Array) -> Array:
        return compute1(np.square, x)


@define_op("integer_pow")
class IntegerPow(Op):
    """Power with a constant integer exponent, by repeated squaring.

    y = x ** exponent

    Inputs:
        x: T[...]   number.

    Attributes:
        exponent: any integer.

    Result:
        Same type as x. Integers wrap around.

    Constraints:
        C1: x is number.
        C2: exponent ≥ 0 when x is integer.

    Numerics: narrow floats compute in f32 and round once.
    Source: `jax.lax.integer_pow`.
    """

    exponent: int

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, NUMBER)
        self.require(
            "C2",
            self.exponent >= 0 or not x.dtype.is_integer,
            f"exponent is required to be ≥ 0 for integers; got {self.exponent} for x: {x}. "
            "Convert x to float.",
            DTypeError,
        )
        return x

    def evaluate(self, x: Array) -> Array:
        return compute1(lambda wide: numbers.integer_power(wide, self.exponent), x)


@define_op("clamp")
class Clamp(Op):
    """Limit x to an interval.

    y = min(max(x, lower), upper)

    Inputs:
        lower: T[] or T[...]   least result.
        x: T[...]              bool, integer or float.
        upper: T[] or T[...]   largest result.

    Result:
        Same type as x. NaN in any input wins; upper wins where it is less than lower.

    Constraints:
        C1: lower and upper have rank 0 or the shape of x.
        C2: lower, x and upper have one dtype.
        C3: the dtype is bool, integer or float.

    Source: StableHLO `clamp`, `jax.lax.clamp`.
    """

    def infer(self, lower: TensorType, x: TensorType, upper: TensorType) -> TensorType:
        for name, bound in (("lower", lower), ("upper", upper)):
            if bound.shape:
                self.require_same_dims(
                    "C1",
                    bound.shape,
                    x.shape,
                    lambda name=name, bound=bound: (
                        f"{name} is required to have rank 0 or the shape of x: {x}; got {bound}. "
                        "Broadcast it."
                    ),
                )
            self.require(
                "C2",
                bound.dtype is x.dtype,
                f"{name} is required to have the dtype of x: {x}; got {bound}. Convert it.",
                DTypeError,
            )
        require_kind(self, "C3", "x", x, ORDERED)
        return x

    def evaluate(self, lower: Array, x: Array, upper: Array) -> Array:
        low, high = (np.broadcast_to(bound, x.shape) for bound in (lower, upper))
        return compute2(numbers.minimum, compute2(numbers.maximum, x, low), high)


@define_op("polynomial")
class Polynomial(Op):
    """A polynomial with given coefficients, by Horner's rule.

    y = coefficients[0] + coefficients[1] · x + coefficients[2] · x² + …

    Inputs:
        x: T[...]                number.
        coefficients: T[...]     one or more of the type of x, lowest power first.

    Result:
        Same type as x.

    Constraints:
        C1: every coefficient has the shape of x.
        C2: every coefficient has the dtype of x.
        C3: x is number.
        C4: there is at least one coefficient.

    Source: `jax.lax.polynomial`.
    """

    def infer(self, x: TensorType, *coefficients: TensorType) -> TensorType:
        self.require(
            "C4",
            bool(coefficients),
            "at least one coefficient is required; got none. Pass the constant term.",
            ShapeError,
        )
        for i, coefficient in enumerate(coefficients):
            require_same_type(self, "x", x, f"coefficients[{i}]", coefficient)
        require_kind(self, "C3", "x", x, NUMBER)
        return x

    def decompose(self, x: Value, *coefficients: Value) -> Value:
        result = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            result = Add()(Mul()(result, x), coefficient)
        return result


@define_op("one_minus_square")
class OneMinusSquare(Op):
    """1 - x², without the cancellation near |x| = 1.

    y = (1 + x) · (1 - x)

    Inputs:
        x: T[...]   number.

    Result:
        Same type as x. Integers wrap around.

    Constraints:
        C1: x is number.

    Source: `jax.lax.one_minus_square`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, NUMBER)

    def evaluate(self, x: Array) -> Array:
        return compute1(lambda wide: (1 + wide) * (1 - wide), x)
