"""Exponentials, logarithms and roots.

No result of these is exact, so `evaluate` computes in double precision and rounds once.
"""

from __future__ import annotations

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import FLOATING, INEXACT, parts, precise, unary_result
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
        return precise(_logistic, x)


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


def _expm1(x: Array) -> Array:
    """NumPy's complex expm1 loses digits near zero; this keeps them."""
    if not np.iscomplexobj(x):
        return np.expm1(x)
    a, b = parts(x)
    half = np.sin(b / 2)
    return np.expm1(a) * np.cos(b) - 2 * half * half + 1j * np.exp(a) * np.sin(b)


def _log1p(x: Array) -> Array:
    """NumPy's complex log1p loses digits near zero; this keeps them."""
    if not np.iscomplexobj(x):
        return np.log1p(x)
    a, b = parts(x)
    return 0.5 * np.log1p(a * (2 + a) + b * b) + 1j * np.arctan2(b, 1 + a)


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)
