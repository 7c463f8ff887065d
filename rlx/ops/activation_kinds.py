"""The activation functions by RLX's names, for ops that hold one as an attribute."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@final
class Activation(enum.Enum):
    """An elementwise function of one floating value."""

    GELU = "gelu"
    GELU_APPROX = "gelu_approx"
    SILU = "silu"
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    NEG = "neg"
    ABS = "abs"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ATAN = "atan"
    ROUND = "round"
    RECIP = "recip"
    FLOOR = "floor"
    CEIL = "ceil"
    SIGN = "sign"
    SOFTPLUS = "softplus"
    ELU = "elu"
    ERF = "erf"
    HARD_SWISH = "hard_swish"
    HARD_SIGMOID = "hard_sigmoid"
    MISH = "mish"
    SOFTSIGN = "softsign"
    LOG_SIGMOID = "log_sigmoid"


_OPS = {
    Activation.SILU: "Silu", Activation.RELU: "Relu", Activation.SIGMOID: "Logistic",
    Activation.TANH: "Tanh", Activation.EXP: "Exp", Activation.LOG: "Log",
    Activation.SQRT: "Sqrt", Activation.RSQRT: "Rsqrt", Activation.NEG: "Neg",
    Activation.ABS: "Abs", Activation.SIN: "Sin", Activation.COS: "Cos", Activation.TAN: "Tan",
    Activation.ATAN: "Atan", Activation.FLOOR: "Floor", Activation.CEIL: "Ceil",
    Activation.SIGN: "Sign", Activation.SOFTPLUS: "Softplus", Activation.ELU: "Elu",
    Activation.ERF: "Erf", Activation.HARD_SWISH: "HardSwish",
    Activation.HARD_SIGMOID: "HardSigmoid", Activation.MISH: "Mish",
    Activation.SOFTSIGN: "Softsign", Activation.LOG_SIGMOID: "LogSigmoid",
}  # fmt: skip
"""Those that are one op without attributes, by its class."""


def activate(kind: Activation, x: Value) -> Value:
    """Apply an activation; ``round`` takes halves to the even neighbour, ``recip`` is 1 / x."""
    from rlx.ir.operators import unary
    from rlx.ops.activation import Gelu
    from rlx.ops.arithmetic import Round, Ties

    if kind in _OPS:
        return unary(_OPS[kind], x)
    match kind:
        case Activation.ROUND:
            return Round(ties=Ties.EVEN)(x)
        case Activation.RECIP:
            return 1.0 / x
        case _:
            return Gelu(approximate=kind is Activation.GELU_APPROX)(x)
