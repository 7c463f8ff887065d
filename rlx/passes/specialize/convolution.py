"""Convolutions with many small groups, as sums of shifted products.

XLA's CPU convolves each group on its own, one element at a time. Written as one product for each
place of the kernel, the whole sum becomes a single loop in vector lanes. Where the device has a
kernel for such a convolution it is left to that: XLA compiles each of these loops for 25 ms (5 by
the flags of ``rlx_xla.runtime.flags``), and runs a kernel of 5×5 places in thrice the time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Literal
from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.arithmetic import Add, Mul
from rlx.ops.convert import Convert
from rlx.ops.convolution import Conv, ConvGeneralDilated
from rlx.ops.dot import accumulator
from rlx.ops.io import Constant
from rlx.ops.reduction import ReduceSum
from rlx.ops.shape import BroadcastInDim, Concatenate, Pad, Reshape, Reverse, Slice, Transpose
from rlx.passes.base import PassContext
from rlx.types import Dim

MAX_GROUP_FEATURES = 4
"""Most input features of a group; with more, XLA's product of matrices does better."""

MAX_TERMS = 128
"""Most products of one sum, which all stand in one loop."""

MAX_LAID_OUT = 1 << 24
"""Most bytes of what the places of a kernel meet that are laid out at once for its gradient."""


@rule(Conv)
def grouped_conv(node: Node) -> Value | None:
    """Convolution in many small groups taken apart."""
    op = node.op
    if not isinstance(op, Conv) or op.groups == 1:
        return None
    made: Value = op.decompose(*node.inputs)
    return made


def rules(ctx: PassContext) -> tuple[Rule, ...]:
    """The rule for what no kernel of the device carries out as fast."""

    @rule(ConvGeneralDilated)
    def apart(node: Node) -> Value | None:
        op = node.op
        if not isinstance(op, ConvGeneralDilated) or not _fits(op, node):
            return None
        if ctx.has_kernel is not None and _is_depthwise(op, node) and ctx.has_kernel(node):
            return None
        return small_groups(node)

    apart.__doc__ = small_groups.__doc__  # whose first line is what a report says
    return (apart,)


def _is_depthwise(op: ConvGeneralDilated, node: Node) -> bool:
    """Whether each channel, the last axis, has one kernel of its own.

    Measured by ``bench_kernels``, 28×28×240 with 5×5 places in f32: 0.12 ms by the kernel, 0.44 as
    one loop; with 3×3 places they are alike, in bf16 too (a MobileNet's seven layers: 0.87 and
    0.86 ms), and the kernel saves the loops' compile, a sixth of that model's.
    """
    lhs, rhs = (v.type for v in node.inputs)
    outputs, features = rhs.shape[op.rhs_spec[0]], rhs.shape[op.rhs_spec[1]]
    last = op.lhs_spec[1] == lhs.rank - 1
    return last and features == 1 and outputs == op.feature_group_count


def small_groups(node: Node) -> Value | None:
    """Convolution in many small groups as shifted products.

    Measured by ``bench_specialize``: depthwise 3×3 on 56×56×144 in 0.23 ms where XLA's own takes
    8.6, and no shape that was tried lost.
    """
    op = node.op
    if not isinstance(op, ConvGeneralDilated) or not _fits(op, node):
        return None
    lhs, rhs = node.inputs
    result = node.types[0]
    wide = accumulator(lhs.type.dtype, rhs.type.dtype, result.dtype)
    total: Value | None = None
    for part, weight in _terms(op, padded(op, _converted(lhs, wide)), rhs, result.shape):
        axes = tuple(op.lhs_spec[1] + i for i in range(weight.rank))
        weights = BroadcastInDim(shape=part.type.shape, broadcast_dimensions=axes)(weight)
        product: Value = Mul()(part, weights)
        total = product if total is None else Add()(total, product)
    if total is None:
        return None
    return _placed(op, total, node)


