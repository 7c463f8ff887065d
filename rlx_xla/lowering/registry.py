"""Which function lowers which op: ``@lowers(Op)`` and the coverage table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rlx.errors import RegistryError
from rlx.ir.op import Op, all_ops
from rlx.types import TensorType
from rlx_xla.rule_table import Rule, RuleTable

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_PLUGINS: set[str] = set()


def add_platform(name: str) -> None:
    """Allow lowering for the platform of a PJRT plugin, with the rules for every platform."""
    _PLUGINS.add(name)


def is_platform(name: str) -> bool:
    """Whether there is lowering for a platform."""
    return name in PLATFORMS or name in _PLUGINS


Limit: TypeAlias = "Callable[[Any, Sequence[TensorType], str], str | None]"

_RULES: RuleTable[tuple[type[Op], str | None]] = RuleTable("lowers", "rlx_xla.lowering.rules")
_LIMITS: dict[tuple[type[Op], str | None], Limit] = {}


def lowers(
    *ops: type[Op], platform: str | None = None, refuses: Limit | None = None
) -> Callable[[Rule], Rule]:
    """Register a lowering rule ``(ctx, op, *operands) -> MLIR value(s)``.

    Args:
        ops: the op classes that the rule lowers; their operands must be named alike.
        platform: ``cpu``, ``cuda``, ``rocm``, ``tpu``, or None for all; the specific one wins.
        refuses: ``(op, input types, platform)`` → why the rule cannot lower such a node, or None;
            a claim is on nodes, and a limit on attributes or types is part of it.

    Raises:
        RegistryError: a rule exists for this op and platform (both are named), the operand names
            differ from those of ``infer``, or the platform is unknown.
    """

    def register(rule: Rule) -> Rule:
        if platform is not None and platform not in PLATFORMS:
            raise RegistryError(
                f"lowers: platform is one of {', '.join(PLATFORMS)} or None; got {platform!r}."
            )
        for op in ops:
            _check(rule, op)
            where = platform or "every platform"
            _RULES.claim((op, platform), rule, f"op {op.op_name!r} on {where}")
            if refuses is not None:
                _LIMITS[op, platform] = refuses
        return rule

    return register


def rule_for(op: type[Op], platform: str) -> Rule | None:
    """Return the rule of an op on a platform: the specific one, else the general one, else None."""
    return _RULES.find((op, platform)) or _RULES.get((op, None))


def rule_refusal(op: Op, types: Sequence[TensorType], platform: str) -> str | None:
    """Why the rule of an op does not lower this node; None where it does, or there is no rule."""
    _RULES.load()
    kind = type(op)
    limit = _LIMITS.get((kind, platform))
    if limit is None and (kind, platform) not in _RULES:  # no rule of its own, with no limit
        limit = _LIMITS.get((kind, None))
    return None if limit is None else limit(op, types, platform)


LEAVES = frozenset({"input", "param"})
"""Ops that become arguments of the module instead of being lowered."""


def coverage() -> dict[str, dict[str, str]]:
    """Return op name → platform → ``kernel …``, ``rule``, ``decomposition`` or ``missing: why``."""
    from rlx_xla.kernels.select import kernels_for

    table: dict[str, dict[str, str]] = {}
    for name, op in all_ops().items():
        row: dict[str, str] = {}
        for platform in PLATFORMS:
            names = [k.name for k in kernels_for(op, platform)]
            rule = rule_for(op, platform)
            base = "rule" if rule or name in LEAVES else ""
            base = base or ("decomposition" if op.has_decompose else "")
            if names:
                row[platform] = f"kernel {', '.join(names)}" + (f"; {base}" if base else "")
            else:
                row[platform] = base or "missing: no rule and no decomposition"
        table[name] = row
    return table


def _check(rule: Rule, op: type[Op]) -> None:
    parameters = list(inspect.signature(rule).parameters.values())[2:]
    found: Sequence[tuple[str, bool]] = [
        (p.name, p.kind is inspect.Parameter.VAR_POSITIONAL) for p in parameters
    ]
    wanted = [(o.name, o.variadic) for o in op.operands]
    if found != wanted:
        raise RegistryError(
            f"lowers: rule {rule.__module__}.{rule.__name__} takes {[n for n, _ in found]}; "
            f"{op.__name__}.infer takes {[n for n, _ in wanted]}. Use the same names."
        )
