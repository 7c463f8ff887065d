"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions.

No result of these is exact, so `evaluate` computes in double precision and rounds once.
"""

from __future__ import annotations

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import FLOATING, INEXACT, binary_result, precise, unary_result
from rlx.types import TensorType


@define_op("exp")
class Exp(Op):
    """Exponential.

    y = e^x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `exponential`, `jax.lax.exp`; RLX `Activation::Exp`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.exp, x)


@define_op("exp2")
class Exp2(Op):
    """Power of two.

    y = 2^x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: `jax.lax.exp2`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.exp2, x)


@define_op("expm1")
class Expm1(Op):
    """Exponential minus one, exact near zero.

    y = e^x - 1

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `exponential_minus_one`, `jax.lax.expm1`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(_expm1, x)


@define_op("log")
class Log(Op):
    """Natural logarithm.

    y = ln x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x; -∞ at 0, NaN below (a complex number for complex).

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `log`, `jax.lax.log`; RLX `Activation::Log`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.log, x)


@define_op("log2")
class Log2(Op):
    """Logarithm to base two.

    y = ln x / ln 2

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: `jax.lax.log2`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.log2, x)


@define_op("log1p")
class Log1p(Op):
    """Logarithm of one plus x, exact near zero.

    y = ln(1 + x)

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `log_plus_one`, `jax.lax.log1p`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(_log1p, x)


@define_op("logistic")
class Logistic(Op):
    """Logistic function (sigmoid).

    y = 1 / (1 + e^-x)

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: `jax.lax.logistic`; RLX `Activation::Sigmoid`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(lambda wide: 1 / (1 + np.exp(-wide)), x)


@define_op("sqrt")
class Sqrt(Op):
    """Square root.

    y = √x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x; NaN below 0 (the principal root for complex).

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `sqrt`, `jax.lax.sqrt`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(np.sqrt, x)


@define_op("rsqrt")
class Rsqrt(Op):
    """Reciprocal square root.

    y = 1 / √x

    Inputs:
        x: T[...]   float or complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is float or complex.

    Source: StableHLO `rsqrt`, `jax.lax.rsqrt`; RLX `Activation::Rsqrt`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, INEXACT)

    def evaluate(self, x: Array) -> Array:
        return precise(_rsqrt, x)


@define_op("cbrt")
class Cbrt(Op):
    """Cube root, of negative numbers as well.

    y = ∛x

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: StableHLO `cbrt`, `jax.lax.cbrt`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return precise(np.cbrt, x)


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


def _expm1(x: Array) -> Array:
    """NumPy's complex expm1 loses digits near zero; this keeps them."""
    if not np.iscomplexobj(x):
        return np.expm1(x)
    half = np.sin(x.imag / 2)
    real = np.expm1(x.real) * np.cos(x.imag) - 2 * half * half
    return real + 1j * np.exp(x.real) * np.sin(x.imag)


def _log1p(x: Array) -> Array:
    """NumPy's complex log1p loses digits near zero; this keeps them."""
    if not np.iscomplexobj(x):
        return np.log1p(x)
    real = 0.5 * np.log1p(x.real * (2 + x.real) + x.imag * x.imag)
    return real + 1j * np.arctan2(x.imag, 1 + x.real)


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _atan2(y: Array, x: Array) -> Array:
    if not np.iscomplexobj(y):
        return np.arctan2(y, x)
    return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))
