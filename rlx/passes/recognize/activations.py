"""gelu in both forms, silu and softplus."""

from __future__ import annotations

import math

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.activation import Gelu, Silu, Softplus
from rlx.ops.arithmetic import Abs, Add, Div, IntegerPow, Max, Mul, Neg
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.special import Erf, Erfc
from rlx.ops.transcendental import Exp, Log, Log1p, Logistic, Tanh
from rlx.passes.recognize.matcher import Match, Matcher, Search, near

_CUBE = 0.044715


def _elementwise(node: Node, x: Value, what: str, op: Op) -> Match:
    dtype = node.types[0].dtype

    def build(x: Value) -> Value:
        wide = x.convert(dtype) if x.dtype.bits < dtype.bits else x
        made: Value = op(wide)
        return made.convert(dtype)

    return Match(what, (x,), build)


def _curve(search: Search, value: Value) -> tuple[Value, float] | None:
    """The function under 1 + f, or under f where the curve is f alone, and its factor."""
    value = search.behind(value)
    if isinstance(value.node.op, Add):
        for index in (0, 1):
            if search.number(value.node.inputs[index]) == 1:
                return search.behind(value.node.inputs[1 - index]), 1.0
    return (value, 0.0) if isinstance(value.node.op, Erfc) else None


def gelu(search: Search, node: Node) -> Match | None:
    """Match x · (1 + erf(x/√2)) / 2, x · erfc(−x/√2) / 2, or the tanh form."""
    result = node.results[0]
    if not result.dtype.is_float or (search.strict and result.dtype.bits < 32):
        return None
    if not search.has(Erf, Erfc, Tanh):
        return None
    factor, others = 1.0, list[Value]()
    for view, below in search.factors(search.view(result)):
        number = search.number(view.value)
        if number is not None:
            factor *= 1 / number if below and number else number
        elif below or view.value.shape != result.shape:
            return None
        else:
            others.append(view.value)
    if len(others) != 2:
        return None
    for index in (0, 1):
        found = _curve(search, others[index])
        if found is not None:
            return _gelu(search, node, search.behind(others[1 - index]), found[0], factor)
    return None


def _gelu(search: Search, node: Node, x: Value, curve: Value, factor: float) -> Match | None:
    op = curve.node.op
    if not isinstance(op, Erf | Erfc | Tanh):
        return None
    inner = search.polynomial(curve.node.inputs[0], x)
    if inner is None:
        return None
    bits = curve.dtype.bits
    half = math.sqrt(0.5)
    slope = {Erf: half, Erfc: -half, Tanh: math.sqrt(2 / math.pi)}[type(op)]
    wanted = {1: slope, 3: slope * _CUBE} if isinstance(op, Tanh) else {1: slope}
    found = {power: c for power, c in inner.items() if c != 0}
    same = found.keys() == wanted.keys()
    if not same or not all(near(found[p], wanted[p], bits) for p in wanted):
        shown = ", ".join(f"{c:g}·x^{p}" for p, c in sorted(found.items()))
        needed = ", ".join(f"{c:g}·x^{p}" for p, c in wanted.items())
        search.miss(node, "gelu", f"{op.op_name} is of {shown} and not of {needed}")
        return None
    if not near(factor, 0.5, bits):
        search.miss(node, "gelu", f"its factor is {factor:g} and not 0.5")
        return None
    name = "gelu_tanh" if isinstance(op, Tanh) else "gelu"
    return _elementwise(node, x, name, Gelu(approximate=isinstance(op, Tanh)))


def silu(search: Search, node: Node) -> Match | None:
    """Match x · logistic(x), x / (1 + exp(−x))."""
    lhs, rhs = node.inputs
    result = node.results[0]
    if search.strict and result.dtype.bits < 32:
        return None
    if isinstance(node.op, Div):
        x = _logistic_divisor(search, rhs)
        if x is not None and search.behind(lhs) is x:
            return _elementwise(node, x, "silu", Silu())
        return None
    for one, other in ((lhs, rhs), (rhs, lhs)):
        curve, x = search.behind(other), search.behind(one)
        op, inputs = curve.node.op, curve.node.inputs
        if isinstance(op, Logistic):
            if search.behind(inputs[0]) is x:
                return _elementwise(node, x, "silu", Silu())
            slope = search.polynomial(inputs[0], x)
            if slope is not None:
                scale = ", ".join(f"{c:g}·x^{p}" for p, c in slope.items())
                search.miss(node, "silu", f"the logistic function is of {scale} and not of x")
        elif _is_reciprocal_of_logistic(search, curve, x):
            return _elementwise(node, x, "silu", Silu())
    return None


