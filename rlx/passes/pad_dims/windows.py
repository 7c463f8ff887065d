"""Padding of convolutions and pools: what windows see beyond the elements counts for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rlx.ir.graph import Node, Value, make_node
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.indexing import DynamicUpdateSlice
from rlx.ops.pooling import (
    ReduceWindow,
    ReduceWindowGeneral,
    SelectAndGatherAdd,
    SelectAndScatterAdd,
    WindowKind,
    WindowSelect,
)
from rlx.ops.reduction.numbers import highest, lowest
from rlx.passes.pad_dims.context import Padding, Results, pads
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, combined, plain
from rlx.types import Dim


@pads(ConvGeneralDilated)
def convolution(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, ConvGeneralDilated)
    lhs, rhs = inputs
    batch, feature, *places = op.lhs_spec
    out, into, *window = op.rhs_spec
    if any(rhs.is_padded(a) for a in window):
        return Refusal("the kernel's window is padded")
    grouped = op.feature_group_count != 1 or op.batch_group_count != 1
    if grouped and (lhs.is_padded(feature) or rhs.is_padded(out) or rhs.is_padded(into)):
        return Refusal("features that are split into groups are padded")
    if lhs.is_padded(batch) and op.batch_group_count != 1:
        return Refusal("the batch is split into groups")
    summed = combined([lhs.axes[feature], rhs.axes[into]]) if not grouped else None
    if isinstance(summed, Refusal):
        return summed
    shape = node.types[0].shape
    axes: list[Axis] = list(plain(shape))
    if op.batch_group_count == 1:  # else the result has a part of the batch
        axes[op.out_spec[0]] = lhs.axes[batch]
    axes[op.out_spec[1]] = rhs.axes[out]
    moving = [p for p in places if lhs.is_padded(p)]
    moved = {
        p: number
        for number, p in enumerate(places)
        if p in moving and not isinstance(op.padding[number][0], int)
    }
    if any(op.lhs_dilation[number] != 1 for number in moved.values()):
        return Refusal("the padding of the convolution depends on a size")
    clash = lhs.clashing(moving)
    if clash is not None:
        return clash
    if summed is not None:  # one layout where the other operand holds the same everywhere
        lhs, rhs = _with_axis(lhs, feature, summed), _with_axis(rhs, into, summed)
    left = ctx.filled(lhs, [*moving, *([] if grouped else [feature])], _zero(lhs.value))
    right = rhs.value if grouped else ctx.filled(rhs, [into], _zero(rhs.value))
    padding = list(op.padding)
    for place, number in moved.items():
        extent = (ctx.size(rhs.shape[window[number]]) - 1) * op.rhs_dilation[number] + 1
        last = (ctx.size(shape[op.out_spec[2 + number]]) - 1) * op.window_strides[number]
        found = _begun(ctx, left, place, op.padding[number][0], last + extent, _zero(left))
        if isinstance(found, Refusal):
            return found
        left, padding[number] = found
    return ctx.remade(node, [left, right], axes, ctx.bound(op.replace(padding=tuple(padding))))


@pads(ReduceWindow)
def reduce_window(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, ReduceWindow)
    (x,) = inputs
    dtype = x.value.type.dtype
    identity = {
        WindowKind.SUM: np.zeros((), dtype.numpy),
        WindowKind.PROD: np.ones((), dtype.numpy),
        WindowKind.MAX: lowest(dtype),
        WindowKind.MIN: highest(dtype),
    }[op.kind]
    found = _windows(op, node, inputs, shifts=True)
    if isinstance(found, Refusal):
        return found
    axes, moving = found
    value, padding = ctx.filled(x, moving, identity), list(op.padding)
    for axis in moving:
        low = op.padding[axis][0]
        if isinstance(low, int):
            continue
        extent = (op.window_dimensions[axis] - 1) * op.window_dilation[axis] + 1
        last = (ctx.size(node.types[0].shape[axis]) - 1) * op.window_strides[axis]
        begun = _begun(ctx, value, axis, low, last + extent, identity)
        if isinstance(begun, Refusal):
            return begun
        value, padding[axis] = begun
    return ctx.remade(node, [value], axes, ctx.bound(op.replace(padding=tuple(padding))))


@pads(ReduceWindowGeneral)
def reduce_window_general(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, ReduceWindowGeneral)
    count = len(inputs) // 2
    found = _windows(op, node, inputs[:count])
    if isinstance(found, Refusal):
        return found
    axes, moving = found
    starts = [x.value for x in inputs[count:]]  # what a window sees beyond the ends
    values = [ctx.filled(x, moving, s) for x, s in zip(inputs[:count], starts, strict=True)]
    return ctx.remade(node, [*values, *starts], axes)


@pads(SelectAndGatherAdd)
def select_and_gather_add(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, SelectAndGatherAdd)
    found = _windows(op, node, inputs)
    if isinstance(found, Refusal):
        return found
    axes, moving = found
    tangents, x = inputs
    values = [
        ctx.filled(tangents, moving, _zero(tangents.value)),
        ctx.filled(x, moving, _unselected(op.select, x.value)),
    ]
    return ctx.remade(node, values, axes)


@pads(SelectAndScatterAdd)
def select_and_scatter_add(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, SelectAndScatterAdd)
    source, x = inputs
    axes: list[Axis] = list(x.axes)
    moving: list[int] = []
    for axis in range(len(x.shape)):
        if _is_still(op, axis):
            made = combined([x.axes[axis], source.axes[axis]])
            if isinstance(made, Refusal):
                return made
            axes[axis] = made
            continue
        axes[axis] = x.factors(axis)
        if not all(isinstance(n, int) for n in op.padding[axis]):
            return Refusal(f"the windows of axis {axis} depend on its size")
        if x.is_padded(axis):
            moving.append(axis)
    for side in inputs:
        clash = side.clashing(moving)
        if clash is not None:
            return clash
    values = [
        ctx.filled(source, moving, _zero(source.value)),
        ctx.filled(x, moving, _unselected(op.select, x.value)),
    ]
    made = make_node(ctx.bound(op), values, node.location)
    return ctx.results(node, made.results, [axes])


def _begun(
    ctx: Padding, value: Value, axis: int, low: Dim, seen: int, identity: Any
) -> tuple[Value, tuple[int, int]] | Refusal:
    """A value whose windows begin where they begin without padding, and their new padding.

    Args:
        ctx: the graph.
        value: with what does not count in its padding.
        axis: that windows move along.
        low: how far before the first element the first window begins: another for each size.
        seen: places of the axis that windows see, padding included.
        identity: what does not count.
    """
    span = ctx.span(low)
    if span is None or span[0] < 0:
        return Refusal(f"the windows of axis {axis} depend on its size")
    sizes = list(cast("tuple[int, ...]", tuple(value.type.shape)))
    sizes[axis] += span[1]
    wide = broadcast_to(constant(identity), tuple(sizes))
    starts: list[Value] = [constant(0)] * len(sizes)
    starts[axis] = ctx.number(low)
    return DynamicUpdateSlice()(wide, value, *starts), (0, seen - sizes[axis])


def _windows(
    op: Any, node: Node, inputs: Sequence[Padded], *, shifts: bool = False
) -> tuple[list[Axis], list[int]] | Refusal:
    """Layout of what windows give, and the padded axes that they move along.

    Args:
        op: one with ``window_dimensions``, ``window_strides``, ``padding`` and ``base_dilation``.
        node: the op's.
        inputs: arrays of one shape.
        shifts: the first window may begin elsewhere at other sizes.
    """
    axes: list[Axis] = []
    moving: list[int] = []
    for axis, dim in enumerate(node.types[0].shape):
        made = combined([x.axes[axis] for x in inputs])
        if isinstance(made, Refusal):
            return made
        if _is_still(op, axis) and op.base_dilation[axis] == 1:
            axes.append(made)
            continue
        axes.append((dim,))
        if not inputs[0].is_padded(axis):
            continue
        low = op.padding[axis][0]
        if not isinstance(low, int) and not (shifts and op.base_dilation[axis] == 1):
            return Refusal(f"the windows of axis {axis} depend on its size")
        moving.append(axis)
    for x in inputs:
        clash = x.clashing(moving)
        if clash is not None:
            return clash
    return axes, moving


def _is_still(op: Any, axis: int) -> bool:
    low, high = op.padding[axis]
    return op.window_dimensions[axis] == op.window_strides[axis] == 1 and low == high == 0


def _zero(value: Value) -> Any:
    return np.zeros((), value.type.dtype.numpy)


def _unselected(select: WindowSelect, value: Value) -> Any:
    dtype = value.type.dtype
    return lowest(dtype) if select is WindowSelect.GE else highest(dtype)


def _with_axis(x: Padded, axis: int, layout: Axis) -> Padded:
    return Padded(x.value, x.shape, (*x.axes[:axis], layout, *x.axes[axis + 1 :]))
