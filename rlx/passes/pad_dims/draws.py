"""Padding of random ops: every element gets the number that it gets without padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.graph import Node, Value, make_node
from rlx.ir.operators import broadcast_to
from rlx.ops.arithmetic import Min
from rlx.ops.indexing import GatherElements
from rlx.ops.random import PhiloxBits, RngNormal, RngUniform, Sample
from rlx.ops.reduction.numbers import lowest
from rlx.passes.pad_dims.context import Padding, Results, pads
from rlx.passes.pad_dims.layout import Padded, Refusal, plain
from rlx.passes.pad_dims.places import LARGEST, numbered


@pads(RngNormal, RngUniform, PhiloxBits)
def stream(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    """Number k of a stream is the same however many are drawn: each element takes its own."""
    op = node.op
    assert isinstance(op, RngNormal | RngUniform | PhiloxBits)
    sizes = ctx.shape(op.shape)
    total = math.prod(sizes)
    if total > LARGEST:
        return Refusal("its places are more than i32 counts")
    drawn = make_node(op.replace(shape=(total,)), [x.value for x in inputs], node.location)
    values: Value = drawn.results[0]
    if any(not isinstance(d, int) for d in op.shape[1:]):
        places = numbered(ctx, op.shape)
        values = GatherElements(axis=0)(values, places.reshape((total,)))
    return ctx.results(node, [values.reshape(sizes)], [plain(op.shape)])


@pads(Sample)
def sample(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    """Padding of the vocabulary weighs nothing; padded rows draw behind all others."""
    (logits,) = inputs
    for axis in (0, 1):
        clash = logits.clashing([axis])
        if clash is not None:
            return clash
    filled = ctx.filled(logits, [1], lowest(logits.value.type.dtype))
    chosen: Value = make_node(node.op, [filled], node.location).results[0]
    if logits.is_padded(1):  # a row without any weight takes the last index
        chosen = Min()(chosen, broadcast_to(ctx.number(logits.shape[1] - 1), chosen.shape))
    return ctx.results(node, [chosen], [[logits.factors(0)]])
