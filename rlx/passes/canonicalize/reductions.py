"""Reductions that combine nothing."""

from __future__ import annotations

from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.reduction import (
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
)
from rlx.ops.shape import Reshape


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


def _without_axes(node: Node) -> Value | None:
    x = node.inputs[0]
    axes: tuple[int, ...] = node.op.attributes()["axes"]
    if any(x.type.shape[axis] != 1 for axis in axes):
        return None
    made: Value = Reshape(shape=node.types[0].shape)(x) if axes else x
    return made


RULES: tuple[Rule, ...] = (reduce_of_one, product_of_one, sum_of_one)
