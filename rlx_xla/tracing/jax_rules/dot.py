"""The general contraction."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ops.dot import DEFAULT_PRECISION, DotGeneral, DotPrecision
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


@to_jax_rule(DotGeneral)
def dot_general(ctx: JaxContext, op: DotGeneral, lhs: Any, rhs: Any) -> Any:
    return lax.dot_general(
        lhs,
        rhs,
        ((op.lhs_contracting, op.rhs_contracting), (op.lhs_batch, op.rhs_batch)),
        precision=dot_precision(op.precision),
        preferred_element_type=preferred(op),
    )
