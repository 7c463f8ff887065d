"""Padding of ops that keep leading axes apart: each row is computed by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.graph import Node, make_node
from rlx.ir.op import Op
from rlx.ops.complex_fft import Fft
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.normalization import LayerNorm, RmsNorm
from rlx.ops.solve import (
    Cholesky,
    DenseSolve,
    Det,
    Eigh,
    LogDet,
    Lu,
    Qr,
    Svd,
    TriangularSolve,
)
from rlx.passes.pad_dims.context import Padding, Results, pads
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, combined, plain


@pads(LayerNorm, RmsNorm)
def norm(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    x = inputs[0]
    axis: int = node.op.attributes()["axis"] % len(x.shape)
    if x.is_padded(axis):
        from rlx.passes.pad_dims.walk import decomposed

        return decomposed(ctx, node, inputs)
    return ctx.remade(node, [v.value for v in inputs], x.axes)


def _matrix(op: Op) -> int:
    return 2


def _transformed(op: Op) -> int:
    assert isinstance(op, Fft)
    return len(op.fft_lengths)


_INNER: dict[type[Op], Callable[[Op], int]] = {
    Fft: _transformed,
    **dict.fromkeys(
        (Cholesky, DenseSolve, Det, Eigh, LogDet, Lu, Qr, Svd, TriangularSolve), _matrix
    ),
}
"""How many last axes are taken together."""


@pads(*_INNER)
def leading(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    count = _INNER[type(node.op)](node.op)
    outer = len(inputs[0].shape) - count
    for x in inputs:
        inner = range(outer, len(x.shape))
        if len(x.shape) < outer or any(x.is_padded(a) for a in inner):
            return Refusal("an axis that is computed as a whole is padded")
    axes: list[Axis] = []
    for axis in range(outer):
        made = combined([x.axes[axis] for x in inputs])
        if isinstance(made, Refusal):
            return made
        axes.append(made)
    made = make_node(ctx.bound(node.op), [x.value for x in inputs], node.location)
    return ctx.results(node, made.results, [[*axes, *plain(t.shape[outer:])] for t in node.types])


@pads(ConvGeneralDilated)
def convolution(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, ConvGeneralDilated)
    lhs, rhs = inputs
    if any(rhs.is_padded(a) for a in range(len(rhs.shape))):
        return Refusal("the kernel is padded")
    batch, feature, *places = op.lhs_spec
    if lhs.is_padded(feature):
        return Refusal("the features are padded")
    if lhs.is_padded(batch) and op.batch_group_count != 1:
        return Refusal("the batch is split into groups")
    shape = node.types[0].shape
    axes: list[Axis] = list(plain(shape))
    axes[op.out_spec[0]] = lhs.axes[batch]
    moving = [p for p in places if lhs.is_padded(p)]
    for number, place in enumerate(places):
        if place not in moving:
            continue
        low, high = op.padding[number]
        if not (isinstance(low, int) and isinstance(high, int)):
            return Refusal("the padding of the convolution depends on a size")
        if op.lhs_dilation[number] != 1:
            return Refusal("an axis that is padded is dilated too")
    clash = lhs.clashing(moving)
    if clash is not None:
        return clash
    return ctx.remade(node, [ctx.filled(lhs, moving, 0), rhs.value], axes)
