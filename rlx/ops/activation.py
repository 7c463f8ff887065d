"""Activation functions, made of primitives; 8- and 16-bit floats compute in f32."""

from __future__ import annotations

import math
from collections.abc import Callable

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Abs, Add, Clamp, Div, Max, Min, Mul, Neg, Sub
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.elementwise import FLOATING, REAL, unary_result
from rlx.ops.special import Erfc
from rlx.ops.transcendental import Exp, Expm1, Log1p, Logistic, Tanh
from rlx.types import TensorType


def _like(number: float, x: Value) -> Value:
    return broadcast_to(constant(number, x.type.dtype), x.type.shape)


def _in_f32(x: Value, function: Callable[[Value], Value]) -> Value:
    """Apply a chain in f32 where x is narrower, so that it rounds once."""
    if x.type.dtype.bits >= 32:
        return function(x)
    return function(x.convert(DType.F32)).convert(x.type.dtype)


def _softplus(x: Value) -> Value:
    return Add()(Max()(x, _like(0, x)), Log1p()(Exp()(Neg()(Abs()(x)))))


@define_op("relu")
class Relu(Op):
    """Rectified linear unit.

    y = max(x, 0)

    Inputs:
        x: T[...]   integer or float.

    Result:
        Same type as x. NaN stays.

    Constraints:
        C1: x is integer or float.

    Source: RLX `Activation::Relu`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, REAL)

    def decompose(self, x: Value) -> Value:
        return Max()(x, _like(0, x))


@define_op("leaky_relu")
class LeakyRelu(Op):
    """Rectified linear unit with a slope below zero.

    y = x for x ≥ 0, else alpha · x

    Inputs:
        x: T[...]   float.

    Attributes:
        alpha: slope below zero.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: Maas et al. 2013; `jax.nn.leaky_relu`.
    """

    alpha: float = 0.01

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, self._wide)

    def _wide(self, x: Value) -> Value:
        positive = Compare(direction=Direction.GE)(x, _like(0, x))
        return Select()(positive, x, Mul()(_like(self.alpha, x), x))


@define_op("gelu")
class Gelu(Op):
    """Gaussian error linear unit.

    y = x · Φ(x);  approximate: y = x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2

    Inputs:
        x: T[...]   float.

    Attributes:
        approximate: whether the tanh form stands in for the normal distribution Φ.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415; RLX `Activation::Gelu` and `GeluApprox`.
    """

    approximate: bool = False

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, self._tanh_form if self.approximate else self._exact)

    def _exact(self, x: Value) -> Value:
        # erfc keeps the digits of Φ far below zero, where 1 + erf would cancel.
        return Mul()(Mul()(_like(0.5, x), x), Erfc()(Mul()(_like(-math.sqrt(0.5), x), x)))

    def _tanh_form(self, x: Value) -> Value:
        cube = Mul()(Mul()(x, x), x)
        inner = Add()(x, Mul()(_like(0.044715, x), cube))
        curve = Tanh()(Mul()(_like(math.sqrt(2 / math.pi), x), inner))
        return Mul()(x, Mul()(_like(0.5, x), Add()(_like(1, x), curve)))


@define_op("silu")
class Silu(Op):
    """Sigmoid linear unit, also called swish.

    y = x / (1 + e^-x)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415; RLX `Activation::Silu`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, lambda wide: Mul()(wide, Logistic()(wide)))


@define_op("softplus")
class Softplus(Op):
    """Smooth rectifier.

    y = ln(1 + e^x), as max(x, 0) + ln(1 + e^-|x|)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: RLX `Activation::Softplus`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, _softplus)


@define_op("elu")
class Elu(Op):
    """Exponential linear unit.

    y = x for x > 0, else alpha · (e^x - 1)

    Inputs:
        x: T[...]   float.

    Attributes:
        alpha: minus the limit at -∞.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: Clevert et al. 2015, arXiv:1511.07289; RLX `Activation::Elu`.
    """

    alpha: float = 1.0

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, self._wide)

    def _wide(self, x: Value) -> Value:
        positive = Compare(direction=Direction.GT)(x, _like(0, x))
        curve = Expm1()(Min()(x, _like(0, x)))
        return Select()(positive, x, Mul()(_like(self.alpha, x), curve))


@define_op("hard_sigmoid")
class HardSigmoid(Op):
    """Piecewise linear sigmoid.

    y = clamp(x / 6 + 1/2, 0, 1)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: Howard et al. 2019, arXiv:1905.02244; RLX `Activation::HardSigmoid`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, lambda wide: Div()(_relu6(wide), _like(6, wide)))


@define_op("hard_swish")
class HardSwish(Op):
    """Piecewise form of silu.

    y = x · clamp(x + 3, 0, 6) / 6

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: Howard et al. 2019, arXiv:1905.02244; RLX `Activation::HardSwish`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, lambda wide: Mul()(wide, Div()(_relu6(wide), _like(6, wide))))


def _relu6(x: Value) -> Value:
    zero, six = (constant(n, x.type.dtype) for n in (0, 6))
    return Clamp()(zero, Add()(x, _like(3, x)), six)


@define_op("mish")
class Mish(Op):
    """Self-regularised activation.

    y = x · tanh(ln(1 + e^x))

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: Misra 2019, arXiv:1908.08681; RLX `Activation::Mish`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, lambda wide: Mul()(wide, Tanh()(_softplus(wide))))


@define_op("softsign")
class Softsign(Op):
    """Rational sigmoid.

    y = x / (1 + |x|)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: RLX `Activation::Softsign`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, lambda wide: Div()(wide, Add()(_like(1, wide), Abs()(wide))))


@define_op("log_sigmoid")
class LogSigmoid(Op):
    """Logarithm of the logistic function.

    y = -ln(1 + e^-x), as min(x, 0) - ln(1 + e^-|x|)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: RLX `Activation::LogSigmoid`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def decompose(self, x: Value) -> Value:
        return _in_f32(x, self._wide)

    def _wide(self, x: Value) -> Value:
        return Sub()(Min()(x, _like(0, x)), Log1p()(Exp()(Neg()(Abs()(x)))))
