"""Padding of ops that put elements elsewhere by a rule: each place says where it reads from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx import dims
from rlx.dtypes import DType
from rlx.ir.graph import Node, Value
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Add, Div, Min, Mul, Rem, Sub
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.indexing import Gather
from rlx.ops.shape import Iota, Reshape, Roll
from rlx.passes.pad_dims.context import Padding, Results, pads
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, merged, plain, reshaped
from rlx.types import Dim, Shape

LARGEST = 2**31 - 1
"""Most places that an i32 numbers."""


@pads(Reshape)
def reshape(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    shape = node.types[0].shape
    factors = [f for axis in range(len(x.shape)) for f in x.factors(axis)]
    axes = reshaped(factors, shape, ctx.sizes)
    if isinstance(axes, Refusal):  # elements change places, since the padding between them does
        picked = _picked(ctx, x, shape)
        return (
            picked if isinstance(picked, Refusal) else ctx.results(node, [picked], [plain(shape)])
        )
    kept = [axis for axis in x.axes if axis is None or merged(axis) != (1,)]
    wide = [i for i, axis in enumerate(axes) if axis is not None and merged(axis) != (1,)]
    if len(kept) == len(wide):  # only axes of one element came or went
        same = list(axes)
        for index, axis in zip(wide, kept, strict=True):
            if axis is None and not isinstance(shape[index], int):
                same[index] = None
        axes = tuple(same)
    return ctx.remade(node, [x.value], axes)


def settled(ctx: Padding, x: Padded) -> Padded | Refusal:
    """The same with its elements first on every axis that may be padded."""
    if all(axis is None or len(axis) == 1 for axis in x.axes):
        return x
    picked = _picked(ctx, x, x.shape)
    return picked if isinstance(picked, Refusal) else Padded(picked, x.shape, plain(x.shape))


def _picked(ctx: Padding, x: Padded, shape: Shape) -> Value | Refusal:
    """The elements in C order as a tensor of another shape, first on every axis."""
    factors = [f for axis in range(len(x.shape)) for f in x.factors(axis)]
    sizes, old = ctx.shape(shape), [ctx.size(f) for f in factors]
    count, total = math.prod(sizes), math.prod(old)
    if max(count, total) > LARGEST:
        return Refusal("its places are more than i32 counts")
    number = numbered(ctx, shape)
    place: Value | None = None
    step, below = total, [*factors[1:], 1]
    for index, (factor, size) in enumerate(zip(factors, old, strict=True)):
        step //= max(size, 1)
        if factor == 1:
            continue
        digit = Div()(number, _spread(ctx, dims.product(below[index:]), sizes))
        if index:
            digit = Rem()(digit, _spread(ctx, factor, sizes))
        part = Mul()(digit, broadcast_to(constant(step), sizes))
        place = part if place is None else Add()(place, part)
    if place is None:
        place = broadcast_to(constant(0), sizes)
    flat = x.value.reshape((total,))
    picked: Value = Gather(axis=0)(flat, place.reshape((count,)))  # clips the places of padding
    return picked.reshape(sizes)


def numbered(ctx: Padding, shape: Sequence[Dim]) -> Value:
    """The number that each element of a shape has without padding, in C order."""
    sizes = ctx.shape(shape)
    number = broadcast_to(constant(0), sizes)
    step: Dim = 1
    for axis in reversed(range(len(sizes))):
        along: Value = Iota(dtype=DType.I32, shape=sizes, axis=axis)()
        number = Add()(number, Mul()(along, _spread(ctx, step, sizes)))
        step = dims.product((step, shape[axis]))
    return number


def _spread(ctx: Padding, dim: Dim, sizes: Shape) -> Value:
    """The actual size of a dim at every place; at least 1."""
    if isinstance(dim, int):
        return broadcast_to(constant(max(dim, 1)), sizes)
    from rlx.ops.arithmetic import Max

    return broadcast_to(Max()(ctx.number(dim), constant(1)), sizes)


@pads(Roll)
def roll(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Roll)
    (x,) = inputs
    moved = [a for a in op.axes if x.is_padded(a)]
    clash = x.clashing(moved)
    if clash is not None:
        return clash
    axes: list[Axis] = list(x.axes)
    value = x.value
    for shift, axis in zip(op.shifts, op.axes, strict=True):
        if axis not in moved:
            value = Roll(shifts=(shift,), axes=(axis,))(value)
            continue
        size = value.type.shape[axis]
        assert isinstance(size, int)
        count = ctx.number(x.shape[axis])
        # (i − shift) mod n of numbers that may be negative
        start = Rem()(Add()(Rem()(constant(-shift), count), count), count)
        places = Add()(Iota(dtype=DType.I32, shape=(size,))(), broadcast_to(start, (size,)))
        whole = broadcast_to(count, (size,))
        beyond = Compare(direction=Direction.GE)(places, whole)
        places = Select()(beyond, Sub()(places, whole), places)
        last = broadcast_to(constant(size - 1), (size,))
        value = Gather(axis=axis)(value, Min()(places, last))
        axes[axis] = x.factors(axis)
    return ctx.results(node, [value], [axes])
