"""Identities of bits; integers and bool have one pattern for each value, so all are exact."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import DType
from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.bitwise import And, Not, Or, Xor
from rlx.passes.canonicalize.constants import element_of


@rule(Not)
def not_of_not(node: Node) -> Value | None:
    """Each bit flips twice."""
    inner = node.inputs[0].node
    return inner.inputs[0] if isinstance(inner.op, Not) else None


@rule(And, Or)
def and_or_of_itself(node: Node) -> Value | None:
    """A bit combined with itself is itself."""
    lhs, rhs = node.inputs
    return lhs if lhs is rhs else None


@rule(Or, Xor)
def or_with_no_bits(node: Node) -> Value | None:
    """Bits that are all 0 change none."""
    lhs, rhs = node.inputs
    if _bits(rhs) == 0:
        return lhs
    return rhs if _bits(lhs) == 0 else None


@rule(And)
def and_with_all_bits(node: Node) -> Value | None:
    """Bits that are all 1 keep each."""
    lhs, rhs = node.inputs
    if _bits(rhs) == _all_bits(rhs):
        return lhs
    return rhs if _bits(lhs) == _all_bits(lhs) else None


def _bits(value: Value) -> int | None:
    element: Any = element_of(value)
    return None if element is None else int(element) & _all_bits(value)


def _all_bits(value: Value) -> int:
    dtype = value.type.dtype
    return 1 if dtype is DType.BOOL else (1 << dtype.bits) - 1


RULES: tuple[Rule, ...] = (not_of_not, and_or_of_itself, or_with_no_bits, and_with_all_bits)