@rule(ConvGeneralDilated)
def weight_gradient(node: Node) -> Value | None:
    """Weight gradient of a depthwise convolution as sums of shifted products.

    Measured by ``bench_specialize``: kernel 3×3 with stride 2 on 8×28×28×96 in 0.5 ms where XLA's
    own takes 5.0. What the places meet is laid out at once where that takes no more than
    ``MAX_LAID_OUT`` bytes: one loop to compile, not one for each place (36 ms and 130 for 3×3), and
    as fast or faster up to there.
    """
    op = node.op
    if not isinstance(op, ConvGeneralDilated) or not _is_weight_gradient(op, node):
        return None
    lhs, rhs = node.inputs
    wide = accumulator(lhs.type.dtype, rhs.type.dtype, node.types[0].dtype)
    source, rhs = padded(op, _converted(lhs, wide)), _converted(rhs, wide)
    # rhs with its axes where lhs has those that they meet.
    order = tuple(op.rhs_spec[op.lhs_spec.index(axis)] for axis in range(lhs.rank))
    window: Value = Transpose(permutation=order)(rhs)
    places = sizes([node.types[0].shape[axis] for axis in op.out_spec[2:]])
    met = math.prod((*sizes(window.type.shape), *places)) * wide.bits // 8
    made = (_sum_at_once if met <= MAX_LAID_OUT else _sums_by_place)(op, source, window, places)
    return _converted(made, node.types[0].dtype)


def _sum_at_once(
    op: ConvGeneralDilated, source: Value, window: Value, places: Sequence[int]
) -> Value:
    """The weight gradient as one sum over all that the places meet."""
    axes: list[int] = list(range(source.rank))  # where each axis of lhs is; its place is before it
    for axis, count, stride, dilation in zip(
        op.lhs_spec[2:], places, op.window_strides, op.rhs_dilation, strict=True
    ):
        (along,) = sizes([window.type.shape[axis]])
        source = _shifted(source, axes[axis], count, stride, along, dilation)
        axes = [at + (at >= axes[axis]) for at in axes]
    met: Value = BroadcastInDim(shape=source.type.shape, broadcast_dimensions=tuple(axes))(window)
    group = axes[op.lhs_spec[0]]
    total: Value = ReduceSum(axes=tuple(at for at in axes if at != group))(Mul()(source, met))
    # What is left, in order: the places of each axis and the groups; the result has a 1 as well.
    left = sorted([group, *(axes[axis] - 1 for axis in op.lhs_spec[2:])])
    wanted = [0] * len(op.out_spec)
    wanted[op.out_spec[1]] = group
    for place, axis in zip(op.out_spec[2:], op.lhs_spec[2:], strict=True):
        wanted[place] = axes[axis] - 1
    del wanted[op.out_spec[0]]
    turned: Value = Transpose(permutation=tuple(left.index(at) for at in wanted))(total)
    shape = list(turned.type.shape)
    shape.insert(op.out_spec[0], 1)
    made: Value = Reshape(shape=tuple(shape))(turned)
    return made


