"""The general contraction."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ops.dot import DEFAULT_PRECISION, DotGeneral, DotPrecision, RaggedDot
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


def dot_precision(given: tuple[DotPrecision, ...]) -> Any:
    """JAX's precision parameter."""
    if given == DEFAULT_PRECISION:
        return None
    return tuple(lax.Precision[p.name] for p in given)


def preferred(op: Any) -> Any:
    """JAX's preferred element type."""
    dtype = op.preferred_element_type
    return None if dtype is None else dtype.numpy


def _precision(op: DotGeneral | RaggedDot) -> Any:
    """JAX's precision parameter, in which a named algorithm takes the place of a precision."""
    if op.algorithm is not None:
        return lax.DotAlgorithmPreset[op.algorithm.name]
    return dot_precision(op.precision)


@to_jax_rule(DotGeneral)
def dot_general(ctx: JaxContext, op: DotGeneral, lhs: Any, rhs: Any) -> Any:
    return lax.dot_general(
        lhs,
        rhs,
        ((op.lhs_contracting, op.rhs_contracting), (op.lhs_batch, op.rhs_batch)),
        precision=_precision(op),
        preferred_element_type=preferred(op),
    )


@to_jax_rule(RaggedDot)
def ragged_dot(ctx: JaxContext, op: RaggedDot, lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(
            (op.lhs_contracting, op.rhs_contracting),
            (op.lhs_batch, op.rhs_batch),
        ),
        lhs_ragged_dimensions=(op.lhs_ragged,),
        rhs_group_dimensions=() if op.rhs_group is None else (op.rhs_group,),
    )
    return lax.ragged_dot_general(
        lhs,
        rhs,
        group_sizes,
        numbers,
        precision=_precision(op),
        preferred_element_type=preferred(op),
    )
