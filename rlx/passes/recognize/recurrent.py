"""Recurrent networks in a scan: the long short-term memory cell and the plain one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast, final

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add, Mul
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral
from rlx.ops.dot.general import DEFAULT_PRECISION
from rlx.ops.sequence import Lstm, Rnn
from rlx.ops.shape import Concatenate, Slice, Split
from rlx.ops.transcendental import Logistic, Tanh
from rlx.passes.recognize.matcher import Match, Matcher, Search

_MAX_TERMS = 16
"""Most terms of one gate."""


@final
@dataclass(frozen=True)
class Weight:
    """Part of an array outside the loop.

    Attributes:
        place: which operand of the scan it is.
        start: where the part begins along the axis of gates.
        axis: the axis of gates.
    """

    place: int
    start: int
    axis: int


@final
@dataclass
class Gate:
    """What is summed for one gate.

    Attributes:
        entering: the weight of the input.
        kept: the weight of the state.
        biases: vectors.
    """

    entering: Weight | None = None
    kept: Weight | None = None
    biases: list[Weight] = field(default_factory=list[Weight])


@final
class _Cell:
    """The body of a scan over one array."""

    def __init__(self, search: Search, node: Node, op: Scan, hidden: int) -> None:
        self.op = op
        self.node = node
        self.search = Search(op.body, search.strict, search.misses, search.platform)
        self.width = hidden
        self.place = {value: i for i, value in enumerate(op.body.inputs)}

    def of(self, value: Value) -> Value:
        """A value behind conversions."""
        return self.search.behind(value)

    def gate(self, value: Value, state: Value) -> Gate | None:
        """The terms of a gate; None where there is another one."""
        made = Gate()
        pending: list[tuple[Value, int | None]] = [(value, None)]
        for _ in range(_MAX_TERMS):
            if not pending:
                whole = made.entering is not None and made.kept is not None
                return made if whole else None
            current, start = pending.pop()
            current = self.of(current)
            op, inputs = current.node.op, current.node.inputs
            if isinstance(op, Add):
                pending.extend((v, start) for v in inputs)
                continue
            cut = self._cut(current) if start is None else None
            if cut is not None:
                pending.append(cut)
            elif isinstance(op, DotGeneral):
                if not self._product(made, current, start or 0, state):
                    return None
            else:
                bias = self._vector(current, start or 0)
                if bias is None:
                    return None
                made.biases.append(bias)
        return None

    def _cut(self, value: Value) -> tuple[Value, int] | None:
        """What a gate is a part of along the last axis, and where it begins."""
        node, op = value.node, value.node.op
        if isinstance(op, Split):
            same = all(size == self.width for size in op.sizes)
            if op.axis == value.rank - 1 and same:
                return node.inputs[0], value.index * self.width
        if isinstance(op, Slice):
            x, lead = node.inputs[0], value.rank - 1
            whole = all(s == 0 for s in op.start_indices[:lead]) and set(op.strides) == {1}
            start = op.start_indices[-1]
            if whole and value.shape[:lead] == x.shape[:lead] and isinstance(start, int):
                return x, start
        return None

    def _product(self, made: Gate, value: Value, start: int, state: Value) -> bool:
        """Take a product with the input or the state."""
        node, op = value.node, value.node.op
        assert isinstance(op, DotGeneral)
        lhs, rhs = node.inputs
        plain = not op.lhs_batch and op.lhs_contracting == (1,) and len(op.rhs_contracting) == 1
        if not plain or rhs.rank != 2 or lhs.rank != 2 or op.precision != DEFAULT_PRECISION:
            return False
        weight = self._weight(rhs, start, 1 - op.rhs_contracting[0])
        if weight is None:
            return False
        if self.of(lhs) is state and made.kept is None:
            made.kept = weight
            return True
        if self.of(lhs) is self.op.body.inputs[-1] and made.entering is None:
            made.entering = weight
            return True
        return False

    def _weight(self, value: Value, start: int, axis: int) -> Weight | None:
        """A constant of the loop, or that one of several joined ones where a gate lies."""
        value = self.of(value)
        op = value.node.op
        if isinstance(op, Concatenate) and op.axis == axis:
            parts = value.node.inputs
            if any(part.shape[axis] != self.width for part in parts) or start % self.width:
                return None
            value, start = self.of(parts[start // self.width]), 0
        place = self.place.get(value)
        fits = place is not None and place < self.op.num_consts
        return Weight(place, start, axis) if fits and place is not None else None

    def _vector(self, value: Value, start: int) -> Weight | None:
        for view in self.search.views(self.search.view(value)):
            if view.value.rank == 1 and view.axes == (1,):
                return self._weight(view.value, start, 0)
        return None

    def opened(self, value: Value, op: type[Op]) -> Value | None:
        """The operand of an op."""
        value = self.of(value)
        return value.node.inputs[0] if isinstance(value.node.op, op) else None


def recurrent(search: Search, node: Node) -> Match | None:
    """One layer over a sequence, in one direction."""
    op = node.op
    if not isinstance(op, Scan) or op.reverse or op.num_carry not in (1, 2) or search.strict:
        return None
    body = op.body
    one_array = len(body.inputs) == op.num_consts + op.num_carry + 1
    if not one_array or len(body.outputs) != op.num_carry + 1 or body.effects:
        return None
    dtypes = {v.dtype for v in (*body.inputs, *body.outputs)}
    hidden = body.outputs[0].shape[-1] if body.outputs[0].rank == 2 else None
    if len(dtypes) != 1 or not isinstance(hidden, int) or body.inputs[-1].rank != 2:
        return None
    cell = _Cell(search, node, op, hidden)
    if op.num_carry == 1:
        return _plain(search, cell)
    for place in (0, 1):
        gates = _lstm_gates(cell, place)
        if gates is not None:
            return _match(search, cell, gates, "lstm", (place, 1 - place))
    return None


def _plain(search: Search, cell: _Cell) -> Match | None:
    """Match h = tanh(x · W + h · U + b)."""
    body = cell.op.body
    total = cell.opened(body.outputs[0], Tanh)
    if total is None or cell.of(body.outputs[1]) is not cell.of(body.outputs[0]):
        return None
    gate = cell.gate(total, body.inputs[cell.op.num_consts])
    return None if gate is None else _match(search, cell, [gate], "rnn", (0,))


def _lstm_gates(cell: _Cell, place: int) -> list[Gate] | None:
    """Gates i, f, g and o, where the hidden state is carried at a place."""
    body = cell.op.body
    h, c = body.outputs[place], cell.of(body.outputs[1 - place])
    states = body.inputs[cell.op.num_consts : cell.op.num_consts + 2]
    if cell.of(body.outputs[2]) is not cell.of(h):
        return None
    shown = _pair(cell, h, Logistic, Tanh)
    if shown is None or cell.of(shown[1]) is not c or not isinstance(c.node.op, Add):
        return None
    for index in (0, 1):
        entering = _pair(cell, c.node.inputs[index], Logistic, Tanh)
        kept = cell.of(c.node.inputs[1 - index])
        if entering is None or not isinstance(kept.node.op, Mul):
            continue
        for side in (0, 1):
            if cell.of(kept.node.inputs[side]) is not states[1 - place]:
                continue
            forget = cell.opened(kept.node.inputs[1 - side], Logistic)
            if forget is None:
                return None
            parts = (entering[0], forget, entering[1], shown[0])
            gates = [cell.gate(value, states[place]) for value in parts]
            found = [gate for gate in gates if gate is not None]
            return found if len(found) == 4 else None
    return None


def _pair(
    cell: _Cell, value: Value, first: type[Op], second: type[Op]
) -> tuple[Value, Value] | None:
    """The operands of two ops that are multiplied, in any order."""
    value = cell.of(value)
    if not isinstance(value.node.op, Mul):
        return None
    for index in (0, 1):
        one = cell.opened(value.node.inputs[index], first)
        other = cell.opened(value.node.inputs[1 - index], second)
        if one is not None and other is not None:
            return one, other
    return None


def _match(
    search: Search, cell: _Cell, gates: Sequence[Gate], what: str, order: tuple[int, ...]
) -> Match | None:
    node, op, hidden = cell.node, cell.op, cell.width
    if search.platform == "cpu":
        # Measured by ``bench_models``, LSTM: 0.43 ms as it stands, 0.70 ms as the composite.
        search.miss(node, what, "XLA's CPU runs the loop faster as it stands")
        return None
    counts = {len(gate.biases) for gate in gates}
    if len(counts) != 1:
        return None
    entering = [gate.entering for gate in gates if gate.entering is not None]
    kept = [gate.kept for gate in gates if gate.kept is not None]
    starts = node.inputs[op.num_consts : op.num_consts + op.num_carry]
    carry = any(search.number(v) != 0 for v in starts)
    carry = carry or any(search.uses(v) for v in node.results[: op.num_carry])
    kind = Lstm if what == "lstm" else Rnn
    made_op = kind(hidden_size=hidden, carry=carry)

    def build(*operands: Value) -> tuple[Value, ...]:
        x = operands[-1].transpose(1, 0, 2)
        batch, dtype = x.shape[0], x.dtype
        w_ih = _joined(entering, operands, hidden)
        w_hh = _joined(kept, operands, hidden)
        bias = broadcast_to(constant(0.0, dtype), (w_hh.shape[0],))
        for number in range(counts.copy().pop()):
            one = _joined([gate.biases[number] for gate in gates], operands, hidden)
            bias = one if number == 0 else bias + one
        states = operands[op.num_consts : op.num_consts + op.num_carry]
        first = [states[place].reshape(1, batch, hidden) for place in order] if carry else []
        rows = w_hh.shape[0]
        made = made_op(
            x,
            w_ih.reshape(w_ih.shape[0] * w_ih.shape[1]),
            w_hh.reshape(1, rows, hidden),
            bias.reshape(1, rows),
            *first,
        )
        if not carry:  # nothing reads the last states; the first ones stand in for them
            return (*states, cast("Value", made).transpose(1, 0, 2))
        y, *last = cast("tuple[Value, ...]", made)
        flat = [v.reshape(batch, hidden) for v in last]
        return (*(flat[order.index(i)] for i in range(len(order))), y.transpose(1, 0, 2))

    return Match(what, node.inputs, build)


def _joined(weights: Sequence[Weight], operands: Sequence[Value], hidden: int) -> Value:
    """Gates along the first axis, of weights [gates, …], […, gates] or vectors."""
    first = weights[0]
    value = operands[first.place]
    whole = value.shape[first.axis] == hidden * len(weights)
    in_order = all(
        (w.place, w.start, w.axis) == (first.place, hidden * i, first.axis)
        for i, w in enumerate(weights)
    )
    if not (whole and in_order):
        parts: list[Value] = []
        for weight in weights:
            part = operands[weight.place].narrow(weight.axis, weight.start, hidden)
            parts.append(part if weight.axis == first.axis else part.transpose(1, 0))
        value = parts[0] if len(parts) == 1 else cast("Value", Concatenate(axis=first.axis)(*parts))
    # Turned last, so that the op's decomposition, which turns it back, leaves nothing to move.
    return value.transpose(1, 0) if first.axis else value


TABLE: dict[type[Op], tuple[Matcher, ...]] = {Scan: (recurrent,)}

NEEDS: tuple[type[Op], ...] = (Scan,)
"""Ops without any of which there is nothing to find."""
