"""What a mask of scores hides: positions compared with positions, or a tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ops.arithmetic import Add, Mul, Neg, Sub
from rlx.ops.attention import MaskKind
from rlx.ops.bitwise import And, Not, Or
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convert import Convert
from rlx.ops.io import Constant
from rlx.ops.shape import Iota
from rlx.passes.recognize.matcher import Search, View

_MAX_PARTS = 32
"""Most nodes of one mask that are looked at."""

_MAX_LITERAL = 1 << 16
"""A longer constant is not compared with a count."""

_COMPARE: dict[Direction, Callable[[Any, Any], Any]] = {
    Direction.EQ: operator.eq,
    Direction.NE: operator.ne,
    Direction.LT: operator.lt,
    Direction.LE: operator.le,
    Direction.GT: operator.gt,
    Direction.GE: operator.ge,
}


@final
@dataclass
class Bounds:
    """Which keys t a query s sees: s + low ≤ t ≤ s + high, for all limits.

    Attributes:
        high: the upper limits.
        low: the lower limits.
        other: whether there is a part that is no comparison of positions.
    """

    high: list[int]
    low: list[int]
    other: bool = False

    def kind(self, queries: int, keys: int) -> tuple[MaskKind, int | None] | None:
        """The kind of mask and its window; None where it takes a tensor to say it."""
        offset = keys - queries
        if self.other or not self.high or min(self.high) != offset:
            return None
        if not self.low:
            return MaskKind.CAUSAL, None
        window = offset - max(self.low)
        return None if window < 0 else (MaskKind.SLIDING_WINDOW, window)


def bounds_of(search: Search, seen: View, hides: bool, query: int, key: int) -> Bounds:
    """Read a mask.

    Args:
        search: the search in its graph.
        seen: the mask, as it lies in the scores.
        hides: whether true means hidden.
        query: the axis of the scores with the queries.
        key: the axis with the keys.
    """
    found = Bounds([], [])
    pending, looked = [(seen, not hides)], 0
    while pending:
        view, positive = pending.pop()
        looked += 1
        split = _parts(search, view, positive) if looked < _MAX_PARTS else None
        if split is not None:
            pending.extend(split)
            continue
        limit = _limit(search, view, positive, query, key)
        if limit is None:
            found.other = True
        elif limit[0] > 0:
            found.high.append(limit[1])
        else:
            found.low.append(limit[1])
    return found


def _parts(search: Search, view: View, positive: bool) -> list[tuple[View, bool]] | None:
    """Masks that hold together, of a mask."""
    known = search.element(view.value)
    if known is not None:
        return [] if bool(known) is positive else None
    op, node = view.op, view.value.node
    if isinstance(op, Not):
        return [(view.operand(0), not positive)]
    if isinstance(op, And if positive else Or):
        return [(view.operand(0), positive), (view.operand(1), positive)]
    if isinstance(op, Select):
        pair = [search.element(v) for v in node.inputs[1:]]
        return _chosen(search, view, [None if p is None else bool(p) for p in pair], positive)
    if isinstance(op, Convert) and view.value.dtype is DType.BOOL:
        inner = view.operand(0)
        return _of_number(search, inner, lambda x: x != 0, positive)
    if isinstance(op, Compare):
        return _compared_number(search, view, op.direction, positive)
    inner = search.within(view)
    return None if inner is None else [(inner, positive)]


def _chosen(
    search: Search, view: View, pair: list[bool | None], positive: bool
) -> list[tuple[View, bool]] | None:
    """A choice between two known answers."""
    del search
    if None in pair:
        return _one_sided(view, pair, positive)
    if pair[0] == pair[1]:
        return [] if pair[0] is positive else None
    return [(view.operand(0), positive is pair[0])]


def _one_sided(
    view: View, pair: list[bool | None], positive: bool
) -> list[tuple[View, bool]] | None:
    """select(p, x, false) is p and x; select(p, true, x) is p or x."""
    if pair[1] is False and positive:
        return [(view.operand(0), True), (view.operand(1), True)]
    if pair[0] is False and positive:
        return [(view.operand(0), False), (view.operand(2), True)]
    return None


def _of_number(
    search: Search, view: View, holds: Callable[[Any], Any], positive: bool
) -> list[tuple[View, bool]] | None:
    """A predicate of a number that is chosen between two known ones."""
    for current in search.views(view):
        if isinstance(current.op, Convert):
            continue
        if isinstance(current.op, Select):
            pair = [search.element(v) for v in current.value.node.inputs[1:]]
            answers = [None if p is None else bool(holds(p)) for p in pair]
            return None if None in answers else _chosen(search, current, answers, positive)
    for current in search.views(view):
        if isinstance(current.op, Convert) and current.operand(0).value.dtype is DType.BOOL:
            pair = [bool(holds(1)), bool(holds(0))]
            if pair[0] == pair[1]:
                return [] if pair[0] is positive else None
            return [(current.operand(0), positive is pair[0])]
    return None


def _compared_number(
    search: Search, view: View, direction: Direction, positive: bool
) -> list[tuple[View, bool]] | None:
    compare = _COMPARE[direction]
    lhs, rhs = view.value.node.inputs
    right, left = search.element(rhs), search.element(lhs)
    if right is not None:
        return _of_number(search, view.operand(0), lambda x: compare(x, right), positive)
    if left is not None:
        return _of_number(search, view.operand(1), lambda x: compare(left, x), positive)
    return None


def _limit(
    search: Search, view: View, positive: bool, query: int, key: int
) -> tuple[int, int] | None:
    """(1, u) for t ≤ s + u, (−1, u) for t ≥ s + u."""
    op = view.op
    if not isinstance(op, Compare):
        return None
    lhs, rhs = _place(search, view.operand(0)), _place(search, view.operand(1))
    if lhs is None or rhs is None:
        return None
    slope = {axis: lhs[0].get(axis, 0) - rhs[0].get(axis, 0) for axis in {*lhs[0], *rhs[0]}}
    slope = {axis: factor for axis, factor in slope.items() if factor}
    number = lhs[1] - rhs[1]  # slope · axes + number  <direction>  0
    direction = op.direction
    if slope == {query: 1, key: -1}:  # s − t + number ⋄ 0: turn around
        slope, number, direction = {query: -1, key: 1}, -number, _TURNED.get(direction)
    if slope != {query: -1, key: 1} or direction is None:
        return None
    if not positive:
        direction = _OPPOSITE.get(direction)
    match direction:  # t − s + number ⋄ 0
        case Direction.LE:
            return 1, -number
        case Direction.LT:
            return 1, -number - 1
        case Direction.GE:
            return -1, -number
        case Direction.GT:
            return -1, -number + 1
        case _:
            return None


_TURNED = {
    Direction.LE: Direction.GE,
    Direction.LT: Direction.GT,
    Direction.GE: Direction.LE,
    Direction.GT: Direction.LT,
}
_OPPOSITE = {
    Direction.LE: Direction.GT,
    Direction.LT: Direction.GE,
    Direction.GE: Direction.LT,
    Direction.GT: Direction.LE,
}


def _place(search: Search, view: View, depth: int = 6) -> tuple[dict[int, int], int] | None:
    """A position as a sum of axes' indices and a number."""
    known = search.element(view.value)
    if known is not None:
        return ({}, int(known)) if float(known) == int(known) else None
    op = view.op
    if isinstance(op, Iota):
        axis = view.axes[op.axis]
        return None if axis < 0 else ({axis: 1}, 0)
    if isinstance(op, Constant):
        return _counted(op.value.array, view)
    if not depth:
        return None
    if isinstance(op, Convert) and view.value.dtype.is_integer:
        inner = view.operand(0)
        return _place(search, inner, depth - 1) if inner.value.dtype.is_integer else None
    if isinstance(op, Add | Sub):
        first = _place(search, view.operand(0), depth - 1)
        second = _place(search, view.operand(1), depth - 1)
        if first is None or second is None:
            return None
        sign = 1 if isinstance(op, Add) else -1
        axes = dict(first[0])
        for axis, factor in second[0].items():
            axes[axis] = axes.get(axis, 0) + sign * factor
        return axes, first[1] + sign * second[1]
    if isinstance(op, Mul | Neg):
        return None
    inner = search.within(view)
    return None if inner is None else _place(search, inner, depth - 1)


