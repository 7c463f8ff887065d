"""The general contraction."""

from __future__ import annotations

from typing import Any

import jax

from rlx.dtypes import DType, as_dtype
from rlx.ir.graph import Value
from rlx.ops.dot import DEFAULT_PRECISION, DotGeneral, DotPrecision
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


@traces("dot_general")
def dot_general(ctx: TraceContext, params: dict[str, Any], lhs: Value, rhs: Value) -> Value:
    precision = dot_precision(params.get("precision"))
    if precision is None or not placement.is_open(params.get("out_sharding")):
        return NotImplemented
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    return DotGeneral(
        lhs_contracting=tuple(map(int, lhs_contracting)),
        rhs_contracting=tuple(map(int, rhs_contracting)),
        lhs_batch=tuple(map(int, lhs_batch)),
        rhs_batch=tuple(map(int, rhs_batch)),
        precision=precision,
        preferred_element_type=preferred(params, lhs, rhs, result=ctx.out_type.dtype),
    )(lhs, rhs)
