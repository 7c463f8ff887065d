"""Changes of element type, and identities that mean something to the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from rlx.ops import convert as ops
from rlx.types import TensorType
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


def _takes_real_part(op: ops.Convert, types: Sequence[TensorType]) -> bool:
    """Whether JAX takes the real part first, and warns unless that is said."""
    return types[0].dtype.is_complex and not op.dtype.is_complex


@to_jax_rule(ops.Convert, named=_takes_real_part)
def convert(ctx: JaxContext, op: ops.Convert, x: Any) -> Any:
    if _takes_real_part(op, ctx.in_types):
        x = lax.real(x)
    return lax.convert_element_type(x, op.dtype.numpy)


@to_jax_rule(ops.BitcastConvert)
def bitcast_convert(ctx: JaxContext, op: ops.BitcastConvert, x: Any) -> Any:
    return lax.bitcast_convert_type(x, op.dtype.numpy)


@to_jax_rule(ops.ReducePrecision)
def reduce_precision(ctx: JaxContext, op: ops.ReducePrecision, x: Any) -> Any:
    widths = {"exponent_bits": op.exponent_bits, "mantissa_bits": op.mantissa_bits}
    return lax.reduce_precision_p.bind(x, **widths)


@to_jax_rule(ops.Copy)
def copy(ctx: JaxContext, op: ops.Copy, x: Any) -> Any:
    return lax.copy_p.bind(x)


@to_jax_rule(ops.StopGradient)
def stop_gradient(ctx: JaxContext, op: ops.StopGradient, x: Any) -> Any:
    return lax.stop_gradient_p.bind(x)


@to_jax_rule(ops.OptimizationBarrier)
def optimization_barrier(ctx: JaxContext, op: ops.OptimizationBarrier, *xs: Any) -> Any:
    return lax.optimization_barrier(tuple(xs))
