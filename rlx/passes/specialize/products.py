"""Convolutions of integers and eight-bit floats on GPUs, as sums of products of matrices.

XLA hands convolutions to a library there that knows next to none of them, and refuses the rest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.arithmetic import Add
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.dot import DotGeneral, DotPrecision, accumulator
from rlx.ops.shape import Reshape, Slice, Transpose
from rlx.passes.specialize.convolution import padded, sizes

MAX_PLACES = 1024
"""Most places of a kernel, each a product of matrices."""


@rule(ConvGeneralDilated)
def convolution_by_products(node: Node) -> Value | None:
    """Convolution of integers or eight-bit floats as products of matrices."""
    op = node.op
    if not isinstance(op, ConvGeneralDilated):
        return None
    lhs, rhs = node.inputs
    result = node.types[0]
    static = lhs.type.is_static and rhs.type.is_static and result.is_static
    narrow = any(v.dtype.is_float and v.dtype.bits <= 8 for v in (lhs, rhs))
    if not static or not (result.dtype.is_integer or narrow) or not all(result.shape):
        return None
    wide = accumulator(lhs.dtype, rhs.dtype, result.dtype) if narrow else result.dtype
    if narrow:
        lhs, rhs = lhs.convert(wide), rhs.convert(wide)
    outputs, features, *window = sizes([rhs.shape[axis] for axis in op.rhs_spec])
    if math.prod(window) > MAX_PLACES or not math.prod(sizes(lhs.shape)):
        return None
    groups = op.groups
    x = _grouped(op, Transpose(permutation=op.lhs_spec)(padded(op, lhs)), features)
    weights: Value = Reshape(shape=(groups, outputs // groups, features, *window))(
        Transpose(permutation=op.rhs_spec)(rhs)
    )
    places = sizes([result.shape[axis] for axis in op.out_spec[2:]])
    product = DotGeneral(
        lhs_contracting=(2,),
        rhs_contracting=(2,),
        lhs_batch=(0,),
        rhs_batch=(0,),
        precision=(DotPrecision.HIGHEST,) * 2 if narrow else op.precision,
        preferred_element_type=wide,
    )
    total: Value | None = None
    for offsets in itertools.product(*(range(n) for n in window)):
        seen = _window(op, x, offsets, places)
        at = (0, 0, 0, *offsets)
        until = (groups, outputs // groups, features, *(n + 1 for n in offsets))
        part: Value = Slice(start_indices=at, limit_indices=until, strides=(1,) * weights.rank)(
            weights
        )
        made: Value = product(seen, Reshape(shape=(groups, outputs // groups, features))(part))
        total = made if total is None else Add()(total, made)
    return None if total is None else _placed(op, total, places, node).convert(result.dtype)


def _grouped(op: ConvGeneralDilated, x: Value, features: int) -> Value:
    """Group, batch, features of a group, places."""
    batch, _, *space = sizes(x.shape)
    if op.batch_group_count > 1:
        shape = (op.groups, batch // op.batch_group_count, features, *space)
        made: Value = Reshape(shape=shape)(x)
        return made
    split: Value = Reshape(shape=(batch, op.groups, features, *space))(x)
    return Transpose(permutation=(1, 0, *range(2, split.rank)))(split)


def _window(
    op: ConvGeneralDilated, x: Value, offsets: Sequence[int], places: Sequence[int]
) -> Value:
    """What one place of the kernel meets."""
    start = [offset * dilation for offset, dilation in zip(offsets, op.rhs_dilation, strict=True)]
    limit = [
        first + (count - 1) * stride + 1
        for first, count, stride in zip(start, places, op.window_strides, strict=True)
    ]
    made: Value = Slice(
        start_indices=(0, 0, 0, *start),
        limit_indices=(*x.shape[:3], *limit),
        strides=(1, 1, 1, *op.window_strides),
    )(x)
    return made


def _placed(op: ConvGeneralDilated, total: Value, places: Sequence[int], node: Node) -> Value:
    """From group, batch, places, feature of a group to the result's layout."""
    groups, batch, *_, per_group = sizes(total.shape)
    rank = len(places)
    order: Value = Transpose(permutation=(1, 0, rank + 2, *range(2, rank + 2)))(total)
    joined: Value = Reshape(shape=(batch, groups * per_group, *places))(order)
    place = tuple(op.out_spec.index(axis) for axis in range(len(node.types[0].shape)))
    made: Value = Transpose(permutation=place)(joined)
    return made


RULES: tuple[Rule, ...] = (convolution_by_products,)
