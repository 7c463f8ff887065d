"""The matching machinery: views through layouts, numbers known at compile time, and the search.

A rule looks at one node, the last of a pattern, and answers with what the whole pattern is. The
search goes from outputs to inputs, so that the largest pattern wins and what it swallows is not
looked at again. Every rule looks at a bounded number of nodes, hence the search is linear.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, final

import numpy as np

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Add, Div, IntegerPow, Max, Min, Mul, Neg, Pow, Square, Sub
from rlx.ops.compare import Compare, Select
from rlx.ops.convert import Convert, Copy, StopGradient
from rlx.ops.dot import DotGeneral
from rlx.ops.io import Constant
from rlx.ops.reduction import Mean, ReduceSum
from rlx.ops.shape import BroadcastInDim, Expand, Reshape, Tile, Transpose
from rlx.ops.transcendental import Rsqrt, Sqrt
from rlx.recognition_report import NearMiss
from rlx.types import Shape

T = TypeVar("T")

MAX_STEPS = 16
"""How many layouts and scalings in a row are looked through."""

MAX_ELEMENTS = 256
"""A longer literal is not searched for being all equal."""

_IDENTITIES = tuple(range(32))
"""Its beginnings are the axes of values that lie in others as they are."""

MAX_FACTORS = 12
"""Most factors of one product."""

_SPREADS = frozenset({BroadcastInDim, Expand, Reshape, Tile, Transpose, StopGradient, Copy})
_PLAIN = frozenset(
    {Add, Sub, Mul, Div, Neg, Sqrt, Rsqrt, Square, IntegerPow, Pow, Max, Min}
    | {Compare, Select, Convert}
)
"""Elementwise ops through which a number stays known."""


@final
@dataclass(frozen=True)
class Match:
    """What a pattern is.

    Attributes:
        what: what is counted in the report, such as ``layer_norm``.
        operands: values of the source graph that the composite reads.
        build: makes the composite of the operands, as they are by then.
        absorbs: what was counted before and is part of it; empty for nothing.
    """

    what: str
    operands: tuple[Value, ...]
    build: Callable[..., Value | tuple[Value, ...]]
    absorbs: str = ""


Matcher: TypeAlias = "Callable[[Search, Node], Match | None]"


@final
class View(NamedTuple):
    """A value as it lies in another one.

    Attributes:
        value: what is looked at.
        axes: for each of its axis the axis of the outer value, −1 where it is stretched or new.
    """

    value: Value
    axes: tuple[int, ...]

    @property
    def op(self) -> Op:
        """The op that makes the value."""
        return self.value.node.op

    def operand(self, index: int) -> View:
        """An operand of the same shape, for elementwise ops."""
        return View(self.value.node.inputs[index], self.axes)

    def lies_in(self, kept: tuple[int, ...]) -> bool:
        """Whether its axes are those of the outer value given, in order; size 1 is everywhere."""
        if len(kept) != len(self.axes):
            return False
        pairs = zip(self.axes, kept, self.value.shape, strict=True)
        return all(have == want or (have == -1 and size == 1) for have, want, size in pairs)


@final
@dataclass(frozen=True)
class Reduced:
    """A reduction of a value that lies where the value itself does.

    Attributes:
        source: what is reduced.
        axes: over which axes.
        scale: factor of the sum.
        value: the result of the reduction.
    """

    source: Value
    axes: tuple[int, ...]
    scale: float
    value: Value

    @property
    def count(self) -> int:
        """How many elements are reduced to one; 0 where that is not known."""
        sizes = [self.source.shape[axis] for axis in self.axes]
        return math.prod(s for s in sizes if isinstance(s, int)) if all_static(sizes) else 0

    @property
    def is_mean(self) -> bool:
        """Whether the factor is one over the count."""
        return self.count > 0 and abs(self.scale * self.count - 1) < 1e-6


def all_static(shape: Any) -> bool:
    """Whether every size is a number."""
    return all(isinstance(size, int) for size in shape)


@final
class Search:
    """The search in one graph.

    Attributes:
        strict: match only what gives the same bits, up to the order of sums.
        misses: what came near a pattern.
        platform: what is compiled for.
        has_kernel: whether a kernel of the device carries a node out; None for no device.
        trees: match recurrences that trees of products compute, whose NaN are others.
    """

    def __init__(
        self,
        graph: Graph,
        strict: bool,
        misses: dict[NearMiss, None],
        platform: str,
        has_kernel: Callable[[Node], bool] | None = None,
        trees: bool = False,
    ) -> None:
        self.strict = strict
        self.trees = trees
        self.misses = misses
        self.platform = platform
        self.has_kernel = has_kernel
        self._graph = graph
        self._numbers: dict[Value, Any] = {}
        self._behind: dict[Value, View | None] = {}
        self._factors: dict[tuple[View, bool], list[tuple[View, bool]]] = {}
        self._found: dict[Callable[[Search], Any], Any] = {}
        self._kinds = {type(node.op) for node in graph.nodes()}
        for node in graph.nodes():
            self._learn(node)

    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the graph, in its order."""
        return self._graph.nodes()

    def results(self) -> tuple[Value, ...]:
        """The results of the graph, with the last tokens of its effects."""
        return (*self._graph.outputs, *self._graph.effects)

    def has(self, *ops: type[Op]) -> bool:
        """Whether a node of one of the ops is in the graph."""
        return not self._kinds.isdisjoint(ops)

    def readers(self, value: Value) -> Sequence[Node]:
        """The nodes that read a value, each once."""
        return self.once(_readers).get(value, ())

    def once(self, make: Callable[[Search], T]) -> T:
        """What a function finds in the graph; it is called the first time."""
        if make not in self._found:
            self._found[make] = make(self)
        return self._found[make]

    def uses(self, value: Value) -> int:
        """How often a value is read, as a result of the graph too."""
        return self.once(_uses).get(value, 0)

    def miss(self, node: Node, what: str, why: str) -> None:
        """Report that a node comes near a pattern."""
        where = str(node.location) if node.location else ""
        self.misses[NearMiss(what, where, why)] = None

    def run(self, table: Mapping[type[Op], tuple[Matcher, ...]]) -> dict[Node, Match]:
        """All matches, each by its last node."""
        found: dict[Node, Match] = {}
        live = {v.node for v in self.results()}
        for node in reversed(self._graph.nodes()):
            if node not in live:
                continue
            read: tuple[Value, ...] = node.inputs
            for matcher in table.get(type(node.op), ()):
                match = matcher(self, node)
                if match is not None:
                    found[node] = match
                    read = match.operands
                    break
            for value in read:
                live.add(value.node)
        return found

    def number(self, value: Value) -> float | None:
        """The real number that all elements of a value equal, where it is known."""
        element = self.element(value)
        if element is None or element.dtype.kind == "c":
            return None
        return float(element)

    def element(self, value: Value) -> Any:
        """The one element of a value whose elements are all equal, or None."""
        return self._numbers.get(value)

    def _learn(self, node: Node) -> None:
        """Note what is known of a node's result, once its inputs have been dealt with."""
        kind = type(node.op)
        spread = kind in _SPREADS
        if isinstance(node.op, Constant):
            array = node.op.value.array
            if 0 < array.size <= MAX_ELEMENTS:
                flat = array.reshape(-1)
                if flat.tobytes() == flat[:1].tobytes() * array.size:
                    self._numbers[node.results[0]] = flat[0]
            return
        if not spread and kind not in _PLAIN:
            return
        known: list[Any] = []
        for operand in node.inputs:
            element = self._numbers.get(operand)
            if element is None:
                return
            known.append(element)
        if spread:
            (self._numbers[node.results[0]],) = known
            return
        with np.errstate(all="ignore"):
            made = node.op.evaluate(*(np.asarray(element) for element in known))
        self._numbers[node.results[0]] = np.asarray(made).reshape(-1)[0]

    def view(self, value: Value) -> View:
        """A value as it lies in itself."""
        return View(value, tuple(range(value.rank)))

    def within(self, view: View) -> View | None:
        """What is behind one layout or conversion, or None where there is neither."""
        value = view.value
        if value in self._behind:
            found = self._behind[value]
        else:
            found = self._behind[value] = self._one_behind(value)
        if found is None:
            return None
        axes = view.axes
        if found.axes == _IDENTITIES[: len(axes)]:
            return View(found.value, axes)
        return View(found.value, tuple([axes[place] if place >= 0 else -1 for place in found.axes]))

    def _one_behind(self, value: Value) -> View | None:
        """What is behind one layout or conversion, with its axes in the value."""
        node = value.node
        op = node.op
        if isinstance(op, StopGradient | Copy):
            return self.view(node.inputs[0])
        if isinstance(op, Convert):
            return self.view(node.inputs[0]) if self.passes(node) else None
        if isinstance(op, BroadcastInDim | Expand):
            x = node.inputs[0]
            lead = value.rank - x.rank
            places = (
                op.broadcast_dimensions
                if isinstance(op, BroadcastInDim)
                else tuple(range(lead, value.rank))
            )
            pairs = zip(x.shape, places, strict=True)
            return View(x, tuple([p if size == value.shape[p] else -1 for size, p in pairs]))
        if isinstance(op, Transpose):
            x = node.inputs[0]
            moved = [-1] * x.rank
            for place, axis in enumerate(op.permutation):
                moved[axis] = place
            return View(x, tuple(moved))
        if isinstance(op, Reshape):
            return _unit_reshape(self.view(value), node.inputs[0])
        return None

    def passes(self, node: Node) -> bool:
        """Whether a conversion between floats may be looked through."""
        source, target = node.inputs[0].dtype, node.types[0].dtype
        if not (source.is_float and target.is_float):
            return False
        return not self.strict or target.bits >= source.bits

    def behind(self, value: Value) -> Value:
        """What is behind conversions and markers, in the same place."""
        for _ in range(MAX_STEPS):
            node = value.node
            if isinstance(node.op, StopGradient | Copy) or (
                isinstance(node.op, Convert) and self.passes(node)
            ):
                value = node.inputs[0]
            else:
                break
        return value

    def views(self, view: View) -> Iterator[View]:
        """The view, then what is behind each layout and conversion."""
        for _ in range(MAX_STEPS):
            yield view
            inner = self.within(view)
            if inner is None:
                return
            view = inner

    def innermost(self, view: View) -> View:
        """What is behind all layouts and conversions."""
        *_, last = self.views(view)
        return last

    def reduced(
        self, value: Value, kind: type[Op] = ReduceSum, *, of: Value | None = None
    ) -> Reduced | None:
        """A reduction, spread over the shape of what it reduces, with factors.

        Args:
            value: what is looked at.
            kind: the op that reduces.
            of: what should be reduced; it may have been transposed since.
        """
        return self.reduced_view(self.view(value), value.shape, kind, of=of)

    def reduced_view(
        self,
        view: View,
        shape: Shape,
        kind: type[Op] = ReduceSum,
        *,
        of: Value | None = None,
    ) -> Reduced | None:
        """The same for a view into a value of the shape."""
        scale = 1.0
        for _ in range(MAX_STEPS):
            node, op = view.value.node, view.op
            if isinstance(op, kind) or (isinstance(op, Mean) and kind is ReduceSum):
                return self._reduction(view, shape, scale, of)
            inner = self.unscaled(view) if kind is ReduceSum else self._without_floor(view)
            if inner is not None:
                factor, view = inner
                scale *= factor
                continue
            if isinstance(op, Select):
                chosen = self.element(node.inputs[0])
                if chosen is None:
                    return None
                view = view.operand(1 if chosen else 2)
                continue
            following = self.within(view)
            if following is None:
                return None
            view = following
        return None

    def _reduction(
        self, view: View, shape: Shape, scale: float, of: Value | None
    ) -> Reduced | None:
        source = view.value.node.inputs[0]
        axes = cast("tuple[int, ...]", view.op.attributes()["axes"])
        kept = tuple(i for i in range(source.rank) if i not in axes)
        if source.shape == shape and view.lies_in(kept):
            made = Reduced(source, axes, scale, view.value)
        else:
            moved = None if of is None else self._moved(view, source, axes, of)
            if of is None or moved is None:
                return None
            made = Reduced(of, moved, scale, view.value)
        if isinstance(view.op, Mean):
            if not made.count:
                return None
            made = Reduced(made.source, made.axes, scale / made.count, view.value)
        return made

    def _moved(
        self, view: View, source: Value, axes: tuple[int, ...], of: Value
    ) -> tuple[int, ...] | None:
        """The reduced axes of a value, of which the source is another layout."""
        for current in self.views(self.view(of)):
            if current.value is not source:
                continue
            kept = [axis for i, axis in enumerate(current.axes) if i not in axes]
            moved = [current.axes[i] for i in axes]
            if -1 in moved or not view.lies_in(tuple(kept)):
                return None
            return tuple(sorted(moved))
        return None

    def unscaled(self, view: View) -> tuple[float, View] | None:
        """A factor that is known, and what it multiplies."""
        op, inputs = view.op, view.value.node.inputs
        if isinstance(op, Div):
            number = self.number(inputs[1])
            return None if not number else (1 / number, view.operand(0))
        if isinstance(op, Mul):
            for index in (0, 1):
                number = self.number(inputs[index])
                if number is not None:
                    return number, view.operand(1 - index)
        return None

    def _without_floor(self, view: View) -> tuple[float, View] | None:
        """What is compared with −Inf, of which it is the larger."""
        if isinstance(view.op, Max):
            for index in (0, 1):
                if self.number(view.value.node.inputs[index]) == -math.inf:
                    return 1.0, view.operand(1 - index)
        return None

    def factors(
        self, view: View, *, inverse: bool = False, whole: Value | None = None
    ) -> list[tuple[View, bool]]:
        """The factors of a product but for 1, each with whether it divides; one may stay whole."""
        known = self._factors.get((view, inverse)) if whole is None else None
        if known is not None:
            return known
        found: list[tuple[View, bool]] = []
        pending = [(view, inverse)]
        while pending:
            current, below = pending.pop()
            apart = whole is None or self.behind(current.value) is not whole
            apart = apart and len(found) + len(pending) < MAX_FACTORS
            split = self._split(current) if apart else None
            if split is None and self.number(current.value) != 1:
                found.append((current, below))
            elif split is not None:
                pending.extend((part, below != flipped) for part, flipped in reversed(split))
        if whole is None:
            self._factors[view, inverse] = found
        return found

    def _split(self, view: View) -> list[tuple[View, bool]] | None:
        for current in self.views(view):
            if self.number(current.value) is not None:
                return None
            if isinstance(current.op, Mul):
                return [(current.operand(0), False), (current.operand(1), False)]
            if isinstance(current.op, Div):
                return [(current.operand(0), False), (current.operand(1), True)]
            if isinstance(current.op, DotGeneral) and not current.op.lhs_contracting:
                return [(part, False) for part in _outer(current, current.op)]
        return None

    def vector(self, view: View, axis: int) -> Value | None:
        """A value that varies along one axis of the outer value only; its other axes are 1."""
        found: Value | None = None
        for current in self.views(view):
            value = current.value
            if value.rank == 1 and current.axes == (axis,):
                return value
            wide = [a for a, s in zip(current.axes, value.shape, strict=True) if s != 1]
            if wide == [axis]:
                found = value
        return found

    def polynomial(self, value: Value, x: Value, depth: int = 8) -> dict[int, float] | None:
        """The coefficients of a value as a polynomial in x, by powers; None for anything else."""
        value = self.behind(value)
        if value is x:
            return {1: 1.0}
        number = self.number(value)
        if number is not None:
            return {0: number}
        if not depth:
            return None
        op, inputs = value.node.op, value.node.inputs
        if not isinstance(op, Add | Sub | Mul | Div | Neg | Square | IntegerPow | Pow):
            return None
        first = self.polynomial(inputs[0], x, depth - 1)
        if first is None:
            return None
        match op:
            case Neg():
                return {power: -factor for power, factor in first.items()}
            case Square():
                return _times(first, first)
            case IntegerPow():
                return _power(first, op.exponent)
            case _:
                second = self.polynomial(inputs[1], x, depth - 1)
        if second is None:
            return None
        match op:
            case Add() | Sub():
                sign = 1 if isinstance(op, Add) else -1
                total = dict(first)
                for power, factor in second.items():
                    total[power] = total.get(power, 0.0) + sign * factor
                return total
            case Mul():
                return _times(first, second)
            case Pow():
                exponent = second.get(0, 0.5) if set(second) == {0} else 0.5
                return _power(first, int(exponent)) if exponent == int(exponent) else None
            case _:
                if set(second) != {0} or not second[0]:
                    return None
                return {power: factor / second[0] for power, factor in first.items()}


