"""Choices that are made already."""

from __future__ import annotations

from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.compare import Select, SelectN
from rlx.ops.control_flow import Call, Cond
from rlx.passes.canonicalize.constants import array_of, element_of


@rule(Select)
def select_by_constant(node: Node) -> Value | None:
    """A predicate that is the same everywhere leaves one branch."""
    pred, on_true, on_false = node.inputs
    chosen = element_of(pred)
    if chosen is None:
        return None
    return on_true if bool(chosen) else on_false


@rule(Select)
def select_of_one_value(node: Node) -> Value | None:
    """Two equal branches leave nothing to choose."""
    _, on_true, on_false = node.inputs
    return on_true if on_true is on_false else None


@rule(SelectN)
def select_n_by_constant(node: Node) -> Value | None:
    """A number that is the same everywhere leaves one case; it is clamped as the op does."""
    which, *cases = node.inputs
    if all(case is cases[0] for case in cases):
        return cases[0]
    chosen = element_of(which)
    return None if chosen is None else cases[min(max(int(chosen), 0), len(cases) - 1)]


@rule(Cond)
def cond_by_constant(node: Node) -> tuple[Value, ...] | None:
    """A constant index leaves a call of one branch; it is clamped as the op does."""
    op = node.op
    if not isinstance(op, Cond):
        return None
    index = array_of(node.inputs[0])
    if index is None and len(op.branches) > 1:
        return None
    number = 0 if index is None else min(max(int(index), 0), len(op.branches) - 1)
    branch = op.branches[number]
    made: Value | tuple[Value, ...] = Call(body=branch, name=branch.name)(*node.inputs[1:])
    return made if isinstance(made, tuple) else (made,)


RULES: tuple[Rule, ...] = (
    select_by_constant,
    select_of_one_value,
    select_n_by_constant,
    cond_by_constant,
)
