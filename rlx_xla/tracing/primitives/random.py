"""Random bits and keys; keys are their raw data, u32[..., n]."""

from __future__ import annotations

from typing import Any

from rlx import dims
from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.bitwise import ShiftRightLogical
from rlx.ops.random import RngAlgorithm, RngBitGenerator, Threefry2x32
from rlx.ops.shape import Iota
from rlx_xla._jax_compat import random as implementations
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces

ALGORITHMS = {
    "RNG_DEFAULT": RngAlgorithm.DEFAULT,
    "RNG_THREE_FRY": RngAlgorithm.THREE_FRY,
    "RNG_PHILOX": RngAlgorithm.PHILOX,
}


@traces("threefry2x32")
def threefry2x32(
    ctx: TraceContext, params: dict[str, Any], k1: Value, k2: Value, x1: Value, x2: Value
) -> tuple[Value, Value]:
    shape = ctx.out_types[0].shape
    return Threefry2x32()(*(broadcast_to(word, shape) for word in (k1, k2, x1, x2)))


@traces("rng_bit_generator")
def rng_bit_generator(ctx: TraceContext, params: dict[str, Any], state: Value) -> Any:
    algorithm = ALGORITHMS.get(getattr(params["algorithm"], "name", ""))
    if algorithm is None:
        return NotImplemented
    wanted = ctx.out_types[1]
    unsigned = wanted.dtype.kind.name == "UINT" and wanted.dtype.bits >= 8
    op = RngBitGenerator(
        algorithm=algorithm, dtype=wanted.dtype if unsigned else DType.U32, shape=wanted.shape
    )
    following, bits = op(state)
    return following, bits.convert(wanted.dtype)


@traces("iota_2x32_shape")
def iota_2x32_shape(ctx: TraceContext, params: dict[str, Any]) -> tuple[Value, Value]:
    """The high and low words of each element's number in C order."""
    type_ = ctx.out_types[0]
    size = dims.product(type_.shape)
    if isinstance(size, int) and size <= 2**32:
        low = Iota(dtype=DType.U32, shape=(size,), axis=0)().reshape(type_.shape)
        return broadcast_to(constant(0, DType.U32), type_.shape), low
    number = Iota(dtype=DType.U64, shape=(size,), axis=0)()
    half = broadcast_to(constant(32, DType.U64), number.shape)
    high = ShiftRightLogical()(number, half).convert(DType.U32)
    low = number.convert(DType.U32)
    return high.reshape(type_.shape), low.reshape(type_.shape)


@traces("random_wrap", "random_unwrap", "random_clone")
def same_data(ctx: TraceContext, params: dict[str, Any], keys: Value) -> Value:
    return keys


@traces("random_seed")
def random_seed(ctx: TraceContext, params: dict[str, Any], seeds: Value) -> Value:
    aval = ctx.in_avals[0]
    return _run(ctx, implementations.seed_jaxpr(params["impl"], aval.shape, aval.dtype), seeds)


@traces("random_split")
def random_split(ctx: TraceContext, params: dict[str, Any], keys: Value) -> Value:
    aval = ctx.in_avals[0]
    impl = implementations.implementation(aval.dtype)
    return _run(ctx, implementations.split_jaxpr(impl, aval.shape, params["shape"]), keys)


@traces("random_fold_in")
def random_fold_in(
    ctx: TraceContext, params: dict[str, Any], keys: Value, messages: Value
) -> Value:
    aval, other = ctx.in_avals
    impl = implementations.implementation(aval.dtype)
    made = implementations.fold_in_jaxpr(impl, aval.shape, other.shape, other.dtype)
    return _run(ctx, made, keys, messages)


@traces("random_bits")
def random_bits(ctx: TraceContext, params: dict[str, Any], keys: Value) -> Value:
    aval = ctx.in_avals[0]
    impl = implementations.implementation(aval.dtype)
    made = implementations.bits_jaxpr(impl, aval.shape, params["bit_width"], params["shape"])
    return _run(ctx, made, keys)


@traces("random_gamma")
def random_gamma(
    ctx: TraceContext, params: dict[str, Any], keys: Value, concentrations: Value
) -> Value:
    aval, other = ctx.in_avals
    impl = implementations.implementation(aval.dtype)
    log_space = bool(params["log_space"])
    made = implementations.gamma_jaxpr(impl, aval.shape, other.shape, other.dtype, log_space)
    return NotImplemented if made is None else _run(ctx, made, keys, concentrations)


def _run(ctx: TraceContext, closed: Any, *operands: Value) -> Value:
    (result,) = ctx.inline(closed, operands)
    return result
