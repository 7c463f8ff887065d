"""The selective scan, in Pallas for Triton: states stay in registers from step to step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from rlx import dims
from rlx.ops.sequence import SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels.triton import power_of_2

_STATES = 1024
"""Most states of a program."""


def _scan(
    x: Any, delta: Any, a: Any, b: Any, c: Any, y: Any, *, length: int, width: int, states: int
) -> None:
    """All steps of a block of channels."""
    channels, padded = a.shape
    first = pl.program_id(0) * channels
    live = first + jnp.arange(channels, dtype=jnp.int32) < width
    real = jnp.arange(padded, dtype=jnp.int32) < states
    rates = plt.load(a, mask=live[:, None] & real[None, :], other=0.0).astype(jnp.float32)

    def read(step: Any) -> tuple[Any, Any, Any, Any]:
        found = (
            *(plt.load(ref.at[step, :], mask=live, other=0.0) for ref in (x, delta)),
            *(plt.load(ref.at[step, :], mask=real, other=0.0) for ref in (b, c)),
        )
        fed, span, entering, leaving = (value.astype(jnp.float32) for value in found)
        return fed, span, entering, leaving

    def one(step: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        h, fed, span, entering, leaving = carry
        # Asked for now, so that the next step does not wait.
        ahead = read(jnp.minimum(step + 1, length - 1))
        h = jnp.exp(span[:, None] * rates) * h + (span * fed)[:, None] * entering[None, :]
        out = jnp.sum(h * leaving[None, :], axis=1)
        plt.store(y.at[step, :], out.astype(y.dtype), mask=live)
        return h, *ahead

    start = jnp.zeros((channels, padded), jnp.float32)
    lax.fori_loop(jnp.int32(0), jnp.int32(length), one, (start, *read(jnp.int32(0))))


def make(
    op: SelectiveScan, types: Sequence[TensorType], *, interpret: bool = False
) -> Callable[..., Any]:
    """The function of x, delta, a, b and c.

    Args:
        op: the op.
        types: of its inputs.
        interpret: run as JAX operations, on any device.
    """
    batch, length, width = (dims.evaluate(d, {}) for d in types[0].shape)
    states = power_of_2(op.state_size)
    channels = min(power_of_2(width), max(1, _STATES // states))

    def selective_scan(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        wide = pl.BlockSpec((None, length, channels), lambda j, i: (i, 0, j))
        shared = pl.BlockSpec((None, length, states), lambda j, i: (i, 0, 0))
        return pl.pallas_call(
            functools.partial(_scan, length=length, width=width, states=op.state_size),
            grid=(-(-width // channels), batch),
            in_specs=[
                wide,
                wide,
                pl.BlockSpec((channels, states), lambda j, i: (j, 0)),
                shared,
                shared,
            ],
            out_specs=wide,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            compiler_params=plt.CompilerParams(num_warps=2),
            interpret=interpret,
        )(x, delta, a, b, c)

    return selective_scan