def _shifted(x: Value, axis: int, count: int, shift: int, along: int, step: int) -> Value:
    """[…, i, j, …] = x[…, i · shift + j · step, …] for i < count, j < along, in place of ``axis``.

    Copies of x one after another, cut into rows that are ``shift`` longer than it: one loop that
    is all index arithmetic, where a concatenation would be a loop with a branch for each row.
    """
    shape = sizes(x.type.shape)
    before, n, after = shape[:axis], shape[axis], shape[axis + 1 :]
    row = n + shift
    copies = -(-count * row // n)
    spread = tuple(i if i < axis else i + 1 for i in range(x.rank))
    made: Value = BroadcastInDim(shape=(*before, copies, n, *after), broadcast_dimensions=spread)(x)
    made = Reshape(shape=(*before, copies * n, *after))(made)
    made = _cut(made, axis, count * row)
    made = Reshape(shape=(*before, count, row, *after))(made)
    return _cut(made, axis + 1, (along - 1) * step + 1, step)


def _cut(x: Value, axis: int, limit: int, step: int = 1) -> Value:
    limits, steps = list(sizes(x.type.shape)), [1] * x.rank
    limits[axis], steps[axis] = limit, step
    made: Value = Slice(
        start_indices=(0,) * x.rank, limit_indices=tuple(limits), strides=tuple(steps)
    )(x)
    return made


def _sums_by_place(
    op: ConvGeneralDilated, source: Value, window: Value, places: Sequence[int]
) -> Value:
    """The weight gradient as one sum for each place."""
    group_axis = op.lhs_spec[0]
    summed = tuple(axis for axis in range(source.rank) if axis != group_axis)
    sums: list[Value] = []
    for offsets in itertools.product(*(range(n) for n in places)):
        start, limit = [0] * source.rank, list(sizes(source.type.shape))
        strides = [1] * source.rank
        for axis, offset, stride, dilation in zip(
            op.lhs_spec[2:], offsets, op.window_strides, op.rhs_dilation, strict=True
        ):
            (count,) = sizes([window.type.shape[axis]])
            start[axis] = offset * stride
            limit[axis] = start[axis] + (count - 1) * dilation + 1
            strides[axis] = dilation
        seen: Value = Slice(
            start_indices=tuple(start), limit_indices=tuple(limit), strides=tuple(strides)
        )(source)
        total: Value = ReduceSum(axes=summed)(Mul()(seen, window))
        sums.append(Reshape(shape=(op.batch_group_count, 1))(total))
    joined: Value = sums[0] if len(sums) == 1 else Concatenate(axis=1)(*sums)
    stacked: Value = Reshape(shape=(1, op.batch_group_count, *places))(joined)
    place = tuple(op.out_spec.index(axis) for axis in range(source.rank))
    made: Value = Transpose(permutation=place)(stacked)
    return made


def _is_weight_gradient(op: ConvGeneralDilated, node: Node) -> bool:
    """One row of the batch and one output feature for each group; few places in the result."""
    lhs, rhs = (v.type for v in node.inputs)
    result = node.types[0]
    if not (lhs.is_static and rhs.is_static) or not lhs.dtype.is_float:
        return False
    if op.batch_group_count == 1 or not all((*lhs.shape, *rhs.shape, *result.shape)):
        return False
    batch, outputs = lhs.shape[op.lhs_spec[0]], rhs.shape[op.rhs_spec[0]]
    places = math.prod(sizes([result.shape[axis] for axis in op.out_spec[2:]]))
    return batch == outputs == op.batch_group_count and places <= MAX_TERMS


def _converted(value: Value, dtype: DType) -> Value:
    return value if value.type.dtype is dtype else Convert(dtype=dtype)(value)


def sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    """The sizes of a static shape."""
    return tuple(size for size in shape if isinstance(size, int))


def _fits(op: ConvGeneralDilated, node: Node) -> bool:
    lhs, rhs = (v.type for v in node.inputs)
    static = lhs.is_static and rhs.is_static and node.types[0].is_static
    if not static or op.feature_group_count == 1 or not lhs.dtype.is_float:
        return False
    if not all(node.types[0].shape) or not all(lhs.shape):
        return False
    _, features, *window = sizes([rhs.shape[i] for i in op.rhs_spec])
    return features <= MAX_GROUP_FEATURES and features * math.prod(window) <= MAX_TERMS


def padded(op: ConvGeneralDilated, lhs: Value) -> Value:
    """The input, in its own layout, dilated and padded with zeros."""
    low, high, interior = [0] * lhs.rank, [0] * lhs.rank, [0] * lhs.rank
    for axis, amounts, dilation in zip(op.lhs_spec[2:], op.padding, op.lhs_dilation, strict=True):
        low[axis], high[axis] = sizes(amounts)
        interior[axis] = dilation - 1
    if not any((*low, *high, *interior)):
        return lhs
    zero: Value = Constant(value=Literal(np.zeros((), lhs.type.dtype.numpy)))()
    made: Value = Pad(low=tuple(low), high=tuple(high), interior=tuple(interior))(lhs, zero)
    return made


def _terms(
    op: ConvGeneralDilated, lhs: Value, rhs: Value, result: Sequence[Dim]
) -> list[tuple[Value, Value]]:
    """For each place of the kernel and input feature of a group: what it meets, its weights.

    The first has lhs's layout with the axes of ``_grouped`` for the feature axis, which are those
    of the second. Weights are cut out where they lie, a kernel that was reversed (as for the
    gradient of an input) from its other end: the plain emitters of XLA's CPU take three times as
    long over a sum with the index arithmetic of a reverse and a transpose in it.
    """
    groups = op.feature_group_count
    flipped: frozenset[int] = frozenset()
    if isinstance(rhs.node.op, Reverse) and set(rhs.node.op.axes) <= set(op.rhs_spec[2:]):
        flipped = frozenset(rhs.node.op.axes)
        (rhs,) = rhs.node.inputs
    whole = sizes(rhs.type.shape)
    outputs, features, *window = (whole[i] for i in op.rhs_spec)
    per_group = outputs // groups
    wide = _converted(rhs, lhs.type.dtype)
    axis = op.lhs_spec[1]
    shape = list(lhs.type.shape)
    apart = features * per_group > 1
    split: Value = lhs
    if apart:
        split = Reshape(shape=(*shape[:axis], groups, features, *shape[axis + 1 :]))(lhs)
    spatial = [a if a < axis else a + apart for a in op.lhs_spec[2:]]
    places = sizes([result[a] for a in op.out_spec[2:]])
    terms: list[tuple[Value, Value]] = []
    for offsets in itertools.product(*(range(n) for n in window)):
        for feature in range(features):
            start, limit = [0] * split.rank, list(sizes(split.type.shape))
            strides = [1] * split.rank
            if apart:
                start[axis + 1], limit[axis + 1] = feature, feature + 1
            for place, offset, dilation, stride, count in zip(
                spatial, offsets, op.rhs_dilation, op.window_strides, places, strict=True
            ):
                start[place] = offset * dilation
                limit[place] = start[place] + (count - 1) * stride + 1
                strides[place] = stride
            seen: Value = Slice(
                start_indices=tuple(start), limit_indices=tuple(limit), strides=tuple(strides)
            )(split)
            if per_group > 1:
                stretched = list(seen.type.shape)
                stretched[axis + 1] = per_group
                seen = BroadcastInDim(
                    shape=tuple(stretched), broadcast_dimensions=tuple(range(seen.rank))
                )(seen)
            at, until = [0] * rhs.rank, list(whole)
            at[op.rhs_spec[1]], until[op.rhs_spec[1]] = feature, feature + 1
            for i, offset in zip(op.rhs_spec[2:], offsets, strict=True):
                at[i] = whole[i] - 1 - offset if i in flipped else offset
                until[i] = at[i] + 1
            weight: Value = Slice(
                start_indices=tuple(at), limit_indices=tuple(until), strides=(1,) * rhs.rank
            )(wide)
            terms.append((seen, Reshape(shape=_grouped(op, outputs, features))(weight)))
    return terms


def _grouped(op: ConvGeneralDilated, outputs: int, features: int) -> tuple[int, ...]:
    """What stands for the feature axis in a sum: (group, output feature of the group), or one."""
    groups = op.feature_group_count
    return (groups,) if outputs == groups and features == 1 else (groups, outputs // groups)


def _placed(op: ConvGeneralDilated, total: Value, node: Node) -> Value:
    """Join group and output feature, bring the axes into the result's order, round once."""
    made = total
    if total.rank > node.types[0].rank:
        axis = op.lhs_spec[1]
        shape = list(total.type.shape)
        features = node.types[0].shape[op.out_spec[1]]
        made = Reshape(shape=(*shape[:axis], features, *shape[axis + 2 :]))(total)
    place = [op.out_spec.index(i) for i in range(len(op.out_spec))]
    made = Transpose(permutation=tuple(op.lhs_spec[i] for i in place))(made)
    return _converted(made, node.types[0].dtype)


RULES: tuple[Rule, ...] = (grouped_conv, weight_gradient)
