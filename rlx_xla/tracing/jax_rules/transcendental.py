"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ir.op import Op
from rlx.ops import transcendental as ops
from rlx_xla.tracing.jax_registry import to_jax_rule
from rlx_xla.tracing.jax_rules.arithmetic import full_like, newer_rule, plain_rule

_PLAIN: dict[type[Op], Any] = {
    ops.Exp: lax.exp,
    ops.Exp2: lax.exp2,
    ops.Expm1: lax.expm1,
    ops.Log: lax.log,
    ops.Log1p: lax.log1p,
    ops.Logistic: lax.logistic,
    ops.Sqrt: lax.sqrt,
    ops.Rsqrt: lax.rsqrt,
    ops.Cbrt: lax.cbrt,
    ops.Sin: lax.sin,
    ops.Cos: lax.cos,
    ops.Tan: lax.tan,
    ops.Asin: lax.asin,
    ops.Acos: lax.acos,
    ops.Atan: lax.atan,
    ops.Atan2: lax.atan2,
    ops.Sinh: lax.sinh,
    ops.Cosh: lax.cosh,
    ops.Tanh: lax.tanh,
    ops.Asinh: lax.asinh,
    ops.Acosh: lax.acosh,
    ops.Atanh: lax.atanh,
}

for _op, _function in _PLAIN.items():
    to_jax_rule(_op)(plain_rule(_function))

newer_rule(ops.Log2, "log2", lambda x: lax.div(lax.log(x), lax.log(full_like(2, x))))
