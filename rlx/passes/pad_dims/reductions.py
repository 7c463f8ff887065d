"""Padding of ops that take elements of an axis together: the padding gets what does not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Node, Value, make_node
from rlx.ops.bitwise import Xor
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convert import BitcastConvert
from rlx.ops.dot import DotGeneral, Matmul
from rlx.ops.indexing import GatherElements
from rlx.ops.normalization import LogSoftmax, Softmax
from rlx.ops.reduction import (
    Argmax,
    Argmin,
    CumLogSumExp,
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    LogSumExp,
    Mean,
    Reduce,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
)
from rlx.ops.reduction.numbers import highest, lowest
from rlx.ops.sorting import Sort, TopK, TopNan
from rlx.passes.pad_dims.context import Padding, Results, pads, scalar
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, combined

Identity = Callable[[DType], Any]


def _zero(dtype: DType) -> Any:
    return np.zeros((), dtype.numpy)


def _one(dtype: DType) -> Any:
    return np.ones((), dtype.numpy)


def _ones(dtype: DType) -> Any:
    return np.True_ if dtype is DType.BOOL else np.asarray(-1).astype(dtype.numpy)


_IDENTITY: dict[type, Identity] = {
    ReduceSum: _zero,
    ReduceProd: _one,
    ReduceMax: lowest,
    ReduceMin: highest,
    ReduceAnd: _ones,
    ReduceOr: _zero,
    ReduceXor: _zero,
    CumSum: _zero,
    CumProd: _one,
    CumMax: lowest,
    CumMin: highest,
    CumLogSumExp: lowest,
    Argmax: lowest,
    Argmin: highest,
    LogSumExp: lowest,
    Softmax: lowest,
    LogSoftmax: lowest,
}
"""What may be added to the elements of an axis without changing the result."""


@pads(ReduceSum, ReduceProd, ReduceMax, ReduceMin, ReduceAnd, ReduceOr, ReduceXor)
def reduce(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    axes: tuple[int, ...] = node.op.attributes()["axes"]
    filled = ctx.filled(x, axes, _IDENTITY[type(node.op)](x.value.type.dtype))
    return ctx.remade(node, [filled], _without(x, axes))


@pads(Reduce)
def reduce_general(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Reduce)
    if any(x.is_padded(a) for x in inputs[: len(inputs) // 2] for a in op.axes):
        return Refusal("nothing is known to leave this reduction unchanged")
    axes = _without(inputs[0], op.axes)
    return ctx.remade(node, [x.value for x in inputs], axes)


@pads(Mean)
def mean(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Mean)
    (x,) = inputs
    if any(x.is_padded(a) for a in op.axes):
        return expanded(ctx, node, inputs)  # the sum is divided by the actual count
    return ctx.remade(node, [x.value], _without(x, op.axes))


@pads(LogSumExp)
def logsumexp(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, LogSumExp)
    (x,) = inputs
    filled = ctx.filled(x, [op.axis], lowest(x.value.type.dtype))
    return ctx.remade(node, [filled], _without(x, [op.axis]))


@pads(Softmax, LogSoftmax)
def softmax(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    axis: int = node.op.attributes()["axis"] % len(x.shape)
    filled = ctx.filled(x, [axis], lowest(x.value.type.dtype))
    made = ctx.remade(node, [filled], _concrete(x, axis))
    least = lowest(x.value.type.dtype)
    if isinstance(node.op, LogSoftmax) or isinstance(made, Refusal) or not np.isneginf(least):
        return made
    # exp(−inf) = 0: a product that sums over this axis needs no mask.
    return [replace(y, zeros=frozenset({axis})) for y in made]


@pads(Argmax, Argmin)
def argmax(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    attributes = node.op.attributes()
    axis: int = attributes["axis"]
    clash = x.clashing([axis])
    if clash is not None:
        return clash
    filled = ctx.filled(x, [axis], _IDENTITY[type(node.op)](x.value.type.dtype))
    return ctx.remade(node, [filled], _without(x, [axis]))


@pads(CumSum, CumProd, CumMax, CumMin, CumLogSumExp)
def cumulative(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    attributes = node.op.attributes()
    axis: int = attributes["axis"]
    clash = x.clashing([axis])
    if clash is not None:
        return clash
    value = x.value
    if attributes["reverse"]:  # runs through the padding first
        value = ctx.filled(x, [axis], _IDENTITY[type(node.op)](value.type.dtype))
    return ctx.remade(node, [value], _concrete(x, axis))


@pads(Sort)
def sort(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Sort)
    axes: list[Axis] = []
    for axis in range(len(inputs[0].shape)):
        made = combined([x.axes[axis] for x in inputs])
        if isinstance(made, Refusal):
            return made
        axes.append(made)
    first = Padded(inputs[0].value, inputs[0].shape, tuple(axes))
    clash = first.clashing([op.axis])
    if clash is not None:
        return clash
    axes[op.axis] = first.factors(op.axis)
    values = [x.value for x in inputs]
    mask = ctx.mask(first, [op.axis])
    if mask is None:
        return ctx.remade(node, values, axes)
    # NaN comes last among the elements, so no element's value can say "behind them": a key does.
    outside = Select()(mask, _full(mask, 0), _full(mask, 1))
    made = make_node(op.replace(num_keys=op.num_keys + 1), [outside, *values], node.location)
    return ctx.results(node, made.results[1:], [axes] * len(node.types))


def _full(like: Value, number: int) -> Value:
    return scalar(number, DType.I32).broadcast_to(like.type.shape)


@pads(TopK)
def top_k(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, TopK)
    (x,) = inputs
    axis = len(x.shape) - 1
    clash = x.clashing([axis])
    if clash is not None:
        return clash
    axes = (*x.axes[:-1], (op.k,))
    dtype = x.value.type.dtype
    if not x.is_padded(axis) or not dtype.is_float or op.nan is not TopNan.LARGEST:
        filled = ctx.filled(x, [axis], lowest(dtype))
        return ctx.remade(node, [filled], axes)
    if dtype not in _BITS:
        return Refusal(f"the order of {dtype} has no integers of its width")
    # Of floats in total order −NaN is the least, below −inf: the order is that of integers.
    whole = _BITS[dtype]
    bits: Value = BitcastConvert(dtype=whole)(x.value)
    most = scalar(highest(whole), whole).broadcast_to(bits.type.shape)
    zero = scalar(0, whole).broadcast_to(bits.type.shape)
    keys = Select()(Compare(direction=Direction.LT)(bits, zero), Xor()(bits, most), bits)
    filled = ctx.filled(Padded(keys, x.shape, x.axes), [axis], lowest(whole))
    _, places = make_node(TopK(k=op.k), [filled], node.location).results
    picked: Value = GatherElements(axis=axis)(x.value, places)
    return ctx.results(node, [picked, places], [axes, axes])


_BITS = {
    DType.F64: DType.I64,
    DType.F32: DType.I32,
    DType.F16: DType.I16,
    DType.BF16: DType.I16,
}


@pads(DotGeneral)
def dot_general(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, DotGeneral)
    lhs, rhs = inputs
    pairs = zip(op.lhs_contracting, op.rhs_contracting, strict=True)
    for left, right in pairs:
        made = combined([lhs.axes[left], rhs.axes[right]])
        if isinstance(made, Refusal):
            return made
    batch: list[Axis] = []
    for left, right in zip(op.lhs_batch, op.rhs_batch, strict=True):
        made = combined([lhs.axes[left], rhs.axes[right]])
        if isinstance(made, Refusal):
            return made
        batch.append(made)
    lhs, rhs = _agreed(lhs, op.lhs_contracting, rhs, op.rhs_contracting)
    values = [
        ctx.filled(lhs, op.lhs_contracting, _zero(lhs.value.type.dtype)),
        ctx.filled(rhs, op.rhs_contracting, _zero(rhs.value.type.dtype)),
    ]
    left = [e for a, e in enumerate(lhs.axes) if a not in (*op.lhs_contracting, *op.lhs_batch)]
    right = [e for a, e in enumerate(rhs.axes) if a not in (*op.rhs_contracting, *op.rhs_batch)]
    return ctx.remade(node, values, [*batch, *left, *right])


def _agreed(
    lhs: Padded, left: Sequence[int], rhs: Padded, right: Sequence[int]
) -> tuple[Padded, Padded]:
    """Both operands with one layout of the axes that are summed, where one holds the same."""
    mine, other = list(lhs.axes), list(rhs.axes)
    for a, b in zip(left, right, strict=True):
        found = mine[a] if mine[a] is not None else other[b]
        mine[a] = other[b] = found
    return (
        replace(lhs, axes=tuple(mine)),
        replace(rhs, axes=tuple(other)),
    )


@pads(Matmul)
def matmul(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    lhs, rhs = inputs
    if len(rhs.shape) == 2 and len(lhs.shape) >= 2:
        made = combined([lhs.axes[-1], rhs.axes[0]])
        if isinstance(made, Refusal):
            return made
        last = len(lhs.shape) - 1
        lhs, rhs = _agreed(lhs, [last], rhs, [0])
        values = [
            ctx.filled(lhs, [last], _zero(lhs.value.type.dtype)),
            ctx.filled(rhs, [0], _zero(rhs.value.type.dtype)),
        ]
        return ctx.remade(node, values, [*lhs.axes[:-1], rhs.axes[1]])
    return expanded(ctx, node, inputs)


def expanded(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    """Carry out an op by what it is made of."""
    from rlx.passes.pad_dims.walk import decomposed

    return decomposed(ctx, node, inputs)


def _without(x: Padded, axes: Sequence[int]) -> list[Axis]:
    return [e for a, e in enumerate(x.axes) if a not in axes]


def _concrete(x: Padded, axis: int) -> list[Axis]:
    """The layout where what was the same along an axis no longer is."""
    return [x.factors(axis) if a == axis else e for a, e in enumerate(x.axes)]