def _is_reciprocal_of_logistic(search: Search, value: Value, x: Value) -> bool:
    """Whether a value is 1 / (1 + exp(−x))."""
    op, inputs = value.node.op, value.node.inputs
    if isinstance(op, IntegerPow) and op.exponent == -1:
        return _logistic_divisor(search, inputs[0]) is x
    divides = isinstance(value.node.op, Div) and search.number(inputs[0]) == 1
    return divides and _logistic_divisor(search, inputs[1]) is x


def _logistic_divisor(search: Search, value: Value) -> Value | None:
    """Find x of 1 + exp(−x)."""
    value = search.behind(value)
    if not isinstance(value.node.op, Add):
        return None
    for index in (0, 1):
        if search.number(value.node.inputs[index]) != 1:
            continue
        exp = search.behind(value.node.inputs[1 - index])
        negated = search.behind(exp.node.inputs[0]) if isinstance(exp.node.op, Exp) else exp
        if isinstance(exp.node.op, Exp) and isinstance(negated.node.op, Neg):
            return search.behind(negated.node.inputs[0])
    return None


def softplus(search: Search, node: Node) -> Match | None:
    """max(x, 0) + log1p(exp(−|x|)), with or without a branch for NaN."""
    if isinstance(node.op, Select):
        return _guarded_softplus(search, node)
    x = _softplus_of(search, node.results[0])
    if x is None or (search.strict and node.types[0].dtype.bits < 32):
        return None
    return _elementwise(node, x, "softplus", Softplus())


def _guarded_softplus(search: Search, node: Node) -> Match | None:
    """select(x ≠ x, x + 0, softplus(x)), as `jax.nn.softplus` is traced."""
    pred, unordered, ordered = node.inputs
    compare = pred.node
    if not isinstance(compare.op, Compare) or compare.op.direction is not Direction.NE:
        return None
    if compare.inputs[0] is not compare.inputs[1]:
        return None
    x = _softplus_of(search, search.behind(ordered))
    if x is None or (search.strict and node.types[0].dtype.bits < 32):
        return None
    if not _is_plus_or_minus(search, compare.inputs[0], x):
        return None
    nan = search.polynomial(unordered, x)
    if nan is None or {p: c for p, c in nan.items() if c} != {1: 1.0}:
        return None
    return _elementwise(node, x, "softplus", Softplus())


def _softplus_of(search: Search, value: Value) -> Value | None:
    """Find x of max(x, 0) + log1p(exp(−|x|))."""
    if not isinstance(value.node.op, Add):
        return None
    for index in (0, 1):
        above = search.behind(value.node.inputs[index])
        log = search.behind(value.node.inputs[1 - index])
        if not isinstance(above.node.op, Max) or not isinstance(log.node.op, Log1p):
            continue
        exp = search.behind(log.node.inputs[0])
        negated = search.behind(exp.node.inputs[0]) if isinstance(exp.node.op, Exp) else exp
        if not isinstance(exp.node.op, Exp) or not isinstance(negated.node.op, Neg):
            return None
        size = search.behind(negated.node.inputs[0])
        if not isinstance(size.node.op, Abs):
            return None
        for side in (0, 1):
            zero, x = above.node.inputs[side], search.behind(above.node.inputs[1 - side])
            if search.number(zero) == 0 and _is_plus_or_minus(search, size.node.inputs[0], x):
                return x
    return None


def _is_plus_or_minus(search: Search, value: Value, x: Value) -> bool:
    """Whether a value is x or −x."""
    found = search.polynomial(value, x) or {}
    return {p: abs(c) for p, c in found.items() if c} == {1: 1.0}


def plain_softplus(search: Search, node: Node) -> Match | None:
    """A near miss: log(1 + exp(x)) overflows where the composite does not."""
    inner = search.behind(node.inputs[0])
    if isinstance(node.op, Log):
        parts = inner.node.inputs if isinstance(inner.node.op, Add) else ()
        others = [v for v in parts if search.number(v) != 1]
        inner = (
            search.behind(others[0]) if len(parts) == 2 and len(others) == 1 else node.results[0]
        )
    if isinstance(inner.node.op, Exp):
        argument = search.behind(inner.node.inputs[0])
        negated = argument.node.inputs[0] if isinstance(argument.node.op, Neg) else argument
        if not isinstance(search.behind(negated).node.op, Abs):
            search.miss(node, "softplus", "exp(x) overflows for large x")
    return None


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    Mul: (gelu, silu),
    Div: (silu, gelu),
    Add: (softplus,),
    Select: (softplus,),
    Log: (plain_softplus,),
    Log1p: (plain_softplus,),
}

NEEDS: tuple[type[Op], ...] = (Erf, Erfc, Tanh, Exp, Logistic)
"""Ops without any of which there is nothing to find."""
