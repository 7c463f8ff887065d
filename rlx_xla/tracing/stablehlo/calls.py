"""The functions of a module, and in which order they call each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlx.errors import FormatError
from rlx_xla._jax_compat.mlir import ir

CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Ops that call a function → the attribute that names it."""

_SYMBOL = re.compile(r'@("(?:[^"\\]|\\.)*"|[\w.$-]+)')


def functions(module: ir.Module) -> dict[str, ir.Operation]:
    """Functions with a body, by name."""
    found: dict[str, ir.Operation] = {}
    for view in module.body.operations:
        op = view.operation
        if op.name == "func.func" and len(op.regions[0].blocks):
            found[name_of(op.attributes["sym_name"])] = op
    return found


def symbols_of(module: ir.Module) -> dict[str, ir.Operation]:
    """Everything at the top of a module that has a name: functions and meshes."""
    ops = [view.operation for view in module.body.operations]
    return {name_of(op.attributes["sym_name"]): op for op in ops if "sym_name" in op.attributes}


def name_of(symbol: Any) -> str:
    """The text of a string or symbol attribute, as printed: damaged ones are no UTF-8."""
    return str(symbol).removeprefix("@").removeprefix('"').removesuffix('"')


def callees(op: ir.Operation) -> list[str]:
    """Names of the functions that a function calls, once each."""
    found: dict[str, None] = {}

    def visit(inner: ir.Operation) -> ir.WalkResult:
        attribute = CALLS.get(inner.name)
        if attribute is not None:
            found[name_of(inner.attributes[attribute])] = None
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return list(found)


def order(name: str, known: Mapping[str, ir.Operation]) -> list[str]:
    """A function and all that it calls, callees first.

    Raises:
        FormatError: functions call each other in a circle, or one does not exist.
    """
    done: list[str] = []
    state: dict[str, bool] = {}
    stack: list[tuple[str, bool]] = [(name, False)]
    while stack:
        current, finished = stack.pop()
        if finished:
            state[current] = True
            done.append(current)
            continue
        if current in state:
            if not state[current]:
                raise FormatError(
                    f"from_stablehlo: functions must not call themselves; @{current} does, "
                    "directly or through others. StableHLO has no recursion."
                )
            continue
        if current not in known:
            raise FormatError(
                f"from_stablehlo: every called function must have a body; @{current} has none."
            )
        state[current] = False
        stack.append((current, True))
        stack += [(c, False) for c in callees(known[current]) if not state.get(c, False)]
    return done


def references(op: ir.Operation) -> set[str]:
    """Names that an op's text refers to with ``@``."""
    return {s.strip('"') for s in _SYMBOL.findall(str(op))}


def body_size(op: ir.Operation) -> int:
    """How many ops a function has, constants and the return left out."""
    names = [v.operation.name for v in op.regions[0].blocks[0].operations]
    return sum(n not in ("stablehlo.constant", "func.return") for n in names)


def has_effects(name: str, known: Mapping[str, ir.Operation]) -> bool:
    """Whether a function, or one that it calls, holds a custom call with a side effect."""
    found: list[str] = []

    def visit(inner: ir.Operation) -> ir.WalkResult:
        custom = inner.name == "stablehlo.custom_call" and "has_side_effect" in inner.attributes
        if custom and ir.BoolAttr(inner.attributes["has_side_effect"]).value:
            found.append(inner.name)
        return ir.WalkResult.ADVANCE

    for function in order(name, known):
        known[function].walk(visit)
    return bool(found)
