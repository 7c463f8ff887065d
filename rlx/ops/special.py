"""Error, gamma, beta, zeta and Bessel functions.

No result of these is exact, so `evaluate` computes in double precision and rounds once.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import (
    FLOATING,
    binary_result,
    precise,
    require_kind,
    require_same_type,
    unary_result,
)
from rlx.types import TensorType


@define_op("erf")
class Erf(Op):
    """Error function.

    y = 2/√π · ∫₀ˣ e^(-t²) dt

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: CHLO `erf`, `jax.lax.erf`; RLX `Activation::Erf`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return precise(_scipy().erf, x)


@define_op("erfc")
class Erfc(Op):
    """Complementary error function.

    y = 1 - erf x

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: CHLO `erfc`, `jax.lax.erfc`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return precise(_scipy().erfc, x)


@define_op("erf_inv")
class ErfInv(Op):
    """Inverse of the error function.

    erf y = x

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x; ±∞ at ±1, NaN outside.

    Constraints:
        C1: x is float.

    Source: CHLO `erf_inv`, `jax.lax.erf_inv`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return precise(_scipy().erfinv, x)


@define_op("lgamma")
class Lgamma(Op):
    """Logarithm of the magnitude of the gamma function.

    y = ln |Γ(x)|

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x; ∞ at 0, -1, -2, …

    Constraints:
        C1: x is float.

    Source: CHLO `lgamma`, `jax.lax.lgamma`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        # SciPy says −∞ at −∞; XLA and C say ∞.
        return precise(_scipy().gammaln, np.where(np.isinf(x), np.abs(x), x).astype(x.dtype))


@define_op("digamma")
class Digamma(Op):
    """Derivative of ln Γ.

    y = Γ'(x) / Γ(x)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x; NaN at 0, -1, -2, …

    Constraints:
        C1: x is float.

    Source: CHLO `digamma`, `jax.lax.digamma`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return precise(_digamma, x)


@define_op("bessel_i0e")
class BesselI0e(Op):
    """Modified Bessel function of order 0, scaled.

    y = e^-|x| · I₀(x)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: `jax.lax.bessel_i0e`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return precise(_scipy().i0e, x)


@define_op("bessel_i1e")
class BesselI1e(Op):
    """Modified Bessel function of order 1, scaled.

    y = e^-|x| · I₁(x)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: CHLO `bessel_i1e`, `jax.lax.bessel_i1e`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return precise(_scipy().i1e, x)


@define_op("polygamma")
class Polygamma(Op):
    """Derivative of order lhs of digamma at rhs.

    y = d^lhs/d rhs^lhs ψ(rhs)

    Inputs:
        lhs: T[...]   float.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; NaN unless lhs is 0, 1, 2, …

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is float.

    Source: CHLO `polygamma`, `jax.lax.polygamma`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, FLOATING)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return precise(_polygamma, lhs, rhs)


@define_op("zeta")
class Zeta(Op):
    """Hurwitz zeta function.

    y = Σ (k + rhs)^-lhs over k = 0, 1, 2, …

    Inputs:
        lhs: T[...]   float.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is float.

    Source: CHLO `zeta`, `jax.lax.zeta`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, FLOATING)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return precise(_zeta, lhs, rhs)


@define_op("igamma")
class Igamma(Op):
    """Regularised lower incomplete gamma function P(lhs, rhs).

    y = 1/Γ(lhs) · ∫₀^rhs t^(lhs-1) e^-t dt

    Inputs:
        lhs: T[...]   float.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; NaN outside lhs > 0 and rhs ≥ 0.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is float.

    Source: `jax.lax.igamma`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, FLOATING)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return precise(_igamma, lhs, rhs)


@define_op("igammac")
class Igammac(Op):
    """Regularised upper incomplete gamma function Q(lhs, rhs).

    y = 1 - P(lhs, rhs)

    Inputs:
        lhs: T[...]   float.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; NaN outside lhs ≥ 0 and rhs ≥ 0.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is float.

    Source: `jax.lax.igammac`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, FLOATING)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return precise(_igammac, lhs, rhs)


@define_op("igamma_grad_a")
class IgammaGradA(Op):
    """Derivative of P(lhs, rhs) by its first argument.

    y = ∂P(lhs, rhs) / ∂lhs

    Inputs:
        lhs: T[...]   float.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs; NaN outside lhs > 0 and 0 ≤ rhs < ∞.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is float.

    Source: `jax.lax.igamma_grad_a`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs, FLOATING)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return precise(_igamma_grad_a, lhs, rhs)


@define_op("regularized_incomplete_beta")
class RegularizedIncompleteBeta(Op):
    """Regularised incomplete beta function I_x(a, b).

    y = 1/B(a, b) · ∫₀ˣ t^(a-1) (1-t)^(b-1) dt

    Inputs:
        a: T[...]   float.
        b: T[...]   same type as a.
        x: T[...]   same type as a.

    Result:
        Same type as a; NaN outside a > 0, b > 0 and 0 ≤ x ≤ 1.

    Constraints:
        C1: a, b and x have one shape.
        C2: a, b and x have one dtype.
        C3: the dtype is float.

    Source: `jax.lax.betainc`.
    """

    def infer(self, a: TensorType, b: TensorType, x: TensorType) -> TensorType:
        require_same_type(self, "a", a, "b", b)
        require_same_type(self, "a", a, "x", x)
        require_kind(self, "C3", "a", a, FLOATING)
        return a

    def evaluate(self, a: Array, b: Array, x: Array) -> Array:
        return precise(_scipy().betainc, a, b, x)


def _scipy() -> Any:
    """SciPy's special functions, imported where they are needed only."""
    return importlib.import_module("scipy.special")


def _digamma(x: Array) -> Array:
    pole = (x <= 0) & (x == np.floor(x))
    return np.where(pole, np.nan, _scipy().digamma(x))


def _zeta(x: Array, q: Array) -> Array:
    pole = (q <= 0) & (q == np.floor(q))
    at_pole = np.where(x % 2 == 0, np.inf, np.nan)
    result = np.where(pole & (x != 1), at_pole, _scipy().zeta(x, q))
    return np.where(np.isnan(x) | np.isnan(q), np.nan, result)


def _igamma(a: Array, x: Array) -> Array:
    result = _scipy().gammainc(a, x)
    return np.where(np.isposinf(x) & (a >= 0), 1.0, result)


def _igammac(a: Array, x: Array) -> Array:
    result = _scipy().gammaincc(a, x)
    return np.where(np.isposinf(x) & (a >= 0), 0.0, result)


def _polygamma(n: Array, x: Array) -> Array:
    order = np.where((n >= 0) & (n == np.floor(n)), n, np.nan)
    sign = np.where(order % 2 == 0, -1.0, 1.0)
    higher = sign * _scipy().gamma(order + 1) * _zeta(order + 1, x)
    return np.where(order == 0, _digamma(x), higher)


def _igamma_grad_a(a: Array, x: Array) -> Array:
    """Derivative of x^a e^-x Σ x^k / Γ(a + k + 1), term by term."""
    usable = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    order, point = np.where(usable, a, 1.0), np.where(usable, x, 1.0)
    logarithm, total = np.log(point), np.zeros_like(point)
    largest = float(np.max(point, initial=1.0))
    for k in range(int(largest + 12 * np.sqrt(largest) + 60)):
        term = np.exp((order + k) * logarithm - point - _scipy().gammaln(order + k + 1))
        total += term * (logarithm - _scipy().digamma(order + k + 1))
    return np.where(usable, total, np.where((x == 0) & (a > 0), 0.0, np.nan))
