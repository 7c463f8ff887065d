"""Which function turns which JAX primitive into ops: ``@traces("dot_general")``.

A rule is ``(ctx, params, *inputs) -> Value`` or a tuple of Values, one per result of the equation.
``params`` are the equation's parameters by name; inputs are values whose types are those of the
equation's arguments (PRNG keys as ``u32[..., n]``). A rule that meets parameters it does not
model returns ``NotImplemented``, and the equation becomes an ``external`` node, counted in the
coverage.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeAlias

from rlx.errors import RegistryError

Rule: TypeAlias = Callable[..., Any]

_RULES: dict[str, Rule] = {}
_loaded = False


def traces(*primitives: str) -> Callable[[Rule], Rule]:
    """Register a rule for JAX primitives by name.

    Raises:
        RegistryError: another module has a rule for the name.
    """

    def register(rule: Rule) -> Rule:
        for name in primitives:
            other = _RULES.get(name)
            if other is not None and other.__module__ != rule.__module__:
                raise RegistryError(
                    f"traces: primitive {name!r} has a rule {other.__module__}.{other.__name__}; "
                    f"{rule.__module__}.{rule.__name__} is a second one."
                )
            _RULES[name] = rule
        return rule

    return register


def rule_for(primitive: str) -> Rule | None:
    """Return the rule for a primitive, or None when it is not modelled."""
    load_rules()
    return _RULES.get(primitive)


def modelled() -> list[str]:
    """Names of all primitives that have a rule, sorted."""
    load_rules()
    return sorted(_RULES)


def load_rules() -> None:
    """Import every module of ``rlx_xla.tracing.primitives``."""
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("rlx_xla.tracing.primitives")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    _loaded = True
