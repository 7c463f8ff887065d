"""The axes of q, k, v and masks by their roles, and how they are arranged for the op."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from rlx.ir.graph import Value
from rlx.ops.shape import BroadcastInDim, Reshape
from rlx.passes.recognize.masks import value_along
from rlx.passes.recognize.matcher import View


@final
@dataclass(frozen=True)
class Roles:
    """The axes of an operand of a product by what they are for.

    Attributes:
        batch: those of the batch, outermost first.
        head: the axis of heads, or of groups of heads; −1 for one head.
        group: the axis of heads in a group; −1 for none.
        place: the axis of queries or keys.
        depth: the axis that is summed, or that of the result.
    """

    batch: tuple[int, ...]
    head: int
    group: int
    place: int
    depth: int

    def order(self, layout: str) -> tuple[int, ...]:
        """The axes in the order of a layout."""
        heads = tuple(axis for axis in (self.head, self.group) if axis >= 0)
        middle = (self.place, *heads) if layout == "bshd" else (*heads, self.place)
        return (*self.batch, *middle, self.depth)

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """B, S, H and D."""
        heads = math.prod(shape[axis] for axis in (self.head, self.group) if axis >= 0)
        batch = math.prod(shape[axis] for axis in self.batch)
        return batch, shape[self.place], heads, shape[self.depth]

    def arranged(self, value: Value, layout: str) -> Value:
        """The value with the four axes of a layout."""
        order = self.order(layout)
        if order != tuple(range(value.rank)):
            value = value.transpose(*order)
        shape = [0] * value.rank
        for place, axis in enumerate(order):
            shape[axis] = int(value.shape[place])
        batch, length, heads, width = self.sizes(tuple(shape))
        middle = (length, heads) if layout == "bshd" else (heads, length)
        return value.reshape(batch, *middle, width)


def mask_value(
    masks: tuple[Value, ...],
    views: list[tuple[View, bool]],
    axes: dict[str, int],
    order: tuple[str, ...],
    sizes: tuple[int, ...],
    steps: tuple[list[str], list[str]],
    *,
    adds: bool = False,
) -> Value:
    """One mask, or the sum of biases, that broadcasts to [B, H, S_q, S_k].

    Args:
        masks: the values.
        views: how they lie in the scores, each with whether its opposite is meant.
        axes: where roles lie in the scores.
        order: the roles of the result's axes.
        sizes: their sizes.
        steps: the roles of batch and heads, each of which become one axis.
        adds: whether they are biases.
    """
    joined: Value | None = None
    for value, (view, hides) in zip(masks, views, strict=True):
        places = tuple(axes[r] if axes[r] >= 0 else -2 - n for n, r in enumerate(order))
        one = value_along(value, view.axes, places)
        if hides:
            one = -one if adds else ~one
        one = _merged(one, order, sizes, steps)
        if joined is None:
            joined = one
        elif not adds:
            joined = joined & one
        else:
            wide = joined.dtype if joined.dtype.bits >= one.dtype.bits else one.dtype
            joined = joined.convert(wide) + one.convert(wide)
    assert joined is not None
    return joined


def _merged(
    value: Value, order: tuple[str, ...], sizes: tuple[int, ...], steps: tuple[list[str], list[str]]
) -> Value:
    """A mask with one axis for all of the batch, and one for all heads."""
    shape = [int(s) for s in value.shape]
    merged: list[int] = []
    for group in steps:
        places = [order.index(role) for role in group]
        if all(shape[p] == 1 for p in places):
            merged.append(1)
            continue
        for place in places:
            shape[place] = sizes[place]
        merged.append(math.prod(shape[p] for p in places))
    return value.broadcast_to(tuple(shape)).reshape(*merged, *shape[-2:])


def layout_of(roles: Roles) -> str:
    """The layout in which q needs no transpose, if there is one."""
    order = roles.order("bshd")
    if order == tuple(range(len(order))):
        return "bshd"
    order = roles.order("bhsd")
    if order == tuple(range(len(order))):
        return "bhsd"
    return "bshd" if roles.place < roles.head else "bhsd"


def ungrouped(value: Value, roles: Roles) -> Value:
    """Keys or values before each head was repeated for its group of query heads."""
    node, head = value.node, roles.head
    if not isinstance(node.op, Reshape) or head < 0:
        return value
    spread = node.inputs[0]
    if not isinstance(spread.node.op, BroadcastInDim) or spread.rank != value.rank + 1:
        return value
    shape = list(spread.shape)
    merged = [*shape[:head], int(shape[head]) * int(shape[head + 1]), *shape[head + 2 :]]
    source = spread.node.inputs[0]
    axes = spread.node.op.broadcast_dimensions
    if merged != list(value.shape):
        return value
    kept = tuple(axis for axis in range(spread.rank) if axis != head + 1)
    if axes == kept and list(source.shape) == [shape[axis] for axis in kept]:
        return source
    shape[head + 1] = 1
    whole = axes == tuple(range(spread.rank)) and list(source.shape) == shape
    return source if whole else value


def without_group(value: Value, roles: Roles, rank: int) -> Value:
    """Keys or values without the axis of size 1 along which heads were repeated."""
    if value.rank == rank:
        return value
    shape = list(value.shape)
    del shape[roles.head + 1]
    return value.reshape(*shape)
