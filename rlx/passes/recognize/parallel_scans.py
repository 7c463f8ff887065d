"""Recurrences that a tree of products computes, as ``jax.lax.associative_scan`` writes them.

Each value of the tree is looked at place by place along the steps: it holds zeros, products of
decays over a range of steps, or what has entered the state in such a range. What holds the state
of every step since the first is the recurrence, in whatever order it was put together.

Steps multiply a state by one decay at a time. So an Inf that has entered stays one where a product
of decays that vanished would have made NaN of it, as it does in float64; and a rate that is NaN
shows in the first step already, whose decay a tree never reads. A match is to give the same NaN
and Inf, so that none is made but where ``FusionOptions(scan_trees=True)`` asks; strict makes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.graph import Node, Value
from rlx.ir.op import Op
from rlx.ops.activation import Relu, Softplus
from rlx.ops.arithmetic import Abs, Add, Max, Mul, Neg, Square
from rlx.ops.compare import Compare, Select
from rlx.ops.dot import DotGeneral
from rlx.ops.reduction import ReduceSum
from rlx.ops.sequence import SelectiveScan
from rlx.ops.shape import Concatenate, Narrow, Pad, Reverse, Slice
from rlx.ops.transcendental import Exp, Log1p, Logistic
from rlx.passes.recognize.matcher import MAX_STEPS, Match, Matcher, Search, View
from rlx.passes.recognize.replace import made_node
from rlx.passes.recognize.scans import Leaf, Roles, composite, sorted_leaves

Places: TypeAlias = "Array"
"""What a value holds at each place: [n, 4] of kind, first step, middle and last step."""

_ZERO, _DECAY, _STATE, _KEPT = range(4)
"""Zeros; decays first to last; the state of those steps; that state before it gets what enters."""

MAX_NODES = 1_000
"""Most nodes of a tree: 2^17 steps have about twenty for each doubling."""

MAX_LENGTH = 2**14
"""Most steps that are followed place by place."""


@final
@dataclass(frozen=True)
class _Tree:
    """A state of all steps.

    Attributes:
        decay: what a state is multiplied by in each step.
        entering: what is added then.
        axis: of the steps.
    """

    decay: Value
    entering: Value
    axis: int


def parallel_scan(search: Search, node: Node) -> Match | None:
    """Match y = Σ c h where a tree of products computes h."""
    read = _state_of(search, node)
    if read is None or search.strict:
        return None
    state, summed, other, axes = read
    tree = _tree(search, state)
    if tree is None:
        return None
    length, states = state.shape[tree.axis], state.shape[summed]
    if not isinstance(states, int) or not isinstance(length, int):
        return None
    roles = _roles(state, tree.axis, summed, other)
    if roles is None:
        return None
    found = _leaves(search, tree, roles, other)
    if found is None:
        why = "what decays its state or enters it is not exp(delta · a) and delta · b · x"
        search.miss(node, "selective_scan", why)
        return None
    if search.uses(state) > 1:
        search.miss(node, "selective_scan", "the states of its tree of products are read besides")
        return None
    if not _shrinks(search, found):
        why = (
            "its tree of products multiplies decays that are not known to be at most 1, which give "
            "another Inf and NaN than steps do"
        )
        search.miss(node, "selective_scan", why)
        return None
    result = [roles[axis] for axis in axes if roles[axis]]
    build = composite(found, states, result, node.types[0])
    if search.platform != "numpy" and not _has_kernel(search, found, build):
        search.miss(node, "selective_scan", "no kernel takes it in place of its tree of products")
        return None
    if not search.trees:
        why = (
            "its tree of products makes NaN where decays vanish beside an Inf, which steps keep; "
            "FusionOptions(scan_trees=True) takes it"
        )
        search.miss(node, "selective_scan", why)
        return None
    return Match("selective_scan", tuple(part.value for part in found), build)


def _state_of(search: Search, node: Node) -> tuple[Value, int, View, tuple[int, ...]] | None:
    """A state, which of its axes is summed, what it is multiplied with, and the axes that stay."""
    if isinstance(node.op, ReduceSum) and len(node.op.axes) == 1:
        product = search.behind(node.inputs[0])
        if not isinstance(product.node.op, Mul):
            return None
        (axis,) = node.op.axes
        for index in (0, 1):
            state = search.behind(product.node.inputs[index])
            if _ends_a_tree(state):
                other = search.innermost(search.view(product.node.inputs[1 - index]))
                return state, axis, other, tuple(a for a in range(state.rank) if a != axis)
    if isinstance(node.op, DotGeneral):
        return _read_by_product(search, node, node.op)
    return None


def _read_by_product(
    search: Search, node: Node, op: DotGeneral
) -> tuple[Value, int, View, tuple[int, ...]] | None:
    for index in (0, 1):
        state = search.behind(node.inputs[index])
        if not _ends_a_tree(state):
            continue
        sides = (op.lhs_contracting, op.rhs_contracting), (op.lhs_batch, op.rhs_batch)
        (own, theirs), (own_batch, their_batch) = (pair[:: 1 - 2 * index] for pair in sides)
        reads = node.inputs[1 - index]
        axes = [-1] * reads.rank
        for here, there in (*zip(own, theirs, strict=True),
                            *zip(own_batch, their_batch, strict=True)):  # fmt: skip
            axes[there] = here
        if len(own) != 1 or -1 in axes:
            return None
        free = [a for a in range(state.rank) if a not in (*own, *own_batch)]
        other = search.innermost(View(reads, tuple(axes)))
        return state, own[0], other, (*own_batch, *free)
    return None


def _ends_a_tree(value: Value) -> bool:
    """Whether a value may be put together of those at even places and at odd ones."""
    for _ in range(2):
        if isinstance(value.node.op, Add):
            return any(isinstance(v.node.op, Pad) for v in value.node.inputs)
        if isinstance(value.node.op, Concatenate):
            return True
        if not isinstance(value.node.op, Reverse):
            return False
        value = value.node.inputs[0]
    return False


def _tree(search: Search, state: Value) -> _Tree | None:
    """The recurrence that a tree computes."""
    known = [axis for axis, size in enumerate(state.shape) if isinstance(size, int) and size > 1]
    for axis in known:
        length = int(str(state.shape[axis]))
        nodes = _nodes(state, axis, length) if length <= MAX_LENGTH else None
        if nodes is None:
            continue
        inside = {v for node in nodes for v in node.results}
        ends = [v for v in dict.fromkeys(v for n in nodes for v in n.inputs)
                if v not in inside and search.number(v) != 0]  # fmt: skip
        if len(ends) != 2 or any(v.shape != state.shape for v in ends):
            continue
        for decay, entering in (ends, ends[::-1]):
            if _is_recurrence(search, state, nodes, decay, entering, axis):
                return _Tree(decay, entering, axis)
    return None


def _nodes(state: Value, axis: int, length: int) -> list[Node] | None:
    """The nodes of a tree, operands first; it ends where parts of something whole are taken."""
    order: list[Node] = []
    seen: set[Node] = set()
    pending: list[tuple[Value, bool]] = [(state, False)]
    while pending:
        value, done = pending.pop()
        node, op = value.node, value.node.op
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > MAX_NODES or not isinstance(op, Add | Mul | Pad | Concatenate | Slice
                                                   | Narrow | Reverse):  # fmt: skip
            return None
        pending.append((value, True))
        if isinstance(op, Slice | Narrow):
            (source,) = node.inputs
            if source.shape[axis] == length and not _ends_a_tree(source):
                continue
        operands = node.inputs[:1] if isinstance(op, Pad) else node.inputs
        pending += [(v, False) for v in reversed(operands)]
    return order


def _is_recurrence(
    search: Search, state: Value, nodes: Sequence[Node], decay: Value, entering: Value, axis: int
) -> bool:
    """Whether every place of a state holds what entered since the first step."""
    count = int(str(state.shape[axis]))
    steps = np.arange(count)
    held: dict[Value, Places] = {
        value: np.stack([np.full(count, kind), steps, steps, steps], 1)
        for value, kind in ((decay, _DECAY), (entering, _STATE))
    }
    for node in nodes:
        made = _holds(search, node, held, axis)
        if made is None:
            return False
        held[node.results[0]] = made
    kind, first, _, last = held[state].T
    return bool((kind == _STATE).all() and not first.any() and np.array_equal(last, steps))


def _holds(search: Search, node: Node, held: dict[Value, Places], axis: int) -> Places | None:
    """What a node of a tree holds; None for what is none of its forms."""
    op = node.op
    given = [held.get(v) for v in node.inputs]
    first = given[0]
    if isinstance(op, Pad):
        moved = [a for a in range(node.inputs[0].rank)
                 if (op.low[a], op.high[a], op.interior[a]) != (0, 0, 0)]  # fmt: skip
        low, high = op.low[axis], op.high[axis]
        plain = moved in ([], [axis]) and search.number(node.inputs[1]) == 0
        if first is None or not plain or not isinstance(low, int) or not isinstance(high, int):
            return None
        if low < 0 or high < 0:
            return None
        distance = op.interior[axis] + 1
        made = np.zeros((low + high + (len(first) - 1) * distance + 1, 4), first.dtype)
        made[low : len(made) - high : distance] = first
        return made
    places = [p for p in given if p is not None]
    if first is None or len(places) != len(given):
        return None
    match op:
        case Slice():
            others = [a for a in range(node.inputs[0].rank) if a != axis]
            shape = node.inputs[0].shape
            whole = all((op.start_indices[a], op.limit_indices[a], op.strides[a])
                        == (0, shape[a], 1) for a in others)  # fmt: skip
            start, stop = op.start_indices[axis], op.limit_indices[axis]
            if not whole or not isinstance(start, int) or not isinstance(stop, int):
                return None
            return first[start : stop : op.strides[axis]]
        case Narrow():
            known = isinstance(op.start, int) and isinstance(op.length, int) and op.axis == axis
            return first[int(str(op.start)) :][: int(str(op.length))] if known else None
        case Reverse():
            return first[::-1] if op.axes == (axis,) else None
        case Concatenate():
            return np.concatenate(places) if op.axis == axis else None
        case Add():
            return _sum(places[0], places[1])
        case _:
            return _times(places[0], places[1])


def _sum(one: Places, other: Places) -> Places | None:
    """Zeros and something, or a state that is kept and what enters then."""
    if len(one) != len(other):
        return None
    one, other = _ordered(one, other, _KEPT)
    none, free = one[:, 0] == _ZERO, other[:, 0] == _ZERO
    joins = (one[:, 0] == _KEPT) & (other[:, 0] == _STATE)
    joins &= (one[:, 2] + 1 == other[:, 1]) & (one[:, 3] == other[:, 3])
    if not (none | free | joins).all():
        return None
    made = np.where(none[:, None], other, one)
    made[joins, 0] = _STATE
    return made


def _times(one: Places, other: Places) -> Places | None:
    """Decays of steps next to each other, or decays and the state before them."""
    if len(one) != len(other):
        return None
    if (one[:, 1] < other[:, 1]).any():
        one, other = other, one
    next_to = (one[:, 0] == _DECAY) & (one[:, 1] == other[:, 3] + 1)
    decays, states = next_to & (other[:, 0] == _DECAY), next_to & (other[:, 0] == _STATE)
    if not (decays | states).all():
        return None
    made = np.stack([one[:, 0], other[:, 1], other[:, 3], one[:, 3]], 1)
    made[states, 0] = _KEPT
    return made


def _ordered(one: Places, other: Places, kind: int) -> tuple[Places, Places]:
    """Both, at each place that one first which is of a kind."""
    turned = (other[:, 0] == kind)[:, None]
    return np.where(turned, other, one), np.where(turned, one, other)


def _roles(state: Value, steps: int, summed: int, other: View) -> Roles | None:
    """What each axis of a state is: s, b, h and n; empty for an axis of size 1."""
    roles = [""] * state.rank
    roles[steps], roles[summed] = "s", "n"
    for axis, size in enumerate(state.shape):
        if size != 1 and not roles[axis]:
            roles[axis] = "b" if axis in other.axes else "h"
    alike = roles.count("h") == 1 and roles.count("b") <= 1
    return tuple(roles) if alike and steps != summed and steps in other.axes else None


def _leaves(search: Search, tree: _Tree, roles: Roles, other: View) -> list[Leaf] | None:
    """What the op takes: x, delta, a, b and c."""

    def outside(view: View) -> Leaf:
        inner = search.innermost(view)
        return Leaf(inner.value, tuple(roles[a] if a >= 0 else "" for a in inner.axes))

    def factors(view: View) -> list[Leaf] | None:
        parts = search.factors(view)
        return None if any(below for _, below in parts) else [outside(part) for part, _ in parts]

    for current in search.views(search.view(tree.decay)):
        if isinstance(current.op, Exp):
            decay = factors(current.operand(0))
            break
    else:
        return None
    entering = factors(search.view(tree.entering))
    if decay is None or entering is None:
        return None
    made = (*sorted_leaves(decay, entering, roles), outside(other))
    return None if None in made else [part for part in made if part is not None]


def _shrinks(search: Search, found: Sequence[Leaf]) -> bool:
    """Whether delta · a is at most 0: then no decay is above 1."""
    delta, rate = found[1].value, found[2].value
    signs = _sign(search, delta), _sign(search, rate)
    return signs in ((1, -1), (-1, 1))


def _sign(search: Search, value: Value, depth: int = MAX_STEPS) -> int:
    """1 for what is never below 0, −1 for what is never above; 0 where that is not known."""
    if not depth:
        return 0
    value = search.innermost(search.view(value)).value
    number = search.number(value)
    if number is not None:
        return 1 if number >= 0 else -1
    op, inputs = value.node.op, value.node.inputs
    match op:
        case Exp() | Logistic() | Abs() | Square() | Relu() | Softplus():
            return 1
        case Log1p():
            return max(0, _sign(search, inputs[0], depth - 1))
        case Neg():
            return -_sign(search, inputs[0], depth - 1)
        case Max():
            return max(0, *(_sign(search, v, depth - 1) for v in inputs))
        case Mul():
            one, other = (_sign(search, v, depth // 2) for v in inputs)
            return one * other
        case Add():
            one, other = (_sign(search, v, depth // 2) for v in inputs)
            return one if one == other else 0
        case Select():
            test = inputs[0].node
            if isinstance(test.op, Compare) and test.inputs[0] is test.inputs[1]:
                return _sign(search, inputs[2], depth - 1)  # NaN, of which it makes NaN
            one, other = (_sign(search, v, depth // 2) for v in inputs[1:])
            return one if one == other else 0
        case _:
            return 0


def _has_kernel(search: Search, found: Sequence[Leaf], build: Any) -> bool:
    """Whether a kernel of the device carries out the composite."""
    if search.has_kernel is None:
        return False
    node = made_node(build, [part.value for part in found], SelectiveScan)
    return node is not None and search.has_kernel(node)


TABLE: dict[type[Op], tuple[Matcher, ...]] = {
    DotGeneral: (parallel_scan,),
    ReduceSum: (parallel_scan,),
}

NEEDS: tuple[type[Op], ...] = (Pad, Concatenate)
"""Ops without any of which there is nothing to find."""
