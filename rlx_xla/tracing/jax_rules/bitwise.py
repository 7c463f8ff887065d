"""Logic on bits and bool, shifts and bit counts."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ir.op import Op
from rlx.ops import bitwise as ops
from rlx_xla.tracing.jax_registry import to_jax_rule
from rlx_xla.tracing.jax_rules.arithmetic import plain_rule

_PLAIN: dict[type[Op], Any] = {
    ops.Not: lax.bitwise_not,
    ops.And: lax.bitwise_and,
    ops.Or: lax.bitwise_or,
    ops.Xor: lax.bitwise_xor,
    ops.PopulationCount: lax.population_count,
    ops.Clz: lax.clz,
    ops.ShiftLeft: lax.shift_left,
    ops.ShiftRightArithmetic: lax.shift_right_arithmetic,
    ops.ShiftRightLogical: lax.shift_right_logical,
}

for _op, _function in _PLAIN.items():
    to_jax_rule(_op)(plain_rule(_function))
