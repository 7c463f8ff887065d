"""Random bits; keys are their raw data."""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.extend.random import threefry2x32_p

from rlx.ops import random as ops
from rlx.ops.random import RngAlgorithm
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule

_ALGORITHMS = {
    RngAlgorithm.DEFAULT: lax.RandomAlgorithm.RNG_DEFAULT,
    RngAlgorithm.THREE_FRY: lax.RandomAlgorithm.RNG_THREE_FRY,
    RngAlgorithm.PHILOX: lax.RandomAlgorithm.RNG_PHILOX,
}


@to_jax_rule(ops.Threefry2x32)
def threefry2x32(ctx: JaxContext, op: ops.Threefry2x32, *words: Any) -> Any:
    return threefry2x32_p.bind(*words)


@to_jax_rule(ops.RngBitGenerator)
def rng_bit_generator(ctx: JaxContext, op: ops.RngBitGenerator, state: Any) -> Any:
    dtype: Any = op.dtype.numpy
    return lax.rng_bit_generator(state, ctx.shape(op.shape), dtype, _ALGORITHMS[op.algorithm])
