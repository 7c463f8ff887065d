"""Which function imports which StableHLO op: ``@imports("stablehlo.add")``.

A rule takes a context and the operands and returns values, or ``NotImplemented`` where RLX has no
op for this form: then the op becomes an ``external`` node.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx_xla.rule_table import Rule, RuleTable

_RULES: RuleTable[str] = RuleTable("imports", "rlx_xla.tracing.stablehlo.ops")


def imports(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule ``(ctx, *operands) -> value(s) | NotImplemented`` for ops by name.

    Raises:
        RegistryError: a rule for one of them exists.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES.claim(name, rule, f"op {name!r}")
        return rule

    return register


def rule_for(name: str) -> Rule | None:
    """Return the rule for an op, or None."""
    return _RULES.find(name)


def modelled() -> list[str]:
    """Names of all ops that have a rule, sorted."""
    _RULES.load()
    return sorted(_RULES)
