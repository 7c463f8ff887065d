"""Transposes that a convolution can do without moving elements."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.io import Constant, Param
from rlx.ops.shape import Transpose

_DEVICES = ("cpu", "cuda", "rocm", "tpu")


def rules(platform: str) -> Sequence[Rule]:
    """The rules for a platform.

    On a device a weight stays turned, since the prepare stage turns it once where XLA would at
    every call. On CPUs a convolution keeps a layout that kernels take.
    """

    @rule(ConvGeneralDilated)
    def fold_transpose_into_convolution(node: Node) -> Value | None:
        """The axes are named where they lie: the same products are summed, nothing is copied."""
        op = node.op
        if not isinstance(op, ConvGeneralDilated):
            return None
        lhs, rhs = node.inputs
        left, right = lhs.node.op, rhs.node.op
        changes: dict[str, tuple[int, ...]] = {}
        if isinstance(left, Transpose):
            lhs = lhs.node.inputs[0]
            changes["lhs_spec"] = tuple(left.permutation[axis] for axis in op.lhs_spec)
        if isinstance(right, Transpose):
            weight = rhs.node.inputs[0]
            if platform not in _DEVICES or not isinstance(weight.node.op, Param | Constant):
                rhs = weight
                changes["rhs_spec"] = tuple(right.permutation[axis] for axis in op.rhs_spec)
        if not changes:
            return None
        made = op.replace(**changes)
        assert isinstance(made, ConvGeneralDilated)
        if platform == "cpu" and _is_plain(op) and not _is_plain(made):
            return None
        result: Value = made(lhs, rhs)
        return result

    return (fold_transpose_into_convolution,)


def _is_plain(op: ConvGeneralDilated) -> bool:
    """Whether channels are first, or last, in both operands and the result."""
    rank = len(op.lhs_spec)
    first = tuple(range(rank))
    last = (0, rank - 1, *range(1, rank - 1))
    kernel = (rank - 1, rank - 2, *range(rank - 2))
    return (op.lhs_spec, op.rhs_spec, op.out_spec) in ((first,) * 3, (last, kernel, last))
