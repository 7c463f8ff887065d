"""Sines, cosines, tangents, arc tangents and remainders of f32, written out in doubles.

XLA's CPU calls a scalar function of the C library for each of them. The same in f64, with no
branch, runs in vector lanes; ``bench_specialize`` measures 2²⁰ elements: sine 0.9 ms where XLA's
takes 3.3, tangent 1.3 for 5.5, arc tangent of two 0.9 for 24, remainder 1.3 for 16.

Numerics: all is computed in f64 and rounded to f32 once, so an error is at most 0.6 units in the
last place where XLA's are 0.6 (sine) to 1.5 (arc tangent); the remainder is exact, as XLA's is.
Angles beyond 10⁷ and quotients beyond 2²⁷ do not fit: where an array holds one, XLA's own op
computes that array. NaN, infinities and signed zeros are as in the op.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.op import Op
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rewritten, Rule, sweep
from rlx.ops.arithmetic import Abs, Ceil, Floor, IsFinite, Max, Min, Rem, Round
from rlx.ops.compare import Select
from rlx.ops.control_flow import Cond
from rlx.ops.convert import BitcastConvert
from rlx.ops.io import Input
from rlx.ops.reduction import ReduceOr
from rlx.ops.transcendental import Atan2, Cos, Sin, Tan

LARGEST_ANGLE = 1e7
"""Angles up to it are reduced exactly enough: their multiples of π/2 have at most 23 bits."""

LARGEST_QUOTIENT = 2.0**27
"""Quotients up to it are told from the next whole number by a division of doubles."""

_HALF_PI = (1.570796325802803, 9.920935796805404e-10)
"""π/2: the first 29 bits, whose products with whole numbers of 23 bits are exact, and the rest."""

_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(5))
"""Taylor's coefficients, enough for 3·10⁻⁹ up to π/4."""

_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(6))
"""The same for the cosine, within 10⁻¹⁰."""

_ARC = (
    0.9999999999390125,
    -0.3333333151819904,
    0.19999909957031015,
    -0.14283948421302828,
    0.11092984787684018,
    -0.08979051049122051,
    0.07242284142022871,
    -0.054215308434743315,
    0.03413342306628239,
    -0.016055160751966474,
    0.0048272278421791276,
    -0.0006804972887039186,
)
"""atan(t) / t as a polynomial of t² on [0, 1] through the Chebyshev points, within 10⁻¹⁰."""


def write_out(graph: Graph, *, strict: bool) -> tuple[Graph, Counter[str]]:
    """Return the graph with what gains written out, and how many of each op that are.

    With ``strict`` only remainders, which stay what they were bit by bit.
    """
    counts: Counter[str] = Counter()

    def start() -> Rule:
        def visit(node: Node) -> Rewritten:
            written = _WRITTEN.get(type(node.op))
            if written is None or (strict and not isinstance(node.op, Rem)):
                return None
            form, least = written
            types = [v.type for v in node.inputs]
            if any(t.dtype is not DType.F32 or not t.is_static for t in types):
                return None
            if math.prod(d for d in types[0].shape if isinstance(d, int)) < least:
                return None
            counts[f"{node.op.op_name} of f32 in f64"] += 1
            return form(*node.inputs)

        return visit

    begin: Callable[[], Rule] = start
    if not any(type(n.op) in _WRITTEN for inner in graph.all_graphs() for n in inner.nodes()):
        return graph, counts
    return sweep(graph, begin), counts


def _sine(x: Value) -> Value:
    return _unless(_is_wide(x), _angle(0), Sin(), x)


def _cosine(x: Value) -> Value:
    return _unless(_is_wide(x), _angle(1), Cos(), x)


def _tangent(x: Value) -> Value:
    def form(x: Value) -> Value:
        sine, cosine, quarter = _parts(x)
        odd = (quarter & 1).ne(0)
        return (Select()(odd, -cosine, sine) / Select()(odd, sine, cosine)).convert(DType.F32)

    return _unless(_is_wide(x), form, Tan(), x)


