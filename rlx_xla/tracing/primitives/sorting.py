"""Sort, and the largest elements."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ops.shape import Transpose
from rlx.ops.sorting import ApproxTopK, Sort, TopK, TopNan
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces


@traces("sort")
def sort(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> tuple[Value, ...]:
    if any(a.rank != len(t.shape) for a, t in zip(operands, ctx.in_avals, strict=True)):
        return NotImplemented  # keys have an axis more here
    made = Sort(
        axis=int(params["dimension"]),
        num_keys=int(params["num_keys"]),
        is_stable=bool(params["is_stable"]),
    )(*operands)
    return made if isinstance(made, tuple) else (made,)


@traces("top_k")
def top_k(ctx: TraceContext, params: dict[str, Any], x: Value) -> tuple[Value, ...]:
    k = ctx.dim(params["k"])
    if not isinstance(k, int):
        return NotImplemented
    if x.dtype is DType.BOOL:
        values, indices = top_k(ctx, params, x.convert(DType.U8))
        return values.convert(DType.BOOL), indices
    axis, last = int(params.get("axis", x.rank - 1)), x.rank - 1
    # A stable result is one of those that an unstable top_k may give, so is_stable needs no care.
    op = TopK(k=k, nan=TopNan.LARGEST)
    if axis == last:
        return op(x)
    swap = list(range(x.rank))
    swap[axis], swap[last] = last, axis
    turn = Transpose(permutation=tuple(swap))
    return tuple(turn(v) for v in op(turn(x)))


@traces("approx_top_k")
def approx_top_k(ctx: TraceContext, params: dict[str, Any], x: Value) -> tuple[Value, ...]:
    k, axis = ctx.dim(params["k"]), int(params["reduction_dimension"]) % x.rank
    size = ctx.out_types[0].shape[axis]
    if not isinstance(k, int) or not isinstance(size, int):
        return NotImplemented
    whole = int(params["reduction_input_size_override"])
    return ApproxTopK(
        k=k,
        axis=axis,
        largest=bool(params["is_max_k"]),
        recall=float(params["recall_target"]),
        input_size=None if whole == -1 else whole,
        size=None if params["aggregate_to_topk"] else size,
    )(x)
