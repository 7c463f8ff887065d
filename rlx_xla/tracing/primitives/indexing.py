"""Reading and writing at computed places.

A PRNG key array is u32 with trailing axes inside the graph: windows run over them whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Literal
from rlx.ir.graph import Value
from rlx.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    GatherGeneral,
    IndexMode,
    ScatterGeneral,
    ScatterKind,
)
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.primitives.shape import key_shape
from rlx_xla.tracing.registry import traces

Params = dict[str, Any]


@traces("dynamic_slice")
def dynamic_slice(ctx: TraceContext, params: Params, x: Value, *rest: Value) -> Value:
    # Values of dynamic sizes may follow the start indices; the result's type already says them.
    starts = rest[: len(ctx.in_avals[0].shape)]
    return DynamicSlice(sizes=ctx.out_type.shape)(x, *starts, *_zeros(ctx, starts))


@traces("dynamic_update_slice")
def dynamic_update_slice(
    ctx: TraceContext, params: Params, x: Value, update: Value, *starts: Value
) -> Value:
    return DynamicUpdateSlice()(x, update, *starts, *_zeros(ctx, starts))


@traces("gather")
def gather(ctx: TraceContext, params: Params, x: Value, indices: Value) -> Value:
    mode = _mode(params["mode"])
    if mode is None:
        return NotImplemented
    numbers = params["dimension_numbers"]
    extra = key_shape(ctx)
    rank = ctx.out_type.rank
    fill = params["fill_value"]
    if fill is None and extra:
        fill = np.uint32(0xFFFFFFFF)
    given = mode is IndexMode.FILL_OR_DROP and fill is not None
    return GatherGeneral(
        slice_sizes=(*ctx.shape(params["slice_sizes"]), *extra),
        offset_dims=(*numbers.offset_dims, *range(rank - len(extra), rank)),
        collapsed_slice_dims=tuple(numbers.collapsed_slice_dims),
        start_index_map=tuple(numbers.start_index_map),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=tuple(numbers.start_indices_batching_dims),
        indices_are_sorted=bool(params["indices_are_sorted"]),
        unique_indices=bool(params["unique_indices"]),
        mode=mode,
        fill_value=Literal(np.asarray(fill).astype(x.type.dtype.numpy)) if given else None,
    )(x, indices)


@traces("scatter")
def scatter(ctx: TraceContext, params: Params, x: Value, indices: Value, updates: Value) -> Value:
    if not _replaces(params["update_jaxpr"]):
        return NotImplemented  # scatter_apply: any function of the old element
    return _scatter(ctx, params, ScatterKind.SET, x, indices, updates)


def _combines(kind: ScatterKind) -> Callable[..., Value]:
    def rule(ctx: TraceContext, params: Params, x: Value, indices: Value, updates: Value) -> Value:
        if kind is ScatterKind.SUB and x.type.dtype is DType.BOOL:
            return NotImplemented
        return _scatter(ctx, params, kind, x, indices, updates)

    return rule


traces("scatter-add", "scatter_add")(_combines(ScatterKind.ADD))
traces("scatter-sub", "scatter_sub")(_combines(ScatterKind.SUB))
traces("scatter-mul", "scatter_mul")(_combines(ScatterKind.MUL))
traces("scatter-min", "scatter_min")(_combines(ScatterKind.MIN))
traces("scatter-max", "scatter_max")(_combines(ScatterKind.MAX))


def _scatter(
    ctx: TraceContext, params: Params, kind: ScatterKind, x: Value, indices: Value, updates: Value
) -> Value:
    mode = _mode(params["mode"])
    if mode is None:
        return NotImplemented
    numbers = params["dimension_numbers"]
    extra, rank = len(key_shape(ctx)), updates.type.rank
    return ScatterGeneral(
        kind=kind,
        update_window_dims=(*numbers.update_window_dims, *range(rank - extra, rank)),
        inserted_window_dims=tuple(numbers.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        scatter_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
        indices_are_sorted=bool(params["indices_are_sorted"]),
        unique_indices=bool(params["unique_indices"]),
        mode=mode,
    )(x, indices, updates)


def _mode(mode: Any) -> IndexMode | None:
    """JAX's mode by its name; None for one that is not modelled."""
    return IndexMode.__members__.get(mode.name)


def _replaces(update: Any) -> bool:
    """Whether a scatter's function gives its second argument; absent in newer versions of JAX."""
    if update is None:
        return True
    return not update.eqns and list(update.outvars) == [update.invars[1]]


def _zeros(ctx: TraceContext, starts: tuple[Value, ...]) -> tuple[Value, ...]:
    """Start indices for the trailing axes of keys."""
    dtype = starts[0].type.dtype if starts else DType.I32
    return tuple(ctx.constant(0, dtype) for _ in key_shape(ctx))
