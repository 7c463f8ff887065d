"""Which function says an op in JAX: ``@to_jax_rule(Softmax)``.

A rule is ``(ctx, op, *arrays) -> array`` or a sequence of arrays, one per result of the op. A
direct rule is one call of a JAX primitive, the one that traces back to the op. A rule with
``named=True`` takes several; it is wrapped in a named ``jit``, from which tracing finds the op
again. An op without a rule uses its decomposition, wrapped in the same way.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rlx.errors import RegistryError
from rlx.ir.op import Op
from rlx.types import TensorType

JaxRule: TypeAlias = Callable[..., Any]
Named: TypeAlias = Callable[[Any, Sequence[TensorType]], bool]

_RULES: dict[type[Op], JaxRule] = {}
_NAMED: dict[type[Op], Named] = {}
_loaded: list[bool] = []


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
            other = _RULES.get(op)
            if other is not None and other.__module__ != rule.__module__:
                raise RegistryError(
                    f"to_jax_rule: op {op.op_name!r} has a rule {other.__module__}."
                    f"{other.__name__}; {rule.__module__}.{rule.__name__} is a second one."
                )
            _RULES[op] = rule
            _NAMED[op] = named if callable(named) else lambda op, types: bool(named)
        return rule

    return register


def jax_rule_for(op: type[Op]) -> JaxRule | None:
    """Return the rule of an op, or None where its decomposition serves."""
    load_rules()
    return _RULES.get(op)


def is_direct(op: Op, types: Sequence[TensorType]) -> bool:
    """Tell whether an op is one JAX primitive, and needs no named ``jit`` around it."""
    load_rules()
    return type(op) in _RULES and not _NAMED[type(op)](op, types)


def load_rules() -> None:
    """Import every module of ``rlx_xla.tracing.jax_rules``."""
    if _loaded:
        return
    package = importlib.import_module("rlx_xla.tracing.jax_rules")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    _loaded.append(True)
