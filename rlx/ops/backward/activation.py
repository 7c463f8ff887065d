"""Gradients of activations, by closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlx.ir.op import Op, define_op
from rlx.ops.activation import (
    Softplus,
)
from rlx.ops.activation_kinds import Activation
from rlx.ops.arithmetic import Sign
from rlx.ops.backward.gradients import filled, wide
from rlx.ops.compare import Select
from rlx.ops.elementwise import FLOATING, require_kind, require_same_type
from rlx.ops.special import Erfc
from rlx.ops.transcendental import (
    Cos,
    Logistic,
    Rsqrt,
    Sin,
    Tan,
)
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("relu_backward")
class ReluBackward(Op):
    """Gradient of relu.

    dx = dy where x > 0, else 0

    Inputs:
        x: float[...]    what relu was applied to.
        dy: float[...]   gradient by its result.

    Result:
        Same type as x. The gradient at 0 is 0, as it is at NaN.

    Constraints:
        C1: x and dy have one shape.
        C2: x and dy have one dtype.
        C3: x is floating.

    Source: RLX `Op::ReluBackward`.
    """

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        require_same_type(self, "x", x, "dy", dy)
        require_kind(self, "C3", "x", x, FLOATING)
        return x

    def decompose(self, x: Value, dy: Value) -> Value:
        return Select()(x > filled(0.0, x), dy, filled(0.0, dy))


@define_op("activation_backward")
class ActivationBackward(Op):
    """Gradient of an activation.

    dx = f'(x) · dy

    Inputs:
        x: float[...]    what the activation was applied to.
        dy: float[...]   gradient by its result.

    Attributes:
        kind: the activation f.

    Result:
        Same type as x. Where f has no derivative RLX's choice is taken: abs and relu give 0 at 0,
        sqrt and rsqrt give 0 where √x is not > 0; hard_swish and hard_sigmoid take the flat
        side at ±3. round passes dy on (a straight-through estimate); floor, ceil and sign give 0.

    Constraints:
        C1: x and dy have one shape.
        C2: x and dy have one dtype.
        C3: x is floating.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::ActivationBackward`.
    """

    kind: Activation

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        require_same_type(self, "x", x, "dy", dy)
        require_kind(self, "C3", "x", x, FLOATING)
        return x

    def decompose(self, x: Value, dy: Value) -> Value:
        if self.kind is Activation.ROUND:
            return dy
        if self.kind in (Activation.FLOOR, Activation.CEIL, Activation.SIGN):
            return filled(0.0, dy)
        if self.kind is Activation.RELU:
            return ReluBackward()(x, dy)
        slope = _SLOPES[self.kind](wide(x))
        return (slope * wide(dy)).convert(x.dtype)


def _gelu(x: Value) -> Value:
    density = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    below: Value = Erfc()(x * -math.sqrt(0.5))
    return below * 0.5 + x * density


def _gelu_approx(x: Value) -> Value:
    root = math.sqrt(2 / math.pi)
    twice = (x + x * x * x * 0.044715) * (2 * root)
    inner = (x * x * (3 * 0.044715) + 1.0) * root
    # (1 + tanh(u)) / 2 is σ(2u), which keeps its digits where tanh is near −1.
    s = _sigmoid(twice)
    return s + x * 2.0 * s * _sigmoid(-twice) * inner


def _silu(x: Value) -> Value:
    s = _sigmoid(x)
    return s * (x * (1.0 - s) + 1.0)


def _sigmoid(x: Value) -> Value:
    return Logistic()(x)


def _sigmoid_slope(x: Value) -> Value:
    return _sigmoid(x) * _sigmoid(-x)


def _tanh(x: Value) -> Value:
    return _sigmoid_slope(x * 2.0) * 4.0


def _sqrt(x: Value) -> Value:
    return _where_positive(x, 0.5 / x.sqrt())


def _rsqrt(x: Value) -> Value:
    root: Value = Rsqrt()(x)
    return _where_positive(x, root * root * root * -0.5)


def _where_positive(x: Value, slope: Value) -> Value:
    return Select()(x > filled(0.0, x), slope, filled(0.0, x))


def _tan(x: Value) -> Value:
    t: Value = Tan()(x)
    return t * t + 1.0


def _elu(x: Value) -> Value:
    return Select()(x > filled(0.0, x), filled(1.0, x), x.exp())


def _hard_swish(x: Value) -> Value:
    inner = (x * 2.0 + 3.0) / 6.0
    above = Select()(x < filled(3.0, x), inner, filled(1.0, x))
    return Select()(x > filled(-3.0, x), above, filled(0.0, x))


def _hard_sigmoid(x: Value) -> Value:
    inside = (x > filled(-3.0, x)) & (x < filled(3.0, x))
    return Select()(inside, filled(1 / 6, x), filled(0.0, x))


def _mish(x: Value) -> Value:
    t: Value = Softplus()(x).tanh()
    return t + x * (1.0 - t * t) * _sigmoid(x)


def _softsign(x: Value) -> Value:
    below = abs(x) + 1.0
    return 1.0 / (below * below)


_SLOPES: dict[Activation, Callable[[Value], Value]] = {
    Activation.GELU: _gelu,
    Activation.GELU_APPROX: _gelu_approx,
    Activation.SILU: _silu,
    Activation.SIGMOID: _sigmoid_slope,
    Activation.TANH: _tanh,
    Activation.EXP: lambda x: x.exp(),
    Activation.LOG: lambda x: 1.0 / x,
    Activation.SQRT: _sqrt,
    Activation.RSQRT: _rsqrt,
    Activation.NEG: lambda x: filled(-1.0, x),
    Activation.ABS: lambda x: Sign()(x),
    Activation.SIN: lambda x: Cos()(x),
    Activation.COS: lambda x: -Sin()(x),
    Activation.TAN: _tan,
    Activation.ATAN: lambda x: 1.0 / (x * x + 1.0),
    Activation.RECIP: lambda x: -1.0 / (x * x),
    Activation.SOFTPLUS: _sigmoid,
    Activation.ELU: _elu,
    Activation.ERF: lambda x: (-(x * x)).exp() * (2 / math.sqrt(math.pi)),
    Activation.HARD_SWISH: _hard_swish,
    Activation.HARD_SIGMOID: _hard_sigmoid,
    Activation.MISH: _mish,
    Activation.SOFTSIGN: _softsign,
    Activation.LOG_SIGMOID: lambda x: _sigmoid(-x),
}
