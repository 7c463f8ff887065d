"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

from rlx.ir.op import Op
from rlx.ops import transcendental as ops
from rlx_xla.tracing.primitives.arithmetic import binary_rule, unary_rule
from rlx_xla.tracing.registry import traces

_UNARY: dict[str, type[Op]] = {
    "exp": ops.Exp,
    "exp2": ops.Exp2,
    "expm1": ops.Expm1,
    "log": ops.Log,
    "log2": ops.Log2,
    "log1p": ops.Log1p,
    "logistic": ops.Logistic,
    "sqrt": ops.Sqrt,
    "rsqrt": ops.Rsqrt,
    "cbrt": ops.Cbrt,
    "sin": ops.Sin,
    "cos": ops.Cos,
    "tan": ops.Tan,
    "asin": ops.Asin,
    "acos": ops.Acos,
    "atan": ops.Atan,
    "sinh": ops.Sinh,
    "cosh": ops.Cosh,
    "tanh": ops.Tanh,
    "asinh": ops.Asinh,
    "acosh": ops.Acosh,
    "atanh": ops.Atanh,
}

for _name, _op in _UNARY.items():
    traces(_name)(unary_rule(_op))
traces("atan2")(binary_rule(ops.Atan2))
