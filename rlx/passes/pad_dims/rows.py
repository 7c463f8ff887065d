"""Padding of ops that keep leading axes apart: each row is computed by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlx.ir.graph import Node, make_node
from rlx.ir.op import Op
from rlx.ops.complex_fft import Fft
from rlx.ops.normalization import LayerNorm, RmsNorm
from rlx.ops.solve import (
    Cholesky,
    DenseSolve,
    Det,
    Eig,
    Eigh,
    Geqp3,
    Geqrf,
    HouseholderProduct,
    LogDet,
    Lu,
    LuPivotsToPermutation,
    Qr,
    Svd,
    TriangularSolve,
    TridiagonalSolve,
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


def _row(op: Op) -> int:
    return 1


def _transformed(op: Op) -> int:
    assert isinstance(op, Fft)
    return len(op.fft_lengths)


_INNER: dict[type[Op], Callable[[Op], int]] = {
    Fft: _transformed,
    **dict.fromkeys(
        (
            Cholesky, DenseSolve, Det, Eig, Eigh, Geqp3, Geqrf, HouseholderProduct, LogDet, Lu, Qr,
            Svd, TriangularSolve,
        ),
        _matrix,
    ),
    **dict.fromkeys((LuPivotsToPermutation, TridiagonalSolve), _row),
}  # fmt: skip
"""How many last axes of the first input are taken together."""


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
    values = [x.value for x in inputs]
    if not isinstance(node.op, Fft):  # iterations need not end on what is no number
        rows = range(outer)
        values = [ctx.filled(x, rows, np.zeros((), x.value.type.dtype.numpy)) for x in inputs]
    made = make_node(ctx.bound(node.op), values, node.location)
    return ctx.results(node, made.results, [[*axes, *plain(t.shape[outer:])] for t in node.types])
