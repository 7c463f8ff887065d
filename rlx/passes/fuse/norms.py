"""Norms of residual sums, and reshapes around norms."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.graph import Node, Value, make_node
from rlx.ops.arithmetic import Add
from rlx.ops.fused import FusedResidualLn, FusedResidualRmsNorm
from rlx.ops.fused.operands import DTYPES
from rlx.ops.normalization import LayerNorm, RmsNorm
from rlx.ops.shape import Reshape
from rlx.passes.fuse.forms import Fused, Uses, biased


def residual_ln(uses: Uses, node: Node) -> Fused | None:
    """layer_norm(x + residual), also with a bias in the sum."""
    op = node.op
    inputs = _residual(uses, node, LayerNorm)
    if inputs is None or not isinstance(op, LayerNorm):
        return None
    return Fused(FusedResidualLn(eps=op.eps), inputs)


def residual_rms_norm(uses: Uses, node: Node) -> Fused | None:
    """rms_norm(x + residual), also with a bias in the sum."""
    op = node.op
    inputs = _residual(uses, node, RmsNorm)
    if inputs is None or not isinstance(op, RmsNorm):
        return None
    return Fused(FusedResidualRmsNorm(eps=op.eps), inputs)


def rms_norm_reshape(uses: Uses, node: Node) -> Fused | None:
    """A norm whose leading axes are flattened afterwards is taken of the flattened operand."""
    if not isinstance(node.op, Reshape) or not uses.only(node.inputs[0]):
        return None
    norm = node.inputs[0].node
    op = norm.op
    x, shape = norm.inputs[0] if norm.inputs else node.inputs[0], node.types[0].shape
    if not isinstance(op, RmsNorm) or op.axis % x.rank != x.rank - 1:
        return None
    if not 0 < len(shape) < x.rank or shape[-1] != x.shape[-1]:
        return None

    def make(inputs: Sequence[Value]) -> Value:
        flat = make_node(Reshape(shape=shape), inputs[:1]).results[0]
        return make_node(op.replace(axis=len(shape) - 1), [flat, *inputs[1:]]).results[0]

    return Fused(op, norm.inputs, make)


def _residual(uses: Uses, node: Node, kind: type[LayerNorm | RmsNorm]) -> tuple[Value, ...] | None:
    """x, residual, gamma, beta and perhaps bias of a norm over the last axis."""
    op = node.op
    if not isinstance(op, kind):
        return None
    x, gamma, beta = node.inputs
    if op.axis % x.rank != x.rank - 1 or x.dtype not in DTYPES or not isinstance(x.node.op, Add):
        return None
    if not uses.only(x) or not x.dtype is gamma.dtype is beta.dtype:
        return None
    total, bias = x.node, ()
    found = biased(total, x.rank - 1) if x.rank > 1 else None
    if found is not None and isinstance(found[0].node.op, Add) and uses.only(found[0]):
        total, bias = found[0].node, (found[1],)
    first, second = total.inputs
    if not first.type == second.type == x.type:
        return None
    return (first, second, gamma, beta, *bias)
