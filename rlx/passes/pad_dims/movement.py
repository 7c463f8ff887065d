"""Padding of ops that move elements: cuts, joins, turns, and reads and writes at places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Node, Value, make_node
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.arithmetic import Max, Min, Sub
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convert import Convert
from rlx.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    GatherGeneral,
    IndexMode,
    ScatterGeneral,
)
from rlx.ops.io import Constant
from rlx.ops.reduction.numbers import highest
from rlx.ops.shape import BroadcastInDim, Concatenate, Pad, Reshape, Reverse, Slice, Trilu
from rlx.passes.pad_dims.context import Padding, Results, pads, scalar
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, combined
from rlx.types import Dim


@pads(Slice)
def slice_(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Slice)
    (x,) = inputs
    shape = node.types[0].shape
    axes: list[Axis] = list(x.axes)
    cut = [
        axis
        for axis, dim in enumerate(x.shape)
        if not (op.start_indices[axis] == 0 and op.limit_indices[axis] == dim)
        or op.strides[axis] != 1
    ]
    clash = x.clashing(cut)
    if clash is not None:
        return clash
    moving: list[int] = []
    for axis in cut:
        axes[axis] = (shape[axis],) if x.axes[axis] is not None else None
        if isinstance(shape[axis], int):
            axes[axis] = (shape[axis],)
        if not isinstance(op.start_indices[axis], int):
            if op.strides[axis] != 1:
                return Refusal(f"axis {axis} is read in strides from a place that moves")
            moving.append(axis)
    if not moving:
        return ctx.remade(node, [x.value], axes)
    sizes = list(ctx.shape(x.shape))
    starts: list[Value] = [constant(0)] * len(sizes)
    for axis in moving:
        sizes[axis] = ctx.size(shape[axis])
        starts[axis] = ctx.number(op.start_indices[axis])
    picked: Value = DynamicSlice(sizes=tuple(sizes))(x.value, *starts)
    rest = [a for a in cut if a not in moving]
    if rest:
        picked = Slice(
            start_indices=tuple(
                ctx.size(op.start_indices[a]) if a in rest else 0 for a in range(len(sizes))
            ),
            limit_indices=tuple(
                ctx.size(op.limit_indices[a]) if a in rest else n for a, n in enumerate(sizes)
            ),
            strides=tuple(op.strides[a] if a in rest else 1 for a in range(len(sizes))),
        )(picked)
    return ctx.results(node, [picked], [axes])


@pads(Reverse)
def reverse(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Reverse)
    (x,) = inputs
    moved = [a for a in op.axes if x.is_padded(a) and x.axes[a] is not None]
    clash = x.clashing(moved)
    if clash is not None:
        return clash
    made = make_node(op, [x.value], node.location).results[0]
    sizes = ctx.shape(x.shape)
    for axis in moved:  # the padding now comes first: read from where the elements start
        twice = Concatenate(axis=axis)(made, made)
        starts: list[Value] = [constant(0)] * len(sizes)
        starts[axis] = Sub()(constant(sizes[axis]), ctx.number(x.shape[axis]))
        made = DynamicSlice(sizes=sizes)(twice, *starts)
    return ctx.results(node, [made], [x.axes])


@pads(Trilu)
def trilu(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    last = (len(x.shape) - 2, len(x.shape) - 1)
    clash = x.clashing(last)
    if clash is not None:
        return clash
    axes = [x.factors(a) if a in last else e for a, e in enumerate(x.axes)]
    return ctx.remade(node, [x.value], axes)


@pads(Concatenate)
def concatenate(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Concatenate)
    shape = node.types[0].shape
    axes: list[Axis] = []
    for axis in range(len(shape)):
        if axis == op.axis:
            axes.append((shape[axis],))
            continue
        made = combined([x.axes[axis] for x in inputs])
        if isinstance(made, Refusal):
            return made
        axes.append(made)
    for x in inputs:
        clash = x.clashing([op.axis])
        if clash is not None:
            return clash
    if not any(x.is_padded(op.axis) for x in inputs[:-1]):
        return ctx.remade(node, [x.value for x in inputs], axes)
    # Each part overwrites the padding of those before it.
    zero = scalar(0, node.types[0].dtype)
    total: Value = broadcast_to(zero, ctx.shape(shape))
    before: Dim = 0
    for x in inputs:
        starts: list[Value] = [constant(0)] * len(shape)
        starts[op.axis] = ctx.number(before)
        total = DynamicUpdateSlice()(total, x.value, *starts)
        before = before + x.shape[op.axis]
    return ctx.results(node, [total], [axes])


@pads(Pad)
def pad(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Pad)
    x, value = inputs
    shape = node.types[0].shape
    axes: list[Axis] = list(x.axes)
    changed: list[int] = []
    for axis, dim in enumerate(shape):
        low, high, between = op.low[axis], op.high[axis], op.interior[axis]
        if low == high == between == 0:
            continue
        axes[axis] = (dim,)
        if not isinstance(low, int):
            return Refusal(f"axis {axis} begins after a number of elements that moves")
        if x.is_padded(axis):
            changed.append(axis)
    clash = x.clashing(changed)
    if clash is not None:
        return clash
    return ctx.remade(node, [ctx.filled(x, changed, value.value), value.value], axes)


@pads(DynamicSlice)
def dynamic_slice(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, DynamicSlice)
    x, *starts = inputs
    axes: list[Axis] = list(x.axes)
    values = [s.value for s in starts]
    room: dict[int, int] = {}
    for axis, (dim, size) in enumerate(zip(x.shape, op.sizes, strict=True)):
        if size == dim:
            continue
        axes[axis] = (size,)
        clash = x.clashing([axis])
        if clash is not None:
            return clash
        moves = not isinstance(size, int) and not ctx.grows(dim - size)
        if moves and not _is_zero(values[axis]):
            room[axis] = ctx.size(size)
        if room.get(axis) or x.is_padded(axis):
            values[axis] = _at_most(ctx, values[axis], dim - size)
    return ctx.remade(node, [_with_room(x.value, room), *values], axes)


def _at_most(ctx: Padding, start: Value, limit: Dim) -> Value:
    dtype = start.type.dtype
    if dtype.bits < 32:
        return Convert(dtype=dtype)(
            Min()(Convert(dtype=DType.I32)(start), Max()(ctx.number(limit), constant(0)))
        )
    return Min()(start, ctx.number(limit, dtype))


@pads(DynamicUpdateSlice)
def dynamic_update_slice(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    x, update, *starts = inputs
    values = [s.value for s in starts]
    cut: list[int] = []
    axes = list(x.axes)
    for axis, (dim, size) in enumerate(zip(x.shape, update.shape, strict=True)):
        if size == dim:
            made = combined([x.axes[axis], update.axes[axis]])
            if isinstance(made, Refusal):
                return made
            axes[axis] = x.factors(axis) if made is None or x.axes[axis] is None else made
            continue
        for side in (x, update):
            clash = side.clashing([axis])
            if clash is not None:
                return clash
        axes[axis] = x.factors(axis)
        if update.is_padded(axis):
            cut.append(axis)
        elif x.is_padded(axis):
            values[axis] = _at_most(ctx, values[axis], dim - size)
    if not cut:
        return ctx.remade(node, [x.value, update.value, *values], axes)
    # The padding of the update must leave what is there: room behind x, and a choice by mask.
    wide, room = x.value, [0] * len(x.shape)
    for axis in cut:
        room[axis] = ctx.size(update.shape[axis])
        values[axis] = Max()(
            _at_most(ctx, values[axis], x.shape[axis] - update.shape[axis]),
            scalar(0, values[axis].type.dtype),
        )
    none = (0,) * len(room)
    wide = Pad(low=none, high=tuple(room), interior=none)(wide, scalar(0, wide.type.dtype))
    there: Value = DynamicSlice(sizes=ctx.shape(update.shape))(wide, *values)
    mask = ctx.mask(update, cut)
    assert mask is not None
    chosen = Select()(mask, update.value, there)
    written: Value = make_node(node.op, [wide, chosen, *values], node.location).results[0]
    sizes = ctx.shape(x.shape)
    back: Value = Slice(start_indices=none, limit_indices=sizes, strides=(1,) * len(sizes))(written)
    return ctx.results(node, [back], [axes])


@pads(GatherGeneral)
def gather_general(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, GatherGeneral)
    x, indices = inputs
    if indices.is_padded(len(indices.shape) - 1):
        return Refusal("the axis of index components is padded")
    dropped = {*op.collapsed_slice_dims, *op.operand_batching_dims}
    limits: dict[int, Dim] = {}
    room: dict[int, int] = {}
    window: list[Axis] = []
    for axis, (dim, size) in enumerate(zip(x.shape, op.slice_sizes, strict=True)):
        if axis in op.operand_batching_dims:
            pair = op.start_indices_batching_dims[op.operand_batching_dims.index(axis)]
            made = combined([x.axes[axis], indices.axes[pair]])
            if isinstance(made, Refusal):
                return made
            continue
        if size == dim:
            if axis not in dropped:
                window.append(x.axes[axis])
            continue
        clash = x.clashing([axis])
        if clash is not None:
            return clash
        moves = not isinstance(size, int) and not ctx.grows(dim - size)
        if moves and not _is_zero(indices.value):
            room[axis] = ctx.size(size)  # a padded window may begin later than one fits
        if (room.get(axis) or x.is_padded(axis)) and axis in op.start_index_map:
            limits[op.start_index_map.index(axis)] = dim - size
        if axis not in dropped:
            window.append((size,))
    batch = list(indices.axes[:-1])
    rank = len(node.types[0].shape)
    axes = [window.pop(0) if a in op.offset_dims else batch.pop(0) for a in range(rank)]
    places = indices.value
    if limits:  # a broken promise is clipped, as XLA does
        places = _limited(ctx, places, limits, op.mode)
    return ctx.remade(node, [_with_room(x.value, room), places], axes)


def _with_room(x: Value, room: Mapping[int, int]) -> Value:
    """X with more places behind the last ones of some axes."""
    if not room:
        return x
    none = (0,) * x.rank
    high = tuple(room.get(axis, 0) for axis in range(x.rank))
    return Pad(low=none, high=high, interior=none)(x, scalar(0, x.type.dtype))


def _is_zero(value: Value) -> bool:
    """Whether a value is known to be zero everywhere."""
    while isinstance(value.node.op, BroadcastInDim | Reshape | Convert):
        value = value.node.inputs[0]
    op = value.node.op
    return isinstance(op, Constant) and not np.any(op.value.array)


def _limited(ctx: Padding, indices: Value, limits: dict[int, Dim], mode: IndexMode) -> Value:
    """Index components that are at most a limit, or far outside where the mode drops them."""
    dtype = indices.type.dtype
    if dtype.bits < 32:
        dtype = DType.I32
        indices = Convert(dtype=dtype)(indices)
    most = highest(dtype)
    count = indices.type.shape[-1]
    assert isinstance(count, int)
    parts = [
        ctx.number(limits[c], dtype) if c in limits else scalar(most, dtype) for c in range(count)
    ]
    row: Value = Concatenate(axis=0)(*(p.reshape((1,)) for p in parts))
    limit = broadcast_to(row, indices.type.shape)
    if mode is not IndexMode.FILL_OR_DROP:
        return Min()(indices, limit)
    far = broadcast_to(scalar(most, dtype), indices.type.shape)
    return Select()(Compare(direction=Direction.GT)(indices, limit), far, indices)


@pads(ScatterGeneral)
def scatter_general(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, ScatterGeneral)
    x, indices, updates = inputs
    if indices.is_padded(len(indices.shape) - 1):
        return Refusal("the axis of index components is padded")
    outside = {*op.inserted_window_dims, *op.operand_batching_dims}
    windows = dict(
        zip(
            (a for a in range(len(x.shape)) if a not in outside), op.update_window_dims, strict=True
        )
    )
    limits: dict[int, Dim] = {}
    axes: list[Axis] = [x.factors(a) for a in range(len(x.shape))]
    for axis, dim in enumerate(x.shape):
        if axis in op.operand_batching_dims:
            pair = op.scatter_indices_batching_dims[op.operand_batching_dims.index(axis)]
            made = combined([x.axes[axis], indices.axes[pair]])
            if isinstance(made, Refusal):
                return made
            continue
        size: Dim = updates.shape[windows[axis]] if axis in windows else 1
        if size == dim and axis in windows:
            made = combined([x.axes[axis], updates.axes[windows[axis]]])
            if isinstance(made, Refusal):
                return made
            continue
        if not isinstance(size, int):
            return Refusal(f"axis {axis} is written in windows whose size moves")
        clash = x.clashing([axis])
        if clash is not None:
            return clash
        if x.is_padded(axis) and axis in op.scatter_dims_to_operand_dims:
            limits[op.scatter_dims_to_operand_dims.index(axis)] = dim - size
    batch = [a for a in range(len(updates.shape)) if a not in op.update_window_dims]
    loose = [a for a in batch if updates.is_padded(a)]
    shape = indices.shape[:-1]
    if any(updates.shape[a] != d for a, d in zip(batch, shape, strict=True)):
        return Refusal("indices and updates are padded differently")
    for a, b in zip(batch, range(len(shape)), strict=True):
        made = combined([updates.axes[a], indices.axes[b]])
        if isinstance(made, Refusal):
            return made
    paired = {batch[b] for b in op.scatter_indices_batching_dims}  # whose padding meets x's own
    if not op.scatter_dims_to_operand_dims and not paired.issuperset(loose):
        return Refusal("updates that are padding have no index component that moves them out")
    values = [x.value, indices.value, updates.value]
    changed: dict[str, Any] = {}
    clips = op.mode is IndexMode.CLIP
    if loose and clips:  # all are moved inside here, and updates that are padding out again
        for number, axis in enumerate(op.scatter_dims_to_operand_dims):
            size = updates.shape[windows[axis]] if axis in windows else 1
            limits[number] = x.shape[axis] - size
    if limits:  # a broken promise writes nothing, as XLA does
        mode = IndexMode.CLIP if clips else IndexMode.FILL_OR_DROP
        values[1] = _limited(ctx, values[1], limits, mode)
    if loose:
        places = values[1]
        if places.type.dtype.bits < 32:  # whose largest number may be a place of x
            places = Convert(dtype=DType.I32)(places)
        if clips:
            places = Max()(places, broadcast_to(scalar(0, places.type.dtype), places.shape))
        kept = Padded(
            places,
            indices.shape,
            (
                *(
                    indices.axes[b] if updates.axes[a] is None else updates.axes[a]
                    for a, b in zip(batch, range(len(shape)), strict=True)
                ),
                indices.axes[-1],
            ),
        )
        far = scalar(highest(places.type.dtype), places.type.dtype)
        values[1] = ctx.filled(kept, range(len(shape)), far)
        changed = {
            "mode": IndexMode.FILL_OR_DROP,
            "indices_are_sorted": False,
            "unique_indices": False,
        }
    bound = ctx.bound(op)
    return ctx.remade(node, values, axes, bound.replace(**changed) if changed else bound)
