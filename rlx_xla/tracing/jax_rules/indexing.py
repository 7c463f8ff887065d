"""Reading and writing at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from rlx.ops import indexing as ops
from rlx.ops.indexing import ScatterKind
from rlx.types import TensorType
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule

_SCATTERS = {
    ScatterKind.SET: lax.scatter,
    ScatterKind.ADD: lax.scatter_add,
    ScatterKind.SUB: lax.scatter_sub,
    ScatterKind.MUL: lax.scatter_mul,
    ScatterKind.MIN: lax.scatter_min,
    ScatterKind.MAX: lax.scatter_max,
}


@to_jax_rule(ops.DynamicSlice)
def dynamic_slice(ctx: JaxContext, op: ops.DynamicSlice, x: Any, *starts: Any) -> Any:
    return lax.dynamic_slice_p.bind(x, *starts, slice_sizes=ctx.shape(op.sizes))


@to_jax_rule(ops.DynamicUpdateSlice)
def dynamic_update_slice(
    ctx: JaxContext, op: ops.DynamicUpdateSlice, x: Any, update: Any, *starts: Any
) -> Any:
    return lax.dynamic_update_slice_p.bind(x, update, *starts)


def _says_no_fill(op: ops.GatherGeneral, types: Sequence[TensorType]) -> bool:
    """Whether JAX would choose a fill value, and say it."""
    return op.mode is ops.IndexMode.FILL_OR_DROP and op.fill_value is None


@to_jax_rule(ops.GatherGeneral, named=_says_no_fill)
def gather_general(ctx: JaxContext, op: ops.GatherGeneral, x: Any, indices: Any) -> Any:
    numbers = lax.GatherDimensionNumbers(
        offset_dims=op.offset_dims,
        collapsed_slice_dims=op.collapsed_slice_dims,
        start_index_map=op.start_index_map,
        operand_batching_dims=op.operand_batching_dims,
        start_indices_batching_dims=op.start_indices_batching_dims,
    )
    fill = None if op.fill_value is None else op.fill_value.array.reshape(())[()]
    return lax.gather(
        x,
        indices,
        numbers,
        ctx.shape(op.slice_sizes),
        indices_are_sorted=op.indices_are_sorted,
        unique_indices=op.unique_indices,
        mode=lax.GatherScatterMode[op.mode.name],
        fill_value=fill,
    )


@to_jax_rule(ops.ScatterGeneral)
def scatter_general(
    ctx: JaxContext, op: ops.ScatterGeneral, x: Any, indices: Any, updates: Any
) -> Any:
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=op.update_window_dims,
        inserted_window_dims=op.inserted_window_dims,
        scatter_dims_to_operand_dims=op.scatter_dims_to_operand_dims,
        operand_batching_dims=op.operand_batching_dims,
        scatter_indices_batching_dims=op.scatter_indices_batching_dims,
    )
    return _SCATTERS[op.kind](
        x,
        indices,
        updates,
        numbers,
        indices_are_sorted=op.indices_are_sorted,
        unique_indices=op.unique_indices,
        mode=lax.GatherScatterMode[op.mode.name],
    )
