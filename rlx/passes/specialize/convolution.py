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
from rlx.ops.shape import BroadcastInDim, Concatenate, Pad, Reshape, Slice, Transpose
from rlx.passes.base import PassContext
from rlx.types import Dim

MAX_GROUP_FEATURES = 4
"""Most input features of a group; with more, XLA's product of matrices does better."""

MAX_TERMS = 128
"""Most products of one sum, which all stand in one loop."""


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
    lhs, rhs = _converted(lhs, wide), _converted(rhs, wide)
    total: Value | None = None
    for part, weight in _terms(op, padded(op, lhs), rhs, result.shape):
        axis = op.lhs_spec[1]
        weights = BroadcastInDim(shape=part.type.shape, broadcast_dimensions=(axis, axis + 1))(
            weight
        )
        product: Value = Mul()(part, weights)
        total = product if total is None else Add()(total, product)
    if total is None:
        return None
    return _placed(op, total, node)


@rule(ConvGeneralDilated)
def weight_gradient(node: Node) -> Value | None:
    """Weight gradient of a depthwise convolution as sums of shifted products.

    Measured by ``bench_specialize``: kernel 3×3 with stride 2 on 8×28×28×96 in 0.5 ms where XLA's
    own takes 5.0.
    """
    op = node.op
    if not isinstance(op, ConvGeneralDilated) or not _is_weight_gradient(op, node):
        return None
    lhs, rhs = node.inputs
    wide = accumulator(lhs.type.dtype, rhs.type.dtype, node.types[0].dtype)
    lhs, rhs = _converted(lhs, wide), _converted(rhs, wide)
    source = padded(op, lhs)
    # rhs with its axes where lhs has those that they meet.
    order = tuple(op.rhs_spec[op.lhs_spec.index(axis)] for axis in range(lhs.rank))
    window: Value = Transpose(permutation=order)(rhs)
    group_axis = op.lhs_spec[0]
    summed = tuple(axis for axis in range(lhs.rank) if axis != group_axis)
    places = sizes([node.types[0].shape[axis] for axis in op.out_spec[2:]])
    sums: list[Value] = []
    for offsets in itertools.product(*(range(n) for n in places)):
        start, limit = [0] * lhs.rank, list(sizes(source.type.shape))
        strides = [1] * lhs.rank
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
    place = tuple(op.out_spec.index(axis) for axis in range(lhs.rank))
    return _converted(Transpose(permutation=place)(stacked), node.types[0].dtype)


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

    The first has lhs's layout with (group, output feature of the group) for the feature axis, the
    second is [group, output feature of the group].
    """
    groups = op.feature_group_count
    order: Value = Transpose(permutation=op.rhs_spec)(rhs)
    outputs, features, *window = sizes(order.type.shape)
    per_group = outputs // groups
    weights: Value = Reshape(shape=(groups, per_group, features, *window))(order)
    axis = op.lhs_spec[1]
    shape = list(lhs.type.shape)
    split: Value = Reshape(shape=(*shape[:axis], groups, features, *shape[axis + 1 :]))(lhs)
    spatial = [a if a < axis else a + 1 for a in op.lhs_spec[2:]]
    places = sizes([result[a] for a in op.out_spec[2:]])
    terms: list[tuple[Value, Value]] = []
    for offsets in itertools.product(*(range(n) for n in window)):
        for feature in range(features):
            start, limit = [0] * split.rank, list(sizes(split.type.shape))
            strides = [1] * split.rank
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
            at = (0, 0, feature, *offsets)
            until = (groups, per_group, feature + 1, *(n + 1 for n in offsets))
            weight: Value = Slice(
                start_indices=at, limit_indices=until, strides=(1,) * weights.rank
            )(weights)
            terms.append((seen, Reshape(shape=(groups, per_group))(weight)))
    return terms


def _placed(op: ConvGeneralDilated, total: Value, node: Node) -> Value:
    """Join group and output feature, bring the axes into the result's order, round once."""
    axis = op.lhs_spec[1]
    shape = list(total.type.shape)
    features = node.types[0].shape[op.out_spec[1]]
    made: Value = Reshape(shape=(*shape[:axis], features, *shape[axis + 2 :]))(total)
    place = [op.out_spec.index(i) for i in range(len(op.out_spec))]
    made = Transpose(permutation=tuple(op.lhs_spec[i] for i in place))(made)
    return _converted(made, node.types[0].dtype)


RULES: tuple[Rule, ...] = (grouped_conv, weight_gradient)
