"""Slices, gathers and scatters at computed places."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ops import arithmetic
from rlx.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    GatherGeneral,
    IndexMode,
    ScatterGeneral,
    ScatterKind,
)
from rlx.ops.shape import Reshape, Transpose
from rlx_xla._jax_compat.mlir import stablehlo
from rlx_xla.tracing.stablehlo.bodies import combination
from rlx_xla.tracing.stablehlo.context import OpContext, integer_constant
from rlx_xla.tracing.stablehlo.registry import imports

KINDS: dict[type[Op], ScatterKind] = {
    arithmetic.Add: ScatterKind.ADD,
    arithmetic.Sub: ScatterKind.SUB,
    arithmetic.Mul: ScatterKind.MUL,
    arithmetic.Min: ScatterKind.MIN,
    arithmetic.Max: ScatterKind.MAX,
}


@imports("stablehlo.dynamic_slice")
def dynamic_slice(ctx: OpContext, x: Value, *starts: Value) -> Value:
    """A box at a computed place."""
    return DynamicSlice(sizes=ctx.integers("slice_sizes"))(x, *starts)


@imports("stablehlo.dynamic_update_slice")
def dynamic_update_slice(ctx: OpContext, x: Value, update: Value, *starts: Value) -> Value:
    """A box replaced at a computed place."""
    return DynamicUpdateSlice()(x, update, *starts)


def vectors_last(indices: Value, axis: int) -> Value:
    """Indices with their vectors along the last axis, which is added if there is none."""
    if axis == indices.rank:
        return Reshape(shape=(*indices.type.shape, 1))(indices)
    if axis == indices.rank - 1:
        return indices
    order = (*(a for a in range(indices.rank) if a != axis), axis)
    return Transpose(permutation=order)(indices)


def _batch_axes(axes: Any, vector_axis: int) -> tuple[int, ...]:
    """Batch axes of indices, once their vectors lie along the last axis."""
    return tuple(a - (a > vector_axis) for a in axes)


@imports("stablehlo.gather", "stablehlo.dynamic_gather")
def gather(ctx: OpContext, x: Value, indices: Value, *sizes: Value) -> Any:
    """Windows of x; StableHLO moves them inside."""
    numbers = stablehlo.GatherDimensionNumbers(ctx.attribute("dimension_numbers"))
    axis = numbers.index_vector_dim
    windows = integer_constant(sizes[0]) if sizes else ctx.integers("slice_sizes")
    if windows is None:
        return ctx.refuse("its slice sizes must be constants")
    return GatherGeneral(
        slice_sizes=windows,
        offset_dims=tuple(numbers.offset_dims),
        collapsed_slice_dims=tuple(numbers.collapsed_slice_dims),
        start_index_map=tuple(numbers.start_index_map),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=_batch_axes(numbers.start_indices_batching_dims, axis),
        indices_are_sorted=ctx.flag("indices_are_sorted"),
        mode=IndexMode.CLIP,
    )(x, vectors_last(indices, axis))


@imports("stablehlo.scatter")
def scatter(ctx: OpContext, *operands: Value) -> Any:
    """Updates at computed places; StableHLO drops windows that are not wholly inside."""
    kind = None
    if len(operands) == 3 and not ctx.free():
        kind = scatter_kind(ctx.graph(0))
    if kind is None:
        return NotImplemented
    x, indices, updates = operands
    if x.dtype.is_complex and kind in (ScatterKind.MIN, ScatterKind.MAX):
        return NotImplemented
    if x.dtype.kind.name == "BOOL" and kind not in (ScatterKind.SET,):
        return NotImplemented
    numbers = stablehlo.ScatterDimensionNumbers(ctx.attribute("scatter_dimension_numbers"))
    axis = numbers.index_vector_dim
    return ScatterGeneral(
        update_window_dims=tuple(numbers.update_window_dims),
        inserted_window_dims=tuple(numbers.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(numbers.scattered_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.input_batching_dims),
        scatter_indices_batching_dims=_batch_axes(numbers.scatter_indices_batching_dims, axis),
        kind=kind,
        indices_are_sorted=ctx.flag("indices_are_sorted"),
        unique_indices=ctx.flag("unique_indices"),
        mode=IndexMode.FILL_OR_DROP,
    )(x, vectors_last(indices, axis), updates)


def scatter_kind(body: Graph | None) -> ScatterKind | None:
    """How a body of (old, new) combines them, if it is one of the kinds."""
    if body is None or len(body.outputs) != 1:
        return None
    if body.outputs[0] is body.inputs[1]:
        return ScatterKind.SET
    return KINDS.get(combination(body) or Op)
