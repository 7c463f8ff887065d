"""What the rules of padding share: sizes, actual extents as numbers in the graph, and masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast, final

import numpy as np

from rlx import dims
from rlx.dims import DimExpr
from rlx.dims.polynomial import Apply, Polynomial, Symbol
from rlx.dtypes import DType, as_dtype
from rlx.ir.graph import Node, Value, make_node
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add, Max, Min, Mul, Rem, Sub
from rlx.ops.bitwise import And, Xor
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convert import Convert
from rlx.ops.shape import Iota
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, grows, plain
from rlx.types import Dim, Shape, TensorType

Results: TypeAlias = "Sequence[Padded] | Refusal"
Rule: TypeAlias = "Callable[[Padding, Node, Sequence[Padded]], Results]"

_RULES: dict[type[Op], Rule] = {}

_MOST_TRIED = 4096
"""Largest padded size up to which a dim is tried at every size."""


def pads(*ops: type[Op]) -> Callable[[Rule], Rule]:
    """Register how ops are carried out on padded operands."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            assert op not in _RULES, op
            _RULES[op] = rule
        return rule

    return register


def rule_for(op: Op) -> Rule | None:
    """The rule of an op's class."""
    return _RULES.get(type(op))


def ruled_ops() -> tuple[type[Op], ...]:
    """Every op that has a rule of its own."""
    return tuple(_RULES)


