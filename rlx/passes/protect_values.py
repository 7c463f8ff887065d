"""Keeps XLA from rewriting pairs of ops whose short form has other values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import Rule, sweep
from rlx.ops.arithmetic import Abs, Add, Div, IntegerPow, Mul, Neg, Pow, Square, Sub
from rlx.ops.convert import Copy, OptimizationBarrier, StopGradient
from rlx.ops.shape import BroadcastInDim, Expand, Reshape, Transpose
from rlx.ops.transcendental import Exp, Exp2, Log, Log2, Rsqrt, Sqrt
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.canonicalize.constants import element_of, is_minus_zero, is_plus_zero

_SPREADS = (BroadcastInDim, Expand, Reshape, Transpose, Copy, StopGradient)

Risk = tuple[tuple[int, ...], str]


@final
@dataclass(frozen=True, kw_only=True)
class ProtectValues(AbstractPass):
    """Puts a barrier between ops that XLA would join into one with other values.

    XLA turns log(exp x) into x, which is 89 where exp(89) is infinite, and (x + 1e30) − 1e30 into
    x. The barrier costs the fusion of the two ops.
    """

    name: ClassVar[str] = "protect-values"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        counts: dict[str, int] = {}

        def visit(node: Node) -> Value | None:
            found = risky_pair(node)
            if found is None:
                return None
            indices, text = found
            counts[text] = counts.get(text, 0) + 1
            inputs = list(node.inputs)
            for index in indices:
                inputs[index] = OptimizationBarrier()(inputs[index])
            return Node(node.op, tuple(inputs), node.types, node.location).results[0]

        def start() -> Rule:
            return visit

        made = sweep(graph, start)
        for text, count in sorted(counts.items()):
            ctx.note(f"kept from being rewritten: {text} × {count}")
        return made


def risky_pairs(graph: Graph) -> Iterator[tuple[Node, str]]:
    """The nodes that XLA would join with what they read, and what it would do."""
    for inner in graph.all_graphs():
        for node in inner.nodes():
            found = risky_pair(node)
            if found is not None:
                yield node, found[1]


def risky_pair(node: Node) -> Risk | None:
    """Which operands XLA would join with the node, and the pair as text; None for none."""
    if len(node.types) != 1 or not (node.types[0].dtype.is_float or node.types[0].dtype.is_complex):
        return None
    op, inputs = node.op, node.inputs
    match op:
        case Log() | Log2():
            inner = _behind(inputs[0]).node.op
            if isinstance(inner, Exp | Exp2 | Pow | Sqrt | Rsqrt):
                return (0,), f"{op.op_name}({inner.op_name}(x))"
        case Sqrt() | Rsqrt():
            if _is_square(_behind(inputs[0])):
                return (0,), f"{op.op_name}(x²)"
        case Pow():
            base = _behind(inputs[0])
            if isinstance(base.node.op, Exp | Exp2 | Pow | Div):
                return (0,), f"pow({base.node.op.op_name}(x), y)"
            if _is_square(base) and element_of(inputs[1]) == 0.5:
                return (0,), "pow(x², ½)"
        case Mul():
            return _product(inputs)
        case Add() | Sub():
            return _sum(op, inputs)
        case Div():
            return _quotient(inputs)
        case _:
            return None
    return None


def _product(inputs: tuple[Value, ...]) -> Risk | None:
    inner = [_behind(v) for v in inputs]
    kinds = [type(v.node.op) for v in inner]
    if kinds[0] is kinds[1] and kinds[0] in (Exp, Exp2):
        return (0,), f"{inner[0].node.op.op_name}(x) · {inner[0].node.op.op_name}(y)"
    for index in (0, 1):
        if _is_number(inputs[1 - index]) and _with_number(inner[index], Mul, Div):
            return (index,), "(x · c) · d"
    return None


def _sum(op: Add | Sub, inputs: tuple[Value, ...]) -> Risk | None:
    if isinstance(op, Sub):
        zero = 1 if is_minus_zero(element_of(inputs[1])) else None
    else:
        zero = next((i for i in (0, 1) if is_plus_zero(element_of(inputs[i]))), None)
    if zero is not None:  # the sum of -0 and 0 is 0
        return (zero,), "x + 0"
    for index in (0, 1):
        if _is_number(inputs[1 - index]) and _with_number(_behind(inputs[index]), Add, Sub):
            return (index,), "(x + c) + d"
    return None


def _quotient(inputs: tuple[Value, ...]) -> Risk | None:
    if _is_number(inputs[1]):
        return (1,), "x / c"
    below = _behind(inputs[1]).node.op
    above = isinstance(_behind(inputs[0]).node.op, Div)
    if isinstance(below, Exp | Exp2 | Pow | Sqrt | Rsqrt | Div):
        return ((0, 1) if above else (1,)), f"x / {below.op_name}(y)"
    return ((0,), "(x / y) / z") if above else None


def _behind(value: Value) -> Value:
    """The value behind ops that only repeat or move elements."""
    while isinstance(value.node.op, _SPREADS):
        value = value.node.inputs[0]
    return value


def _is_square(value: Value) -> bool:
    """Whether a value is x², or its size or negation."""
    while isinstance(value.node.op, Abs | Neg):
        value = _behind(value.node.inputs[0])
    op, inputs = value.node.op, value.node.inputs
    if isinstance(op, IntegerPow):
        return op.exponent % 2 == 0
    if isinstance(op, Pow):
        return element_of(inputs[1]) == 2
    return isinstance(op, Square) or (isinstance(op, Mul) and inputs[0] is inputs[1])


def _is_number(value: Value) -> bool:
    return element_of(value) is not None


def _with_number(value: Value, *kinds: type) -> bool:
    """Whether a value is one of these of something and a number."""
    node = value.node
    return isinstance(node.op, kinds) and any(_is_number(v) for v in node.inputs)