def _counted(array: Array, view: View) -> tuple[dict[int, int], int] | None:
    """The place of a constant that counts up from a number."""
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size > _MAX_LITERAL:
        return None
    first = int(array[0])
    counts = np.array_equal(array, first + np.arange(array.size))
    return ({view.axes[0]: 1}, first) if counts and view.axes[0] >= 0 else None


def smallest(search: Search, view: View) -> View:
    """A mask or bias before it is spread over the scores, its type kept."""
    for current in search.views(view):
        view = current
        if isinstance(current.op, Convert):
            break
    return view


def value_along(value: Value, axes: tuple[int, ...], order: tuple[int, ...]) -> Value:
    """A value with an axis for each of `order`, of size 1 where it has none.

    Args:
        value: what is laid out.
        axes: for each of its axes one of `order`, or −1 for an axis of size 1.
        order: the axes wanted.
    """
    kept = [place for place, axis in enumerate(axes) if axis in order]
    flat = value.reshape(*(value.shape[place] for place in kept))
    ranked = sorted(range(len(kept)), key=lambda i: order.index(axes[kept[i]]))
    if ranked != list(range(len(kept))):
        flat = flat.transpose(*ranked)
    sizes = {axes[place]: value.shape[place] for place in kept}
    return flat.reshape(*(sizes.get(axis, 1) for axis in order))
