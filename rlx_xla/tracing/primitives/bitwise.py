"""Logic on bits and bool, shifts and bit counts."""

from __future__ import annotations

from rlx.ir.op import Op
from rlx.ops import bitwise as ops
from rlx_xla.tracing.primitives.arithmetic import binary_rule, unary_rule
from rlx_xla.tracing.registry import traces

_UNARY: dict[str, type[Op]] = {
    "not": ops.Not,
    "population_count": ops.PopulationCount,
    "clz": ops.Clz,
}
_BINARY: dict[str, type[Op]] = {
    "and": ops.And,
    "or": ops.Or,
    "xor": ops.Xor,
    "shift_left": ops.ShiftLeft,
    "shift_right_arithmetic": ops.ShiftRightArithmetic,
    "shift_right_logical": ops.ShiftRightLogical,
}

for _name, _op in _UNARY.items():
    traces(_name)(unary_rule(_op))
for _name, _op in _BINARY.items():
    traces(_name)(binary_rule(_op))
