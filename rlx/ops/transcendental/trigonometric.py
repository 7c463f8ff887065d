"""Trigonometric and hyperbolic functions.

No result of these is exact, so `evaluate` computes in double precision and rounds once.
"""

from __future__ import annotations

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import INEXACT, binary_result, precise, unary_result
from rlx.types import TensorType


@define_op("sin")
class Sin(Op):
    """Sine of x radians.

    y = sin x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `sine`, `jax.lax.sin`; RLX `Activation::Sin`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.sin, x)


@define_op("cos")
class Cos(Op):
    """Cosine of x radians.

    y = cos x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `cosine`, `jax.lax.cos`; RLX `Activation::Cos`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.cos, x)


@define_op("tan")
class Tan(Op):
    """Tangent of x radians.

    y = sin x / cos x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `tan`, `jax.lax.tan`; RLX `Activation::Tan`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.tan, x)


@define_op("asin")
class Asin(Op):
    """Arc sine, in radians.

    y = arcsin x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x; NaN outside [-1, 1] for floats.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `asin`, `jax.lax.asin`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.arcsin, x)


@define_op("acos")
class Acos(Op):
    """Arc cosine, in radians.

    y = arccos x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x; NaN outside [-1, 1] for floats.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `acos`, `jax.lax.acos`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.arccos, x)


@define_op("atan")
class Atan(Op):
    """Arc tangent, in radians.

    y = arctan x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `atan`, `jax.lax.atan`; RLX `Activation::Atan`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.arctan, x)


@define_op("sinh")
class Sinh(Op):
    """Hyperbolic sine.

    y = (e^x - e^-x) / 2

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `sinh`, `jax.lax.sinh`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.sinh, x)


@define_op("cosh")
class Cosh(Op):
    """Hyperbolic cosine.

    y = (e^x + e^-x) / 2

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `cosh`, `jax.lax.cosh`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.cosh, x)


@define_op("tanh")
class Tanh(Op):
    """Hyperbolic tangent.

    y = (e^x - e^-x) / (e^x + e^-x)

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `tanh`, `jax.lax.tanh`; RLX `Activation::Tanh`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.tanh, x)


@define_op("asinh")
class Asinh(Op):
    """Inverse hyperbolic sine.

    y = ln(x + √(x² + 1))

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `asinh`, `jax.lax.asinh`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.arcsinh, x)


@define_op("acosh")
class Acosh(Op):
    """Inverse hyperbolic cosine.

    y = ln(x + √(x + 1) · √(x - 1))

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x; NaN below 1 for floats.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `acosh`, `jax.lax.acosh`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.arccosh, x)


@define_op("atanh")
class Atanh(Op):
    """Inverse hyperbolic tangent.

    y = ln((1 + x) / (1 - x)) / 2

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x; NaN outside [-1, 1] for floats.

    Constraints:
        C1: x is float or complex.

    Source: CHLO `atanh`, `jax.lax.atanh`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.arctanh, x)


@define_op("atan2")
class Atan2(Op):
    """Angle of the point (rhs, lhs), in radians.

    y = arctan(lhs / rhs) in the quadrant of the point

    Inputs:
        lhs: T[...]   float or complex.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs, in [-π, π].

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is float or complex.

    Source: StableHLO `atan2`, `jax.lax.atan2`; RLX `BinaryOp::Atan2`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, INEXACT)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return precise(_atan2, lhs, rhs)


def _atan2(y: Array, x: Array) -> Array:
    if not np.iscomplexobj(y):
        return np.arctan2(y, x)
    return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))
