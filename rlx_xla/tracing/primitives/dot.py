"""The general contraction."""

from __future__ import annotations

from typing import Any

import jax

from rlx.dtypes import DType, as_dtype
from rlx.ir.graph import Value
from rlx.ops.dot import DEFAULT_PRECISION, DotAlgorithm, DotGeneral, DotPrecision, RaggedDot
from rlx_xla._jax_compat import placement
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces


def dot_precision(given: Any) -> tuple[DotPrecision, ...] | None:
    """JAX's precision parameter for both operands; None for a named algorithm."""
    if given is None:
        return DEFAULT_PRECISION
    pair = given if isinstance(given, tuple | list) else (given, given)
    if not all(p is None or isinstance(p, jax.lax.Precision) for p in pair):
        return None
    return tuple(DotPrecision.DEFAULT if p is None else DotPrecision(p.name.lower()) for p in pair)


def preferred(params: dict[str, Any], *operands: Value, result: DType) -> DType | None:
    """The element type to state: the given one, or the result's where the operands differ."""
    given = params.get("preferred_element_type")
    if given is not None:
        return as_dtype(given)
    return None if all(v.dtype is result for v in operands) else result


def product_settings(
    ctx: TraceContext, params: dict[str, Any], lhs: Value, rhs: Value
) -> dict[str, Any] | None:
    """Precision, algorithm and element type; None for an algorithm that has no name."""
    given = params.get("precision")
    algorithm = None
    if isinstance(given, jax.lax.DotAlgorithmPreset):
        algorithm = DotAlgorithm.__members__.get(given.name)
        if algorithm is None and given is not jax.lax.DotAlgorithmPreset.DEFAULT:
            return None
        given = None
    precision = dot_precision(given)
    if precision is None or not placement.is_open(params.get("out_sharding")):
        return None
    return {
        "precision": precision,
        "algorithm": algorithm,
        "preferred_element_type": preferred(params, lhs, rhs, result=ctx.out_type.dtype),
    }


def _axes(numbers: Any) -> dict[str, tuple[int, ...]]:
    """JAX's dimension numbers by role."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers
    return {
        "lhs_contracting": tuple(map(int, lhs_contracting)),
        "rhs_contracting": tuple(map(int, rhs_contracting)),
        "lhs_batch": tuple(map(int, lhs_batch)),
        "rhs_batch": tuple(map(int, rhs_batch)),
    }


@traces("dot_general")
def dot_general(ctx: TraceContext, params: dict[str, Any], lhs: Value, rhs: Value) -> Value:
    settings = product_settings(ctx, params, lhs, rhs)
    if settings is None:
        return NotImplemented
    return DotGeneral(**_axes(params["dimension_numbers"]), **settings)(lhs, rhs)


@traces("ragged_dot_general")
def ragged_dot_general(
    ctx: TraceContext, params: dict[str, Any], lhs: Value, rhs: Value, group_sizes: Value
) -> Value:
    numbers = params["ragged_dot_dimension_numbers"]
    settings = product_settings(ctx, params, lhs, rhs)
    static = isinstance(group_sizes.shape[-1], int)
    if settings is None or not static or params.get("group_offset") is not None:
        return NotImplemented
    groups = tuple(map(int, numbers.rhs_group_dimensions))
    return RaggedDot(
        **_axes(numbers.dot_dimension_numbers),
        lhs_ragged=int(numbers.lhs_ragged_dimensions[0]),
        rhs_group=groups[0] if groups else None,
        **settings,
    )(lhs, rhs, group_sizes)
