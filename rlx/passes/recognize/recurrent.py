"""Recurrent networks in a scan: LSTM and GRU cells, and the plain one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.activation import Relu
from rlx.ops.arithmetic import Add, Max, Mul, Sub
from rlx.ops.control_flow import Scan
from rlx.ops.convert import Convert
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import DynamicSlice, GatherGeneral
from rlx.ops.sequence import Gru, Lstm, Rnn
from rlx.ops.shape import Concatenate, Narrow, Reshape, Reverse, Slice, Split, Transpose
from rlx.ops.transcendental import Logistic, Rsqrt, Sqrt, Tanh
from rlx.passes.recognize.gates import Cell, Gate, Part, Weight, bias_of, joined
from rlx.passes.recognize.masked_cells import Masked, mixed_by_factors, unmasked
from rlx.passes.recognize.matcher import MAX_STEPS, Match, Matcher, Search
from rlx.passes.recognize.replace import made_node

Biases: TypeAlias = "Callable[[Sequence[Value], Value], tuple[Value, ...]]"


_LAYOUTS = (Concatenate, Convert, Narrow, Reshape, Slice, Split, Transpose)
"""What may lie between a state or a weight and their product."""

_MOST_WEIGHTS: dict[type[Op], tuple[int, int]] = {
    Lstm: (36_864, 8_192),
    Gru: (49_152, 27_648),
    Rnn: (36_864, 8_192),
}
"""Most elements of a state's weights with which the kernel beats XLA's loop: for one sequence, and
for several. Measured on two cores, 64 steps, flax cells: below them 0.2 to 0.95 of the time of
``jax.jit``; above, XLA shares the products of a step out among threads, and takes as long or less.
"""


def recurrent(search: Search, node: Node) -> Match | None:
    """One layer over a sequence, in one direction."""
    whole = node.op
    if not isinstance(whole, Scan) or search.strict:
        return None
    masked = unmasked(search, node, whole)
    stays = masked if isinstance(masked, Masked) else None
    op = whole if stays is None else cast("Scan", stays.node.op)
    if not _carries_a_state(op):
        return None
    if len(op.body.inputs) == op.num_consts + op.num_carry and not _reads_rows(op):
        return None
    why = masked if isinstance(masked, str) else _unfit(op)
    if why:
        search.miss(node, "recurrent cell", why)
        return None
    hidden = int(str(op.body.outputs[0].shape[-1]))
    known = len(search.misses)
    made = _network(search, lambda: Cell(search, node, hidden, stays))
    if made is None and len(search.misses) == known:
        search.miss(node, "recurrent cell", _difference(op))
    return made


def _difference(op: Scan) -> str:
    """How a cell that is none of the networks differs from them."""
    body = op.body
    if any(isinstance(node.op, Rsqrt | Sqrt) for node in body.nodes()):
        return "its gates are normalised in each step, and those of the op are sums"
    first = op.num_consts
    pairs = zip(body.inputs[first : first + op.num_carry], body.outputs, strict=False)
    states = {v for pair in pairs for v in pair} if op.num_carry == 2 else set[Value]()
    for node in body.nodes():
        pending = list(node.inputs) if isinstance(node.op, Logistic) else []
        for _ in range(MAX_STEPS):
            if not pending:
                break
            value = pending.pop()
            if isinstance(value.node.op, Add):
                pending += value.node.inputs
            elif isinstance(value.node.op, Mul) and not states.isdisjoint(value.node.inputs):
                return "a gate reads a cell's state by elements (a peephole), which the op does not"
    return "its gates, or what they are made of, are not those of an LSTM, a GRU or a plain cell"


def _network(search: Search, start: Callable[[], Cell]) -> Match | None:
    """The network that a cell belongs to; each is looked for with a cell of its own."""
    cell = start()
    if cell.op.num_carry == 1:
        return _plain(search, cell) or _gru(search, start())
    for place in (0, 1):
        cell = start()
        gates = _lstm_gates(cell, place)
        if gates is not None:
            order = (place, 1 - place)
            ends = (cell.op.body.outputs[place], cell.op.body.outputs[1 - place])
            shown = _shown(cell, *ends) or []
            op = Lstm(hidden_size=cell.width, cells=1 in shown)
            return _match(search, cell, gates, op, order, _one_bias(gates), shown)
    return None


def _carries_a_state(op: Scan) -> bool:
    """Whether each step multiplies something that is carried by a constant, along its last axis."""
    consts, carry = op.num_consts, op.num_carry
    places = {value: place for place, value in enumerate(op.body.inputs)}

    def place_of(value: Value) -> int:
        while isinstance(value.node.op, _LAYOUTS):
            value = value.node.inputs[-1]
        return places.get(value, -1)

    for dot in op.body.nodes():
        if not isinstance(dot.op, DotGeneral) or dot.op.lhs_batch:
            continue
        sides = ((dot.op.lhs_contracting, 0), (dot.op.rhs_contracting, 1))
        for summed, index in sides:
            state, weight = place_of(dot.inputs[index]), place_of(dot.inputs[1 - index])
            carried = consts <= state < consts + carry and 0 <= weight < consts
            if carried and summed == (dot.inputs[index].rank - 1,):
                return any(isinstance(n.op, Tanh | Logistic | Max | Relu) for n in op.body.nodes())
    return False


def _reads_rows(op: Scan) -> bool:
    """Whether each step reads a part of a constant where a number of its own says."""
    consts = op.body.inputs[: op.num_consts]
    return any(isinstance(node.op, DynamicSlice | GatherGeneral) and node.inputs[0] in consts
               for node in op.body.nodes())  # fmt: skip


def _unfit(op: Scan) -> str:
    """Why a loop over a state is none of the networks; empty where it may be one."""
    body, states = op.body, op.body.outputs[: op.num_carry]
    shown = len({*body.outputs[op.num_carry :]})
    read = len(body.inputs) - op.num_consts - op.num_carry
    if op.num_carry > 2 or body.effects:
        return f"its loop carries {op.num_carry} values, and one cell carries one or two"
    if read == 2 and mixed_by_factors(op):
        return (
            "its states are mixed by a mask's factors, where the NaN and Inf of a step count "
            "though the state stays; write jnp.where(mask, new, state)"
        )
    if not read:
        return "its steps read no rows of an array in an order that a scan has"
    if read != 1:
        return f"each step reads {read} arrays, and a layer over a sequence reads one"
    if shown > op.num_carry:
        states_of = "its states" if op.num_carry > 1 else "its state"
        return f"each step returns {shown} arrays, and a cell returns {states_of}"
    if len({v.type for v in states}) > 1 or states[0].rank not in (1, 2):
        return f"its states are {', '.join(str(v.type) for v in states)}, and not rows of one width"
    dtypes = {v.dtype for v in (*body.inputs, *body.outputs)}
    if len(dtypes) > 1:
        return f"it computes in several types: {', '.join(sorted(map(str, dtypes)))}"
    if not isinstance(states[0].shape[-1], int) or body.inputs[-1].rank != states[0].rank:
        return f"each step reads {body.inputs[-1].type} with a state of {states[0].type}"
    return ""


def _plain(search: Search, cell: Cell) -> Match | None:
    """Match h = tanh(x · W + h · U + b), or the same with max(·, 0)."""
    body = cell.op.body
    if not _shows(cell, body.outputs[0]):
        return None
    total, relu = cell.opened(body.outputs[0], Tanh), False
    last = cell.of(body.outputs[0])
    if isinstance(last.node.op, Relu):
        total, relu = cell.part(last.node.inputs[0]), True
    if isinstance(last.node.op, Max):
        for index in (0, 1):
            if cell.search.number(last.node.inputs[index]) == 0:
                total, relu = cell.part(last.node.inputs[1 - index]), True
    if total is None:
        return None
    gate = cell.gate(total, body.inputs[cell.op.num_consts])
    if not _is_whole(gate):
        return None
    gates = cast("list[Gate]", [gate])
    op = Rnn(hidden_size=cell.width, relu=relu)
    return _match(search, cell, gates, op, (0,), _one_bias(gates))


def _shows(cell: Cell, state: Value) -> bool:
    """Whether a step returns its state, or nothing besides what it carries."""
    return _shown(cell, state) is not None


def _shown(cell: Cell, *states: Value) -> list[int] | None:
    """Which of the states each array is that a step returns; None where one is none of them."""
    ends = [cell.of(state) for state in states]
    shown = [cell.of(value) for value in cell.op.body.outputs[cell.op.num_carry :]]
    return [ends.index(value) for value in shown] if {*shown} <= {*ends} else None


def _is_whole(gate: Gate | None) -> bool:
    """Whether a gate reads input and state."""
    return gate is not None and gate.entering is not None and gate.kept is not None


def _one_bias(gates: Sequence[Gate]) -> Biases:
    """All biases as one."""

    def build(operands: Sequence[Value], like: Value) -> tuple[Value, ...]:
        return (bias_of(gates, operands, like, int(str(like.shape[0])) // len(gates)),)

    return build


def _lstm_gates(cell: Cell, place: int) -> list[Gate] | None:
    """Gates i, f, g and o, where the hidden state is carried at a place."""
    body = cell.op.body
    h, c = body.outputs[place], cell.of(body.outputs[1 - place])
    states = body.inputs[cell.op.num_consts : cell.op.num_consts + 2]
    if _shown(cell, h, c) is None:
        return None
    shown = _pair(cell, h, Logistic, Tanh)
    if shown is None or cell.of(shown[1].value) is not c or not isinstance(c.node.op, Add):
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
            gates = [cell.gate(part, states[place]) for part in parts]
            whole = all(_is_whole(gate) for gate in gates)
            return cast("list[Gate]", gates) if whole else None
    return None


def _pair(cell: Cell, value: Value, first: type[Op], second: type[Op]) -> tuple[Part, Part] | None:
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


def _gru(search: Search, cell: Cell) -> Match | None:
    """Match (1 − z) · n + z · h, or n + z · (h − n).

    There n = tanh(x · W + b + r · (h · U + c)), or tanh(x · W + (r · h) · U + b).
    """
    body = cell.op.body
    state = body.inputs[cell.op.num_consts]
    last = cell.of(body.outputs[0])
    if not _shows(cell, last) or not isinstance(last.node.op, Add):
        return None
    mixed = _mixed(cell, last, state)
    if mixed is None:
        return None
    z, n, swapped = mixed
    update = cell.gate(z, state)
    found = _reset_after(cell, n, state) or _reset_first(cell, n, state)
    if update is None or found is None or not _is_whole(update):
        return None
    if swapped:
        if search.number(cell.node.inputs[cell.op.num_consts]) is None:
            why = "its update gate z takes the new state, and 1 − z the last one, which may be "
            search.miss(cell.node, "gru", why + "Inf: its first state is not a known number")
            return None
        # 1 − σ(t) is σ(−t); a state that starts finite stays finite, so that no 0 meets Inf.
        update = update.negative()
    reset, entering, kept, after = found
    return _gru_match(search, cell, [reset, update], entering, kept, after)


def _reset_after(cell: Cell, n: Part, state: Value) -> tuple[Gate, Gate, Gate, bool] | None:
    """The gates r and n, of input and state, where r multiplies the product with the state."""
    total = cell.of(n.value)
    for index in (0, 1) if isinstance(total.node.op, Add) else ():
        found = _reset(cell, n.of(total.node.inputs[index]))
        if found is None:
            continue
        entering = cell.gate(n.of(total.node.inputs[1 - index]), state)
        kept = cell.gate(found[1], state)
        reset = cell.gate(found[0], state)
        if entering is None or kept is None or reset is None or not _is_whole(reset):
            continue
        if entering.kept is None and kept.entering is None and entering.entering and kept.kept:
            return reset, entering, kept, True
    return None


def _reset_first(cell: Cell, n: Part, state: Value) -> tuple[Gate, Gate, Gate, bool] | None:
    """The same where r multiplies the state, and a product takes that."""
    scaled = _scaled_state(cell, n, state)
    if scaled is None:
        return None
    value, r = scaled
    reset, whole = cell.gate(r, state), cell.gate(n, value)
    if reset is None or whole is None or not _is_whole(reset) or not _is_whole(whole):
        return None
    return reset, whole, Gate(kept=whole.kept), False


def _mixed(cell: Cell, last: Value, state: Value) -> tuple[Part, Part, bool] | None:
    """The sums under z and n of a state mixed of n and the last state; whether z takes n."""
    for index in (0, 1):
        first, second = (cell.of(last.node.inputs[i]) for i in (index, 1 - index))
        if not isinstance(second.node.op, Mul):
            continue
        for side in (0, 1):
            curve = cell.of(second.node.inputs[side])
            other = cell.of(second.node.inputs[1 - side])
            z = cell.opened(curve, Logistic)
            if z is None:
                continue
            n: Part | None = None
            swapped = False
            if other is state and isinstance(first.node.op, Mul):
                rest = _beside_complement(cell, first, curve)
                n = None if rest is None else cell.opened(rest, Tanh)
            elif isinstance(other.node.op, Sub) and cell.of(other.node.inputs[0]) is state:
                n = cell.opened(first, Tanh) if cell.of(other.node.inputs[1]) is first else None
            elif isinstance(first.node.op, Mul):
                swapped = _beside_complement(cell, first, curve) is state
                n = cell.opened(other, Tanh) if swapped else None
            if n is not None:
                return z, n, swapped
    return None


def _beside_complement(cell: Cell, product: Value, curve: Value) -> Value | None:
    """What a product multiplies by 1 − z."""
    for index in (0, 1):
        rest = cell.of(product.node.inputs[index])
        one = isinstance(rest.node.op, Sub) and cell.search.number(rest.node.inputs[0]) == 1
        if one and cell.of(rest.node.inputs[1]) is curve:
            return cell.of(product.node.inputs[1 - index])
    return None


def _reset(cell: Cell, part: Part) -> tuple[Part, Part] | None:
    """The sum under r, and what r multiplies."""
    product = cell.of(part.value)
    if not isinstance(product.node.op, Mul):
        return None
    for index in (0, 1):
        r = cell.opened(product.node.inputs[index], Logistic)
        if r is not None:
            return r, part.of(product.node.inputs[1 - index])
    return None


def _scaled_state(cell: Cell, n: Part, state: Value) -> tuple[Value, Part] | None:
    """What a product in the sum of n reads that is a gate times the state, and the sum under it."""
    pending = [n.value]
    for _ in range(MAX_STEPS):
        if not pending:
            return None
        value = cell.of(pending.pop())
        op, inputs = value.node.op, value.node.inputs
        if isinstance(op, Add | Slice | Narrow | Split | Concatenate):
            pending += inputs
        elif isinstance(op, DotGeneral):
            for operand in map(cell.of, inputs):
                joins = isinstance(operand.node.op, Concatenate)
                for part in map(cell.of, operand.node.inputs if joins else (operand,)):
                    found = _reset(cell, cell.part(part))
                    if found is not None and cell.of(found[1].value) is state:
                        return part, found[0]
    return None


def _gru_match(
    search: Search, cell: Cell, gates: list[Gate], entering: Gate, kept: Gate, after: bool
) -> Match | None:
    """Gates r, z and n, the last with a bias before and one under the reset gate."""
    whole = Gate(entering.entering, kept.kept)
    before = [*gates, entering]
    nothing = [Gate(), Gate(), kept]

    def biases(operands: Sequence[Value], like: Value) -> tuple[Value, ...]:
        hidden = cell.width
        return tuple(bias_of(part, operands, like, hidden) for part in (before, nothing))

    op = Gru(hidden_size=cell.width, reset_after=after)
    return _match(search, cell, [*gates, whole], op, (0,), biases)


def _match(
    search: Search,
    cell: Cell,
    gates: Sequence[Gate],
    kind: Lstm | Gru | Rnn,
    order: tuple[int, ...],
    biases: Biases,
    shown: Sequence[int] | None = None,
) -> Match | None:
    node, op, hidden, masked = cell.node, cell.op, cell.width, cell.masked
    entering = [cast("Weight", gate.entering) for gate in gates]
    kept = [cast("Weight", gate.kept) for gate in gates]
    starts = node.inputs[op.num_consts : op.num_consts + op.num_carry]
    places = [0] * (len(op.body.outputs) - op.num_carry) if shown is None else shown
    along = 1 + max(places, default=0)
    carry = masked is not None or any(search.number(v) != 0 for v in starts)
    carry = carry or any(search.uses(v) for v in cell.loop.results[: op.num_carry])
    made_op = kind.replace(carry=carry)
    source = cell.source
    if (source is not None) and any(w.place < len(node.inputs) for w in entering):
        return None
    flat = cell.vectors

    def build(*operands: Value) -> tuple[Value, ...]:
        read = [v.reshape(-1) if i in flat else v for i, v in enumerate(operands)]
        states = operands[op.num_consts : op.num_consts + op.num_carry]
        one = states[0].rank == 1
        batch = 1 if one else states[0].shape[0]
        goes = None if masked is None else masked.goes(operands[-1], batch)
        x = operands[len(node.inputs) - 1] if source is None else operands[source[0]]
        if source is not None:
            x = x.transpose(*source[1])
        x = _forwards(x, op)
        x = x.reshape(1, *x.shape) if one else x.transpose(1, 0, 2)
        w_ih = joined(entering, read, hidden)
        w_hh = joined(kept, read, hidden)
        rows = w_hh.shape[0]
        vectors = [v.reshape(1, rows) for v in biases(read, w_hh)]
        first = [states[place].reshape(1, batch, hidden) for place in order] if carry else []
        made = made_op(
            x,
            w_ih.reshape(w_ih.shape[0] * w_ih.shape[1]),
            w_hh.reshape(1, rows, hidden),
            *vectors,
            *first,
            *([] if goes is None else [_forwards(goes, op).transpose(1, 0)]),
        )
        y = cast("tuple[Value, ...]", made if isinstance(made, tuple) else (made,))
        last = y[along:]
        results: list[Value] = []
        for number, place in enumerate(places):
            rows_first = _forwards(y[place].transpose(1, 0, 2), op)
            if masked is not None and goes is not None:
                rows_first = masked.shown(rows_first, goes, number)
            results.append(rows_first.reshape(rows_first.shape[0], hidden) if one else rows_first)
        if not carry:  # nothing reads the last states; the first ones stand in for them
            return (*states, *results)
        ended = [v.reshape(*states[0].shape) for v in last]
        return (*(ended[order.index(i)] for i in range(len(order))), *results)

    if search.platform == "cpu" and not _gains(search, cell, build):
        # Measured by ``bench_models``, LSTM: 0.43 ms as it stands, 0.70 ms as the composite.
        why = "no kernel takes it, or XLA's CPU runs the loop as fast as it stands"
        search.miss(node, kind.op_name, why)
        return None
    return Match(kind.op_name, cell.operands, build)


def _forwards(rows: Value, op: Scan) -> Value:
    """Rows in the order of the steps that take them, and the other way round."""
    return cast("Value", Reverse(axes=(0,))(rows)) if op.reverse else rows


def _gains(search: Search, cell: Cell, build: Callable[..., tuple[Value, ...]]) -> bool:
    """Whether a kernel of the device carries out the composite, and sooner than XLA the loop."""
    if search.has_kernel is None:
        return False
    node = made_node(build, cell.operands, Lstm, Gru, Rnn)
    if node is None:
        return False
    batch, weights = node.inputs[0].shape[0], node.inputs[2].shape[1:]
    known = [n for n in weights if isinstance(n, int)]
    most = _MOST_WEIGHTS[type(node.op)][0 if batch == 1 else 1]
    return math.prod(known) <= most and search.has_kernel(node)


TABLE: dict[type[Op], tuple[Matcher, ...]] = {Scan: (recurrent,)}

NEEDS: tuple[type[Op], ...] = (Scan,)
"""Ops without any of which there is nothing to find."""
