"""Changes of element type, and identities that mean something to the compiler."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Value, make_node
from rlx.ops import convert as ops
from rlx_xla._jax_compat import placement
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces


@traces("convert_element_type")
def convert_element_type(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    if not placement.is_open(params.get("sharding")):
        return NotImplemented
    return x.convert(ctx.out_type.dtype)


@traces("bitcast_convert_type")
def bitcast_convert_type(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ops.BitcastConvert(dtype=ctx.out_type.dtype)(x)


@traces("reduce_precision")
def reduce_precision(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    widths = {name: int(params[name]) for name in ("exponent_bits", "mantissa_bits")}
    return ops.ReducePrecision(**widths)(x)


@traces("copy", "copy_p")
def copy(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ops.Copy()(x)


@traces("device_put")
def device_put(ctx: TraceContext, params: dict[str, Any], *xs: Value) -> Any:
    """A graph runs on one device, which its session chooses."""
    return xs if all(map(placement.is_open, params["devices"])) else NotImplemented


@traces("stop_gradient")
def stop_gradient(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ops.StopGradient()(x)


@traces("name")
def name(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    """What ``checkpoint_name`` marks for policies of ``jax.checkpoint``, whose rule JAX keeps."""
    return x


@traces("stage")
def stage(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return x


@traces("optimization_barrier")
def optimization_barrier(
    ctx: TraceContext, params: dict[str, Any], *xs: Value
) -> tuple[Value, ...]:
    return make_node(ops.OptimizationBarrier(), xs).results
