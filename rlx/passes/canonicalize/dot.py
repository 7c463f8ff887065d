"""Transposes that a matrix product can do without moving elements."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.dot import DotGeneral, Matmul
from rlx.ops.shape import Transpose


@rule(DotGeneral)
def fold_transpose_into_dot(node: Node) -> Value | None:
    """The axes are named where they lie: the same products are summed, and nothing is copied.

    A transpose that changes the order of the result's axes stays.
    """
    op = node.op
    if not isinstance(op, DotGeneral):
        return None
    lhs, rhs = node.inputs
    left = _source(lhs, op.lhs_free(lhs.rank))
    right = _source(rhs, op.rhs_free(rhs.rank))
    if left is None and right is None:
        return None
    changes: dict[str, tuple[int, ...]] = {}
    if left is not None:
        lhs, permutation = left
        changes["lhs_contracting"] = _through(permutation, op.lhs_contracting)
        changes["lhs_batch"] = _through(permutation, op.lhs_batch)
    if right is not None:
        rhs, permutation = right
        changes["rhs_contracting"] = _through(permutation, op.rhs_contracting)
        changes["rhs_batch"] = _through(permutation, op.rhs_batch)
    made: Value = op.replace(**changes)(lhs, rhs)
    return made


@rule(Matmul)
def matmul_of_transpose(node: Node) -> Value | None:
    """A matmul of a transposed matrix becomes the general product, which takes any axis order."""
    op = node.op
    lhs, rhs = node.inputs
    transposed = any(isinstance(v.node.op, Transpose) for v in (lhs, rhs))
    if not isinstance(op, Matmul) or not transposed:
        return None
    made = op.decompose(lhs, rhs)
    product = made.node.op
    if not isinstance(product, DotGeneral):
        return None
    frees = (product.lhs_free(made.node.inputs[0].rank), product.rhs_free(made.node.inputs[1].rank))
    sources = zip(made.node.inputs, frees, strict=True)
    return made if any(_source(value, free) is not None for value, free in sources) else None


def _source(value: Value, free: Sequence[int]) -> tuple[Value, tuple[int, ...]] | None:
    """What is transposed, and how, if the order of the free axes survives without it."""
    op = value.node.op
    if not isinstance(op, Transpose):
        return None
    moved = _through(op.permutation, free)
    return (value.node.inputs[0], op.permutation) if list(moved) == sorted(moved) else None


def _through(permutation: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(permutation[axis] for axis in axes)


RULES: tuple[Rule, ...] = (fold_transpose_into_dot, matmul_of_transpose)
