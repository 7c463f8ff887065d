"""Sorts and the largest elements."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Value
from rlx.ops.sorting import Sort, TopK, TopNan
from rlx_xla.tracing.stablehlo import bodies
from rlx_xla.tracing.stablehlo.context import OpContext
from rlx_xla.tracing.stablehlo.registry import imports


@imports("stablehlo.sort")
def sort(ctx: OpContext, *operands: Value) -> Any:
    """A sort in RLX's order; one with another comparator is left to XLA."""
    body = None if ctx.free() else ctx.graph(0, name="comparator")
    keys = None if body is None else bodies.sort_keys(body)
    if keys is None:
        return NotImplemented
    axis = ctx.integer("dimension", -1)
    axis = axis + operands[0].rank if axis < 0 else axis
    return Sort(axis=axis, num_keys=keys, is_stable=ctx.flag("is_stable"))(*operands)


@imports("chlo.top_k")
def top_k(ctx: OpContext, x: Value) -> Any:
    """The k largest elements; NaN is the largest, as in XLA."""
    return TopK(k=ctx.integer("k"), nan=TopNan.LARGEST)(x)
