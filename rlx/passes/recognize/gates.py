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
from rlx.passes.recognize.matcher import MAX_STEPS, Search

_MAX_TERMS = 32
"""Most terms of one gate, and steps on the way to them."""


@final
@dataclass(frozen=True)
class Weight:
    """Part of an array outside the loop.

    Attributes:
        place: which operand of the scan it is.
        start: where the part begins along the axis of gates.
        axis: the axis of gates.
        rows: first and number of the rows along the other axis; None for all.
    """

    place: int
    start: int
    axis: int
    rows: tuple[int, int] | None = None


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


@final
@dataclass(frozen=True)
class Part:
    """A gate's width of a value.

    Attributes:
        value: of rank 2.
        axis: the axis of gates.
        start: where the part begins.
    """

    value: Value
    axis: int = 1
    start: int = 0

    def of(self, value: Value) -> Part:
        """The same part of another value."""
        return Part(value, self.axis, self.start)


@final
class Cell:
    """The body of a scan over one array."""

    def __init__(self, search: Search, node: Node, op: Scan, hidden: int) -> None:
        """Look into the body of a loop whose states have a width."""
        self.op = op
        self.node = node
        self.search = Search(op.body, search.strict, search.misses, search.platform)
        self.width = hidden
        self.entering = op.body.inputs[-1]
        self._place = {value: i for i, value in enumerate(op.body.inputs)}

    def of(self, value: Value) -> Value:
        """A value behind conversions."""
        return self.search.behind(value)

    def opened(self, value: Value, op: type[Op]) -> Part | None:
        """The operand of an op, of whose result a value may be a part."""
        found: Part | None = Part(value)
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
        if not part.axis:  # the weight stands on the left
            operands.reverse()
        (data, summed), (array, contracted) = operands
        plain = not op.lhs_batch and summed == (1,) and len(contracted) == 1
        if not plain or data.rank != 2 or array.rank != 2 or op.precision != DEFAULT_PRECISION:
            return False
        weight = self._weight(array, part.start, 1 - contracted[0])
        if weight is None:
            return False
        data = self.of(data)
        if not isinstance(data.node.op, Concatenate) or data.node.op.axis != 1:
            return self._take(made, data, weight, state)
        start = 0
        for value in data.node.inputs:
            size = value.shape[1]
            rows = dataclasses.replace(weight, rows=(start, int(str(size))))
            if not isinstance(size, int) or not self._take(made, self.of(value), rows, state):
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

    def _weight(self, value: Value, start: int, axis: int) -> Weight | None:
        """A constant of the loop, or that one of several joined ones where a gate lies."""
        for _ in range(MAX_STEPS):
            value = self.of(value)
            op = value.node.op
            offset = _offset(value, axis)
            if offset is not None:
                value, start = value.node.inputs[0], start + offset
            elif isinstance(op, Concatenate) and op.axis == axis:
                parts = value.node.inputs
                if any(part.shape[axis] != self.width for part in parts) or start % self.width:
                    return None
                value, start = parts[start // self.width], 0
            else:
                break
        place = self._place.get(value)
        fits = place is not None and place < self.op.num_consts
        return Weight(place, start, axis) if fits and place is not None else None

    def _vector(self, part: Part) -> Weight | None:
        for view in self.search.views(self.search.view(part.value)):
            if view.value.rank == 1 and view.axes == (part.axis,):
                return self._weight(view.value, part.start, 0)
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
    in_order = all(w == dataclasses.replace(first, start=hidden * i) for i, w in enumerate(weights))
    if whole and in_order:
        value = _rows(value, first)
    else:
        parts: list[Value] = []
        for weight in weights:
            part = operands[weight.place].narrow(weight.axis, weight.start, hidden)
            part = _rows(part, weight)
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
            total = operands[weight.place].narrow(0, weight.start, hidden) + total
        parts.append(total)
    return parts[0] if len(parts) == 1 else cast("Value", Concatenate(axis=0)(*parts))
