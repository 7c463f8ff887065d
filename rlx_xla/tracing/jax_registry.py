"""Which function says an op in JAX: ``@to_jax_rule(Softmax)``.

A rule is ``(ctx, op, *arrays) -> array`` or a sequence of arrays, one per result of the op. A
direct rule is one call of a JAX primitive, the one that traces back to the op. A rule with
``named=True`` takes several; it is wrapped in a named ``jit``, from which tracing finds the op
again. An op without a rule uses its decomposition, wrapped in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla.rule_table import Rule as JaxRule
from rlx_xla.rule_table import RuleTable

Named: TypeAlias = Callable[[Any, Sequence[TensorType]], bool]

_RULES: RuleTable[type[Op]] = RuleTable("to_jax_rule", "rlx_xla.tracing.jax_rules")
_NAMED: dict[type[Op], Named] = {}


def to_jax_rule(*ops: type[Op], named: bool | Named = False) -> Callable[[JaxRule], JaxRule]:
    """Register how ops are said in JAX.

    Args:
        ops: the ops' classes.
        named: whether the rule takes several JAX operations (see the module), always or where a
            function of op and input types says so.

    Raises:
        RegistryError: another module has a rule for an op.
    """

    def register(rule: JaxRule) -> JaxRule:
        for op in ops:
            _RULES.claim(op, rule, f"op {op.op_name!r}")
            _NAMED[op] = named if callable(named) else lambda op, types: bool(named)
        return rule

    return register


def jax_rule_for(op: type[Op]) -> JaxRule | None:
    """Return the rule of an op, or None where its decomposition serves."""
    return _RULES.find(op)


def is_direct(op: Op, types: Sequence[TensorType]) -> bool:
    """Tell whether an op is one JAX primitive, and needs no named ``jit`` around it."""
    return _RULES.find(type(op)) is not None and not _NAMED[type(op)](op, types)