def _times(lhs: dict[int, float], rhs: dict[int, float]) -> dict[int, float] | None:
    made: dict[int, float] = {}
    for first, factor in lhs.items():
        for second, other in rhs.items():
            made[first + second] = made.get(first + second, 0.0) + factor * other
    return made if max(made) <= 4 else None


def _power(base: dict[int, float], exponent: int) -> dict[int, float] | None:
    if not 1 <= exponent <= 4:
        return None
    made: dict[int, float] | None = base
    for _ in range(exponent - 1):
        made = None if made is None else _times(made, base)
    return made


def _outer(view: View, op: DotGeneral) -> list[View]:
    """Both operands of a product of matrices that sums nothing."""
    lhs, rhs = view.value.node.inputs
    batch, left = len(op.lhs_batch), op.lhs_free(lhs.rank)
    found: list[View] = []
    for value, paired, free, start in (
        (lhs, op.lhs_batch, left, batch),
        (rhs, op.rhs_batch, op.rhs_free(rhs.rank), batch + len(left)),
    ):
        axes = [-1] * value.rank
        for place, axis in (*enumerate(paired), *enumerate(free, start)):
            axes[axis] = view.axes[place]
        found.append(View(value, tuple(axes)))
    return found


def _unit_reshape(view: View, x: Value) -> View | None:
    """A reshape that only adds and removes axes of size 1."""
    wide = [
        (axis, size) for axis, size in zip(view.axes, view.value.shape, strict=True) if size != 1
    ]
    if [size for _, size in wide] != [size for size in x.shape if size != 1]:
        return None
    places = iter(axis for axis, _ in wide)
    return View(x, tuple(-1 if size == 1 else next(places) for size in x.shape))


def near(found: float, wanted: float, bits: int) -> bool:
    """Whether a constant is the wanted one, rounded to a float of so many bits."""
    tolerance = {64: 1e-7, 32: 1e-6, 16: 8e-3}.get(bits, 1e-6)
    return abs(found - wanted) <= tolerance * abs(wanted)


def shortest(number: float, value: Value) -> float:
    """The shortest decimal number that has the bits of a constant of a value's dtype."""
    dtype = value.dtype.numpy
    rounded = np.asarray(number, dtype)
    if value.dtype.bits >= 32:
        return float(str(rounded[()]))
    return float(rounded)


def _uses(search: Search) -> Counter[Value]:
    found = Counter(search.results())
    for node in search.nodes():
        for value in node.inputs:
            found[value] += 1
    return found


def _readers(search: Search) -> dict[Value, list[Node]]:
    found: dict[Value, list[Node]] = {}
    for node in search.nodes():
        for value in dict.fromkeys(node.inputs):
            found.setdefault(value, []).append(node)
    return found
