"""Sort, and the largest elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from rlx.ops.pooling import WindowKind, identity
from rlx.ops.sorting import ApproxTopK, Sort, TopK, TopNan
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(Sort)
def sort(ctx: JaxContext, op: Sort, *operands: Any) -> Any:
    return lax.sort(
        tuple(operands), dimension=op.axis, is_stable=op.is_stable, num_keys=op.num_keys
    )


@to_jax_rule(TopK, named=lambda op, types: op.nan is TopNan.NEVER)
def top_k(ctx: JaxContext, op: TopK, x: Any) -> Any:
    if op.nan is TopNan.NEVER and not ctx.in_types[0].dtype.is_integer:
        lowest = np.asarray(identity(WindowKind.MAX, ctx.in_types[0].dtype), x.dtype)
        x = lax.select(lax.ne(x, x), lax.full(x.shape, lowest, x.dtype), x)
    return lax.top_k(x, op.k)


@to_jax_rule(ApproxTopK)
def approx_top_k(ctx: JaxContext, op: ApproxTopK, x: Any) -> Any:
    find = lax.approx_max_k if op.largest else lax.approx_min_k
    return find(
        x,
        op.k,
        reduction_dimension=op.axis,
        recall_target=op.recall,
        reduction_input_size_override=-1 if op.input_size is None else op.input_size,
        aggregate_to_topk=op.size is None,
    )