def _angle(turned: int) -> Callable[[Value], Value]:
    """The sine of an angle and some quarter turns."""

    def form(x: Value) -> Value:
        sine, cosine, quarter = _parts(x)
        quarter = quarter + turned if turned else quarter
        part: Value = Select()((quarter & 1).ne(0), cosine, sine)
        return Select()((quarter & 2).ne(0), -part, part).convert(DType.F32)

    return form


def _parts(x: Value) -> tuple[Value, Value, Value]:
    """Sine and cosine, in f64, of what is left of an angle after so many quarter turns."""
    wide = x.convert(DType.F64)
    turns: Value = Round()(wide * (2 / math.pi))
    high, low = _HALF_PI
    # Without turns the angle stays as it is: a difference loses the sign of a zero.
    rest: Value = Select()(turns.eq(0.0), wide, (wide - turns * high) - turns * low)
    square = rest * rest
    sine = rest * _polynomial(_SINE, square)
    return sine, _polynomial(_COSINE, square), turns.convert(DType.I32)


def _is_wide(x: Value) -> Value:
    return Abs()(x) > LARGEST_ANGLE


def _arc_tangent(y: Value, x: Value) -> Value:
    """By the smaller over the larger magnitude, and the eighth of the circle."""
    up, along = (Abs()(v).convert(DType.F64) for v in (y, x))
    less, more = Min()(up, along), Max()(up, along)
    zero = constant(0.0, DType.F64).broadcast_to(y.shape)
    ratio = Select()(more.eq(0.0), zero, less / more)
    both_infinite = less.eq(math.inf)
    ratio = Select()(both_infinite, constant(1.0, DType.F64).broadcast_to(y.shape), ratio)
    angle = ratio * _polynomial(_ARC, ratio * ratio)
    angle = Select()(up > along, math.pi / 2 - angle, angle)
    angle = Select()(_is_negative(x), math.pi - angle, angle).convert(DType.F32)
    return Select()(_is_negative(y), -angle, angle)


def _remainder(lhs: Value, rhs: Value) -> Value:
    def form(lhs: Value, rhs: Value) -> Value:
        wide, by = lhs.convert(DType.F64), rhs.convert(DType.F64)
        quotient = wide / by
        whole: Value = Select()(quotient < 0.0, Ceil()(quotient), Floor()(quotient))
        rest = Abs()((wide - whole * by).convert(DType.F32))
        signed: Value = Select()(_is_negative(lhs), -rest, rest)
        unchanged = Abs()(rhs).eq(math.inf) & IsFinite()(lhs)
        return Select()(unchanged, lhs, signed)

    return _unless(Abs()(lhs) > Abs()(rhs) * LARGEST_QUOTIENT, form, Rem(), lhs, rhs)


def _is_negative(x: Value) -> Value:
    """Whether the sign is set, that of a zero too."""
    return BitcastConvert(dtype=DType.I32)(x) < 0


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """By Horner's rule, the constant first."""
    made = constant(coefficients[-1], x.dtype).broadcast_to(x.shape)
    for coefficient in coefficients[-2::-1]:
        made = made * x + coefficient
    return made


def _unless(outside: Value, form: Callable[..., Value], op: Op, *operands: Value) -> Value:
    """The form, or the op itself where an element lies outside the form's range."""
    axes = tuple(range(outside.rank))
    graphs = (_graph("written_out", form, operands), _graph("as_it_was", op, operands))
    index: Value = ReduceOr(axes=axes)(outside)
    return make_node(Cond(branches=graphs), [index, *operands]).results[0]


def _graph(name: str, form: Callable[..., Value], operands: Sequence[Value]) -> Graph:
    leaves: list[Value] = [
        Input(name=f"x{i}", dtype=v.dtype, shape=v.shape)() for i, v in enumerate(operands)
    ]
    return Graph(leaves, (), [form(*leaves)], name=name)


_WRITTEN: dict[type[Op], tuple[Callable[..., Value], int]] = {
    Sin: (_sine, 2**15),
    Cos: (_cosine, 2**15),
    Tan: (_tangent, 2**15),
    Atan2: (_arc_tangent, 2**12),
    Rem: (_remainder, 2**12),
}
"""Op → its form, and the fewest elements that gain."""
