"""Which function turns which JAX primitive into ops: ``@traces("dot_general")``.

A rule is ``(ctx, params, *inputs) -> Value`` or a tuple of Values, one per result of the equation.
``params`` are the equation's parameters by name; inputs are values whose types are those of the
equation's arguments (PRNG keys as ``u32[..., n]``). A rule that meets parameters it does not
model returns ``NotImplemented``, and the equation becomes an ``external`` node, counted in the
coverage.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx_xla.rule_table import Rule, RuleTable

_RULES: RuleTable[str] = RuleTable("traces", "rlx_xla.tracing.primitives")


def traces(*primitives: str) -> Callable[[Rule], Rule]:
    """Register a rule for JAX primitives by name.

    Raises:
        RegistryError: another module has a rule for the name.
    """

    def register(rule: Rule) -> Rule:
        for name in primitives:
            _RULES.claim(name, rule, f"primitive {name!r}")
        return rule

    return register


def rule_for(primitive: str) -> Rule | None:
    """Return the rule for a primitive, or None when it is not modelled."""
    return _RULES.find(primitive)


def modelled() -> list[str]:
    """Names of all primitives that have a rule, sorted."""
    _RULES.load()
    return sorted(_RULES)