@final
class Padding:
    """One graph that is being padded.

    Attributes:
        sizes: symbol → padded size.
        extents: symbol → its actual size, an i32[] value.
    """

    def __init__(self, sizes: Mapping[str, int], extents: Mapping[str, Value]) -> None:
        """Start a graph whose hidden inputs are ``extents``."""
        self.sizes = dict(sizes)
        self.extents = dict(extents)
        self._numbers: dict[Dim, Value] = {}
        self._masks: dict[Any, Value] = {}

    def inside(self, extents: Mapping[str, Value]) -> Padding:
        """The same for a graph inside an op, with hidden inputs of its own."""
        return Padding(self.sizes, extents)

    def size(self, dim: Dim) -> int:
        """Padded size of a dim."""
        return dims.evaluate(dim, self.sizes)

    def grows(self, dim: Dim) -> bool:
        """Whether a dim has its largest size at the padded sizes, as far as can be shown."""
        if not isinstance(dim, DimExpr) or grows(dim):
            return True
        (name, *others) = dim.polynomial.symbols
        most = self.sizes[name]
        if others or most > _MOST_TRIED:
            return False
        least = dim.polynomial.symbols[name].lower or 1
        limit = self.size(dim)
        return all(dims.evaluate(dim, {name: n}) <= limit for n in range(max(least, 1), most))

    def span(self, dim: Dim) -> tuple[int, int] | None:
        """Least and greatest size of a dim up to the padded sizes; None where it is not known."""
        if not isinstance(dim, DimExpr):
            return dim, dim
        (name, *others) = dim.polynomial.symbols
        most = self.sizes[name]
        if others or most > _MOST_TRIED:
            return None
        least = dim.polynomial.symbols[name].lower or 1
        found = [dims.evaluate(dim, {name: n}) for n in range(max(least, 1), most + 1)]
        return min(found), max(found)

    def shape(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """Padded sizes of dims."""
        return tuple(self.size(d) for d in shape)

    def type(self, type_: TensorType) -> TensorType:
        """A type with padded sizes."""
        return type_.with_shape(self.shape(type_.shape))

    def bound(self, op: Op) -> Op:
        """An op with padded sizes in its attributes; inner graphs are left as they are."""
        changes = {
            name: made
            for name, value in op.attributes().items()
            if (made := self._bound(value)) is not value
        }
        return op.replace(**changes) if changes else op

    def _bound(self, value: Any) -> Any:
        if isinstance(value, DimExpr):
            return self.size(value)
        if isinstance(value, tuple):
            items: tuple[Any, ...] = tuple(self._bound(v) for v in cast("tuple[Any, ...]", value))
            same = all(a is b for a, b in zip(items, cast("Any", value), strict=True))
            return cast("Any", value) if same else items
        return value

    def results(
        self, node: Node, made: Sequence[Value], axes: Sequence[Sequence[Axis]]
    ) -> list[Padded] | Refusal:
        """New values of a node with their layouts."""
        for type_ in node.types:
            for dim in type_.shape:
                if not self.grows(dim):
                    return Refusal(f"a result's dim {dim} may shrink where its symbols grow")
        return [
            Padded(value, type_.shape, tuple(layout))
            for value, type_, layout in zip(made, node.types, axes, strict=True)
        ]

    def remade(
        self, node: Node, inputs: Sequence[Value], axes: Sequence[Axis], op: Op | None = None
    ) -> list[Padded] | Refusal:
        """The node with padded sizes on other inputs; each result has the layout ``axes``."""
        made = make_node(self.bound(node.op) if op is None else op, inputs, node.location)
        return self.results(node, made.results, [axes] * len(node.types))

    def number(self, dim: Dim, dtype: DType = DType.I32) -> Value:
        """The actual size that a dim has, as a scalar."""
        found = self._numbers.get(dim)
        if found is None:
            found = constant(dim) if isinstance(dim, int) else self._polynomial(dim.polynomial)
            self._numbers[dim] = found
        return found if dtype is DType.I32 else cast("Value", Convert(dtype=dtype)(found))

    def _polynomial(self, polynomial: Polynomial) -> Value:
        total: Value | None = None
        for monomial, coefficient in polynomial.terms:
            term: Value = constant(int(coefficient))
            for atom, exponent in monomial:
                factor = self._atom(atom)
                for _ in range(exponent):
                    term = Mul()(term, factor)
            total = term if total is None else Add()(total, term)
        return constant(0) if total is None else total

    def _atom(self, atom: object) -> Value:
        if isinstance(atom, Symbol):
            return self.extents[atom.name]
        apply = cast("Apply", atom)
        parts = [self._polynomial(argument) for argument in apply.args]
        if apply.kind in ("min", "max"):
            op = Min() if apply.kind == "min" else Max()
            result = parts[0]
            for part in parts[1:]:
                result = op(result, part)
            return result
        from rlx.ops.arithmetic import Div

        left, right = parts
        rest: Value = Rem()(left, right)  # of the sign of the left side, so that it is mended
        zero = constant(0)
        wrong = And()(
            Compare(direction=Direction.NE)(rest, zero),
            Xor()(
                Compare(direction=Direction.LT)(rest, zero),
                Compare(direction=Direction.LT)(right, zero),
            ),
        )
        rest = Select()(wrong, Add()(rest, right), rest)
        return rest if apply.kind == "mod" else Div()(Sub()(left, rest), right)

    def mask(self, x: Padded, axes: Sequence[int]) -> Value | None:
        """True where an element of x stands; None where nothing is padded."""
        shape = tuple(x.value.type.shape)
        found: Value | None = None
        for axis in axes:
            if not x.is_padded(axis):
                continue
            part = self._axis_mask(cast("tuple[int, ...]", shape), axis, x.factors(axis))
            found = part if found is None else And()(found, part)
        return found

    def _axis_mask(self, shape: tuple[int, ...], axis: int, factors: tuple[Dim, ...]) -> Value:
        key = (shape, axis, factors)
        made = self._masks.get(key)
        if made is not None:
            return made
        line = (shape[axis],)
        position: Value = Iota(dtype=DType.I32, shape=line, axis=0)()
        below = 1
        for factor in reversed(factors):
            size = self.size(factor)
            if not isinstance(factor, int):
                digit = position
                if below != 1:
                    from rlx.ops.arithmetic import Div

                    digit = Div()(digit, broadcast_to(constant(below), line))
                if below * size != line[0]:
                    digit = Rem()(digit, broadcast_to(constant(size), line))
                limit = broadcast_to(self.number(factor), line)
                part = Compare(direction=Direction.LT)(digit, limit)
                made = part if made is None else And()(made, part)
            below *= size
        assert made is not None
        wide = broadcast_to(
            cast("Value", made.reshape((shape[axis], *[1] * (len(shape) - axis - 1)))), shape
        )
        self._masks[key] = wide
        return wide

    def filled(self, x: Padded, axes: Sequence[int], value: Any) -> Value:
        """X with a number (or a scalar value) in all padding along some axes."""
        if not isinstance(value, Value) and not np.any(value):
            axes = [axis for axis in axes if axis not in x.zeros]
        mask = self.mask(x, axes)
        if mask is None:
            return x.value
        type_ = x.value.type
        if not isinstance(value, Value):
            value = constant(np.asarray(value, type_.dtype.numpy))
        return cast("Value", Select()(mask, x.value, broadcast_to(value, type_.shape)))


def as_padded(value: Value, shape: Shape) -> Padded:
    """A value whose elements come first on every axis."""
    return Padded(value, shape, plain(shape))


def scalar(value: Any, dtype: DType) -> Value:
    """A constant of a dtype."""
    return constant(np.asarray(value, as_dtype(dtype).numpy))
