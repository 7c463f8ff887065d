"""Gates of recurrent cells: which weights of the loop are summed, from which input, with what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast, final

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral
from rlx.ops.dot.general import DEFAULT_PRECISION
from rlx.ops.shape import Concatenate, Narrow, Slice, Split, Transpose
from rlx.passes.recognize.masked_cells import Masked
from rlx.passes.recognize.matcher import MAX_STEPS, Search, View

_MAX_TERMS = 32
"""Most terms of one gate, and steps on the way to them."""


@final
@dataclass(frozen=True)
class Weight:
    """Part of an array outside the loop.

    Attributes:
        place: which operand of the scan it is, or of what is read besides, behind those.
        start: where the part begins along the axis of gates.
        axis: the axis of gates.
        rows: first and number of the rows along the other axis; None for all.
        negative: whether minus the part is meant.
    """

    place: int
    start: int
    axis: int
    rows: tuple[int, int] | None = None
    negative: bool = False


@final
@dataclass
class Gate:
    """What is summed for one gate.

    Attributes:
        entering: the weight of the input.
        kept: the weight of the state.
        biases: vectors.
        constant: a number that is added too.
    """

    entering: Weight | None = None
    kept: Weight | None = None
    biases: list[Weight] = field(default_factory=list[Weight])
    constant: float = 0.0

    def negative(self) -> Gate:
        """Minus the sum."""
        one, two, *rest = (
            None if w is None else dataclasses.replace(w, negative=not w.negative)
            for w in (self.entering, self.kept, *self.biases)
        )
        return Gate(one, two, [w for w in rest if w is not None], -self.constant)


@final
@dataclass(frozen=True)
class Part:
    """A gate's width of a value.

    Attributes:
        value: of the rank of the states.
        axis: the axis of gates.
        start: where the part begins.
    """

    value: Value
    axis: int
    start: int = 0

    def of(self, value: Value) -> Part:
        """The same part of another value."""
        return Part(value, self.axis, self.start)


@final
class Cell:
    """The body of a scan over one array.

    Attributes:
        loop: the scan.
        node: the scan without its mask.
        op: its op.
        masked: what its states stay by; None where each step changes them.
        search: the search in the body.
        width: of the states.
        entering: the input of one step.
        others: values outside the loop that are read besides the operands of the scan.
        vectors: places of those among them that are vectors, though with axes of size 1.
        source: where the products with the input are taken before the loop, the place of that
            input, and the order in which its axes are time, batch and what is summed.
    """

    def __init__(
        self, search: Search, loop: Node, hidden: int, masked: Masked | None = None
    ) -> None:
        """Look into the body of a loop whose states have a width."""
        node = loop if masked is None else masked.node
        op = cast("Scan", node.op)
        self.op = op
        self.loop, self.node = loop, node
        self.masked = masked
        self.search = Search(op.body, search.strict, search.misses, search.platform)
        self.width = hidden
        self.entering = op.body.inputs[-1]
        self.others: list[Value] = []
        self.vectors: set[int] = set()
        self.source: tuple[int, tuple[int, ...]] | None = None
        self._outer = search
        self._place = {value: i for i, value in enumerate(op.body.inputs)}

    @property
    def operands(self) -> tuple[Value, ...]:
        """What weights are parts of, by their places, and then the mask."""
        masks = () if self.masked is None else (self.masked.mask,)
        return (*self.node.inputs, *self.others, *masks)

    def part(self, value: Value) -> Part:
        """A whole value, with gates along its last axis."""
        return Part(value, value.rank - 1)

    def of(self, value: Value) -> Value:
        """A value behind conversions."""
        return self.search.behind(value)

    def opened(self, value: Value, op: type[Op]) -> Part | None:
        """The operand of an op, of whose result a value may be a part."""
        found: Part | None = self.part(value)
        for _ in range(MAX_STEPS):
            if found is None:
                return None
            current = self.of(found.value)
            if isinstance(current.node.op, op):
                return found.of(current.node.inputs[0])
            found = self._inside(found.of(current))
        return None

    def gate(self, part: Part, state: Value) -> Gate | None:
        """The terms of a gate; None where there is another one."""
        made = Gate()
        pending = [part]
        for _ in range(_MAX_TERMS):
            if not pending:
                return made
            current = pending.pop()
            current = current.of(self.of(current.value))
            node = current.value.node
            number = self.search.number(current.value)
            if number is not None:
                made.constant += number
            elif isinstance(node.op, Add):
                pending.extend(current.of(v) for v in node.inputs)
            elif (inside := self._inside(current)) is not None:
                pending.append(inside)
            elif current.value is self.entering and current.axis == self.entering.rank - 1:
                if not self._before(made, current.start):
                    return None
            elif isinstance(node.op, DotGeneral):
                if not self._product(made, current, node.op, state):
                    return None
            else:
                bias = self._vector(current)
                if bias is None:
                    return None
                made.biases.append(bias)
        return None

    def _inside(self, part: Part) -> Part | None:
        """The same elements of what is cut or turned."""
        node, op = part.value.node, part.value.node.op
        if isinstance(op, Transpose) and op.permutation == (1, 0):
            return Part(node.inputs[0], 1 - part.axis, part.start)
        offset = _offset(part.value, part.axis)
        return None if offset is None else Part(node.inputs[0], part.axis, part.start + offset)

    def _product(self, made: Gate, part: Part, op: DotGeneral, state: Value) -> bool:
        """Take a product with the input, the state or both side by side."""
        operands = list(zip(part.value.node.inputs, (op.lhs_contracting, op.rhs_contracting),
                            strict=True))  # fmt: skip
        one = part.value.rank == 1
        if operands[0][0].rank == 2 if one else not part.axis:  # the weight stands on the left
            operands.reverse()
        (data, summed), (array, contracted) = operands
        plain = not op.lhs_batch and summed == (data.rank - 1,) and len(contracted) == 1
        ranks = data.rank == part.value.rank and array.rank == 2
        if not plain or not ranks or op.precision != DEFAULT_PRECISION:
            return False
        axis = 1 - contracted[0]
        data = self.of(data)
        if not isinstance(data.node.op, Concatenate) or data.node.op.axis != data.rank - 1:
            weight = self._weight(array, part.start, axis)
            return weight is not None and self._take(made, data, weight, state)
        start = 0
        for value in data.node.inputs:
            size = value.shape[-1]
            if not isinstance(size, int):
                return False
            weight = self._weight(array, part.start, axis, (start, size))
            if weight is None or not self._take(made, self.of(value), weight, state):
                return False
            start += size
        return True

    def _take(self, made: Gate, data: Value, weight: Weight, state: Value) -> bool:
        if data is state and made.kept is None:
            made.kept = weight
            return True
        if data is self.entering and made.entering is None:
            made.entering = weight
            return True
        return False

    def _weight(
        self, value: Value, start: int, axis: int, rows: tuple[int, int] | None = None
    ) -> Weight | None:
        """A constant of the loop, or that one of several joined ones where a gate lies."""
        for _ in range(MAX_STEPS):
            value = self.of(value)
            op, inputs = value.node.op, value.node.inputs
            other = 1 - axis
            offset = _offset(value, axis)
            if offset is not None:
                value, start = inputs[0], start + offset
            elif value.rank == 2 and (offset := _offset(value, other)) is not None:
                size = value.shape[other]
                if not isinstance(size, int):
                    return None
                first, size = rows or (0, size)
                value, rows = inputs[0], (first + offset, size)
            elif isinstance(op, Concatenate) and op.axis == axis:
                if any(part.shape[axis] != self.width for part in inputs) or start % self.width:
                    return None
                value, start = inputs[start // self.width], 0
            elif isinstance(op, Concatenate) and rows is not None:
                found = _piece(inputs, other, rows)
                if found is None:
                    return None
                value, rows = found, None
            elif isinstance(op, Transpose) and op.permutation == (1, 0):
                value, axis = inputs[0], 1 - axis
            else:
                break
        place = self._place.get(value)
        fits = place is not None and place < self.op.num_consts
        return Weight(place, start, axis, rows) if fits and place is not None else None

    def _before(self, made: Gate, start: int) -> bool:
        """Take a product with the input, and biases, that were made before the loop."""
        whole = self.node.inputs[-1]
        last = whole.rank - 1
        pending = [self._outer.view(whole)]
        for _ in range(_MAX_TERMS):
            if not pending:
                return made.entering is not None
            view = pending.pop()
            number = self._outer.number(view.value)
            bias = self._outer.vector(view, last)
            if number is not None:
                made.constant += number
            elif bias is not None:
                place = self._known(bias)
                self.vectors.add(place)
                made.biases.append(Weight(place, start, 0))
            elif not self._entered(made, view, start, pending):
                return False
        return False

    def _entered(self, made: Gate, view: View, start: int, pending: list[View]) -> bool:
        """Go on from one term before the loop: a sum, or the product with the input."""
        for current in self._outer.views(view):
            op, inputs = current.op, current.value.node.inputs
            if isinstance(op, Add):
                pending += [current.operand(0), current.operand(1)]
                return True
            if not isinstance(op, DotGeneral):
                continue
            if op.lhs_batch or op.precision != DEFAULT_PRECISION or made.entering is not None:
                return False
            last = self.entering.rank
            sides = [(inputs[0], op.lhs_contracting), (inputs[1], op.rhs_contracting)]
            places = list(current.axes)
            if inputs[1].rank == 2 and places[-1] == last:
                places.pop()
                sides.reverse()
            elif inputs[0].rank == 2 and places[0] == last:
                places.pop(0)
            else:
                return False
            (weight, (row,)), (data, summed) = sides
            if sorted(places) != list(range(last)) or len(summed) != 1 or data.rank != last + 1:
                return False
            free = [axis for axis in range(data.rank) if axis != summed[0]]
            order = (*(free[places.index(axis)] for axis in range(last)), summed[0])
            source = (self._known(data), order)
            if self.source not in (None, source):
                return False
            self.source = source
            made.entering = Weight(self._known(weight), start, 1 - row)
            return True
        return False

    def _known(self, value: Value) -> int:
        """The place of a value outside the loop."""
        if value not in self.others:
            self.others.append(value)
        return len(self.node.inputs) + self.others.index(value)

    def _vector(self, part: Part) -> Weight | None:
        for view in self.search.views(self.search.view(part.value)):
            if view.value.rank == 1 and view.axes == (part.axis,):
                return self._weight(view.value, part.start, 0)
        return None


def _piece(parts: Sequence[Value], axis: int, rows: tuple[int, int]) -> Value | None:
    """That one of joined values which is the rows; None where they are no whole one."""
    start = 0
    for part in parts:
        size = part.shape[axis]
        if (start, size) == rows:
            return part
        if not isinstance(size, int):
            return None
        start += size
    return None


def _offset(value: Value, axis: int) -> int | None:
    """Where a value begins along an axis of another one that it is cut out of."""
    node, op = value.node, value.node.op
    if isinstance(op, Split) and op.axis == axis:
        sizes = op.sizes[: value.index]
        return sum(int(str(s)) for s in sizes) if all(isinstance(s, int) for s in sizes) else None
    if isinstance(op, Narrow) and op.axis == axis:
        return op.start if isinstance(op.start, int) else None
    if isinstance(op, Slice):
        x, start = node.inputs[0], op.start_indices[axis]
        others = [a for a in range(x.rank) if a != axis]
        whole = all(op.start_indices[a] == 0 and value.shape[a] == x.shape[a] for a in others)
        plain = set(op.strides) == {1} and isinstance(start, int)
        return int(str(start)) if whole and plain else None
    return None


def joined(weights: Sequence[Weight], operands: Sequence[Value], hidden: int) -> Value:
    """Gates along the first axis, of weights [gates, …], […, gates] or vectors."""
    first = weights[0]
    value = operands[first.place]
    whole = value.shape[first.axis] == hidden * len(weights)
    in_order = not first.negative and all(
        w == dataclasses.replace(first, start=hidden * i) for i, w in enumerate(weights)
    )
    if whole and in_order:
        value = _rows(value, first)
    else:
        parts: list[Value] = []
        for weight in weights:
            part = operands[weight.place].narrow(weight.axis, weight.start, hidden)
            part = _rows(-part if weight.negative else part, weight)
            parts.append(part if weight.axis == first.axis else part.transpose(1, 0))
        value = parts[0] if len(parts) == 1 else cast("Value", Concatenate(axis=first.axis)(*parts))
    # Turned last, so that the op's decomposition, which turns it back, leaves nothing to move.
    return value.transpose(1, 0) if first.axis else value


def _rows(value: Value, weight: Weight) -> Value:
    if weight.rows is None:
        return value
    return value.narrow(1 - weight.axis, *weight.rows)


def bias_of(gates: Sequence[Gate], operands: Sequence[Value], like: Value, hidden: int) -> Value:
    """The sums of the gates' vectors and numbers, one behind the other."""
    counts = {len(gate.biases) for gate in gates}
    numbers = {gate.constant for gate in gates}
    if len(counts) == 1 and numbers == {0.0}:
        total = broadcast_to(constant(0.0, like.dtype), (hidden * len(gates),))
        for number in range(counts.pop()):
            one = joined([gate.biases[number] for gate in gates], operands, hidden)
            total = one if number == 0 else total + one
        return total
    parts: list[Value] = []
    for gate in gates:
        total = broadcast_to(constant(gate.constant, like.dtype), (hidden,))
        for weight in gate.biases:
            vector = operands[weight.place].narrow(0, weight.start, hidden)
            total = (-vector if weight.negative else vector) + total
        parts.append(total)
    return parts[0] if len(parts) == 1 else cast("Value", Concatenate(axis=0)(*parts))
