"""Which function imports which StableHLO op: ``@imports("stablehlo.add")``.

A rule takes a context and the operands and returns values, or ``NotImplemented`` where RLX has no
op for this form: then the op becomes an ``external`` node.
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


def imports(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule ``(ctx, *operands) -> value(s) | NotImplemented`` for ops by name.

    Raises:
        RegistryError: a rule for one of them exists.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            other = _RULES.get(name)
            if other is not None and other.__module__ != rule.__module__:
                raise RegistryError(
                    f"imports: {name!r} is taken by {other.__module__}.{other.__qualname__}; "
                    f"{rule.__module__}.{rule.__qualname__} needs another."
                )
            _RULES[name] = rule
        return rule

    return register


def rule_for(name: str) -> Rule | None:
    """Return the rule for an op, or None."""
    _load()
    return _RULES.get(name)


def modelled() -> list[str]:
    """Names of all ops that have a rule, sorted."""
    _load()
    return sorted(_RULES)


def _load() -> None:
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("rlx_xla.tracing.stablehlo.ops")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    _loaded = True
