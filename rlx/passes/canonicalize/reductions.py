"""Reductions that combine nothing, and running ones that leave out their own element."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.graph import Node, Value
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rule, rule
from rlx.ops.reduction import (
    CumLogSumExp,
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
)
from rlx.ops.reduction.numbers import highest, lowest
from rlx.ops.shape import Pad, Reshape


@rule(ReduceMax, ReduceMin, ReduceAnd, ReduceOr, ReduceXor)
def reduce_of_one(node: Node) -> Value | None:
    """Over axes of size 1 the only element is the result, NaN and −0 included."""
    return _without_axes(node)


@rule(ReduceProd)
def product_of_one(node: Node) -> Value | None:
    """1 is neutral for real numbers; a complex product mixes the parts."""
    return None if node.types[0].dtype.is_complex else _without_axes(node)


@rule(ReduceSum)
def sum_of_one(node: Node) -> Value | None:
    """0 is neutral for integers; for floats the sum would make −0 to +0."""
    return _without_axes(node) if node.types[0].dtype.is_integer else None


@rule(CumSum, CumProd, CumMax, CumMin, CumLogSumExp)
def exclusive(node: Node) -> Value | None:
    """Leaving out an element is to shift the input by one, what is neutral coming in.

    XLA and our kernels have a fast way for the plain form only.
    """
    (x,) = node.inputs
    attributes = node.op.attributes()
    if not attributes["exclusive"] or x.rank == 0:
        return None
    dtype = x.dtype
    neutral: Any = 1 if isinstance(node.op, CumProd) else 0
    if isinstance(node.op, CumMax | CumLogSumExp):
        neutral = lowest(dtype)
    elif isinstance(node.op, CumMin):
        neutral = highest(dtype)
    before, after = [0] * x.rank, [0] * x.rank
    side, other = (after, before) if attributes["reverse"] else (before, after)
    side[attributes["axis"]], other[attributes["axis"]] = 1, -1
    shift = Pad(low=tuple(before), high=tuple(after), interior=(0,) * x.rank)
    shifted: Value = shift(x, constant(np.asarray(neutral, dtype.numpy)))
    made: Value = node.op.replace(exclusive=False)(shifted)
    return made


def _without_axes(node: Node) -> Value | None:
    x = node.inputs[0]
    axes: tuple[int, ...] = node.op.attributes()["axes"]
    if any(x.type.shape[axis] != 1 for axis in axes):
        return None
    made: Value = Reshape(shape=node.types[0].shape)(x) if axes else x
    return made


RULES: tuple[Rule, ...] = (reduce_of_one, product_of_one, sum_of_one, exclusive)
