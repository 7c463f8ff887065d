"""Cells whose states stay where a mask is false, as sequences of several lengths have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast, final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add, Mul
from rlx.ops.bitwise import Not
from rlx.ops.compare import Select
from rlx.ops.control_flow import Scan
from rlx.ops.convert import Copy
from rlx.ops.shape import BroadcastInDim, Expand, Reshape, Transpose
from rlx.passes.recognize.matcher import MAX_STEPS, Search
from rlx.types import Dim

Place: TypeAlias = "tuple[int, bool, bool]"
"""Which operand of a scan a mask is, whether a state stays where it is true, and whether each
sequence has one of its own."""

_LAYOUTS = (BroadcastInDim, Copy, Expand, Reshape, Transpose)


@final
@dataclass(frozen=True)
class Masked:
    """A loop without its mask.

    Attributes:
        node: the scan in which each sequence goes on in all steps.
        mask: what decides, outside of the loop, with the steps along its first axis.
        inverted: whether a state stays where it is true.
        apart: whether each sequence has one of its own.
        zeros: for each stacked result whether it is 0, and not the state, where that stays.
    """

    node: Node
    mask: Value
    inverted: bool
    apart: bool
    zeros: tuple[bool, ...]

    def goes(self, mask: Value, batch: Dim) -> Value:
        """Where each sequence goes on: bool[S, B].

        Args:
            mask: the mask as it is by now.
            batch: number of sequences.
        """
        shape = (mask.shape[0], batch)
        wide = mask.reshape(*shape) if self.apart else mask.reshape(shape[0])
        if not self.apart:
            wide = cast("Value", BroadcastInDim(shape=shape, broadcast_dimensions=(0,))(wide))
        return cast("Value", Not()(wide)) if self.inverted else wide

    def shown(self, y: Value, goes: Value, number: int) -> Value:
        """A stacked result, of the stacked states.

        Args:
            y: the states, [S, B, H].
            goes: where each sequence goes on, [S, B].
            number: which of the results.
        """
        if not self.zeros[number]:
            return y
        pred = BroadcastInDim(shape=y.shape, broadcast_dimensions=(0, 1))(goes)
        return cast("Value", Select()(pred, y, broadcast_to(constant(0.0, y.dtype), y.shape)))


def plain_mask(value: Value) -> Value:
    """What is behind the layouts of a mask."""
    for _ in range(MAX_STEPS):
        if not isinstance(value.node.op, _LAYOUTS):
            break
        value = value.node.inputs[0]
    return value


def unmasked(search: Search, node: Node, op: Scan) -> Masked | str | None:
    """A loop whose states stay by a mask, without it.

    Args:
        search: the search in the graph of the loop.
        node: the loop.
        op: its op.

    Returns:
        None for a loop without a mask, and why it is none of a network's in words.
    """
    body, first, count = op.body, op.num_consts, op.num_carry
    if not any(isinstance(v.node.op, Select) for v in body.outputs[:count]) or body.effects:
        return None
    inner = Search(body, search.strict, search.misses, search.platform)
    carried = body.inputs[first : first + count]
    found: set[Place] = set()
    states: list[Value] = []
    for before, after in zip(carried, body.outputs, strict=False):
        made = _stays(inner, op, before, after)
        if isinstance(made, str):
            return made
        place, new = made
        found.add(place)
        states.append(new)
    if len(found) != 1:
        return "its states stay by different masks"
    ((place, inverted, apart),) = found
    zeros: list[bool] = []
    shown: list[Value] = []
    for value in body.outputs[count:]:
        kind = _shown(inner, op, value, (place, inverted, apart), states)
        if kind is None:
            return "a step that leaves its state returns another value than that state, or zeros"
        new, zero = kind
        shown.append(new)
        zeros.append(zero)
    inputs = [v for i, v in enumerate(body.inputs) if i != place]
    used = Graph(body.inputs, (), (*states, *shown)).nodes()
    if any(body.inputs[place] in inside.inputs for inside in used):
        return "its mask decides more than which states stay"
    plain = Graph(inputs, (), (*states, *shown), name=body.name)
    operands = [v for i, v in enumerate(node.inputs) if i != place]
    made = make_node(op.replace(body=plain), operands, node.location)
    return Masked(made, node.inputs[place], inverted, apart, tuple(zeros))


def mixed_by_factors(op: Scan) -> bool:
    """Whether a state is a · new + b · state with factors that no state is behind."""
    first = op.num_consts
    carried = op.body.inputs[first : first + op.num_carry]
    behind = set(carried)
    for node in op.body.nodes():
        if not behind.isdisjoint(node.inputs):
            behind.update(node.results)

    def factor_of(value: Value, state: Value) -> bool:
        inputs = value.node.inputs
        return isinstance(value.node.op, Mul) and state in inputs and not behind.issuperset(inputs)

    for before, after in zip(carried, op.body.outputs, strict=False):
        if isinstance(after.node.op, Add) and all(
            isinstance(v.node.op, Mul) for v in after.node.inputs
        ):
            one, other = after.node.inputs
            if factor_of(one, before) or factor_of(other, before):
                return True
    return False


def _stays(inner: Search, op: Scan, before: Value, after: Value) -> tuple[Place, Value] | str:
    """By what mask a state stays, and the new state; in words why it is none of a network's."""
    if not isinstance(after.node.op, Select):
        return "some of its states stay by a mask, and others change in all steps"
    pred, on_true, on_false = after.node.inputs
    new, inverted = on_true, False
    if inner.behind(on_false) is not before:
        new, inverted = on_false, True
        if inner.behind(on_true) is not before:
            return "a mask chooses between two values neither of which is the last state"
    place = _mask(inner, op, pred, after, inverted=inverted)
    if place is None:
        kind = plain_mask(pred).type
        return f"its states stay by a mask {kind}, which is not one of each sequence and step"
    return place, new


def _mask(inner: Search, op: Scan, pred: Value, state: Value, *, inverted: bool) -> Place | None:
    """The operand that a choice between states of [B, H] or [H] is by; one for each sequence."""
    view = inner.view(pred)
    for _ in range(MAX_STEPS):
        view = inner.innermost(view)
        if not isinstance(view.op, Not):
            break
        view, inverted = view.operand(0), not inverted
    value, inputs = view.value, op.body.inputs
    if value not in inputs or value.dtype is not DType.BOOL:
        return None
    place = inputs.index(value)
    if place < op.num_consts + op.num_carry:
        return None
    pairs = list(zip(view.axes, value.shape, strict=True))
    axes = [axis for axis, size in pairs if size != 1]
    batch = [axis for axis, size in enumerate(state.shape[:-1]) if size != 1]
    return (place, inverted, bool(axes)) if axes in ([], batch) else None


def _shown(
    inner: Search, op: Scan, value: Value, place: Place, states: Sequence[Value]
) -> tuple[Value, bool] | None:
    """What a step returns where its sequence goes on, and whether it is zeros elsewhere."""
    outputs = op.body.outputs[: op.num_carry]
    for new, after in zip(states, outputs, strict=True):
        if inner.behind(value) is inner.behind(after):
            return new, False
    if not isinstance(value.node.op, Select):
        return None
    pred, on_true, on_false = value.node.inputs
    for new, after in zip(states, outputs, strict=True):
        for state, other, inverted in ((on_true, on_false, False), (on_false, on_true, True)):
            same = inner.behind(state) in (inner.behind(new), inner.behind(after))
            number = inner.number(other)
            if not same or number != 0 or math.copysign(1, number) < 0:
                continue
            if _mask(inner, op, pred, after, inverted=inverted) == place:
                return new, True
    return None
