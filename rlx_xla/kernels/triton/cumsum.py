"""Cumulative sums along the last axis, in Pallas for Triton: a program reads a row once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from rlx import dims
from rlx.ops.reduction import CumSum
from rlx.types import TensorType
from rlx_xla.kernels.triton import power_of_2

_CHUNK = 2048
"""Most elements that are summed at once."""


def _sum(x: Any, y: Any, *, length: int, chunk: int, exclusive: bool) -> None:
    """One row, a chunk after another."""
    later = int(exclusive)

    def one(at: Any, carry: Any) -> Any:
        place = at * chunk + jnp.arange(chunk, dtype=jnp.int32)
        values = plt.load(x.at[pl.ds(at * chunk, chunk)], mask=place < length, other=0.0)
        values = values.astype(jnp.float32)
        sums = carry + lax.cumsum(values, axis=0)
        # The sum before an element is the one at its neighbour: a difference would make NaN of
        # infinities.
        to = y.at[pl.ds(at * chunk + later, chunk)]
        plt.store(to, sums.astype(y.dtype), mask=place + later < length)
        return carry + jnp.sum(values)

    if exclusive:
        y[0] = jnp.zeros((), y.dtype)
    lax.fori_loop(jnp.int32(0), jnp.int32(-(-length // chunk)), one, jnp.float32(0.0))


def make(op: CumSum, types: Sequence[TensorType], *, interpret: bool = False) -> Callable[..., Any]:
    """The function of x.

    Args:
        op: the op, along the last axis and forward.
        types: of its input.
        interpret: run as JAX operations, on any device.
    """
    *leading, length = (dims.evaluate(d, {}) for d in types[0].shape)
    chunk = min(_CHUNK, power_of_2(length))
    # One chunk more than the row, so that what is stored one place later is inside.
    block = (-(-length // chunk) + 1) * chunk
    rows = math.prod(leading)

    def cumsum(x: Any) -> Any:
        spec = pl.BlockSpec((None, block), lambda i: (i, 0))
        made = pl.pallas_call(
            functools.partial(_sum, length=length, chunk=chunk, exclusive=op.exclusive),
            grid=(rows,),
            in_specs=[spec],
            out_specs=spec,
            out_shape=jax.ShapeDtypeStruct((rows, length), x.dtype),
            compiler_params=plt.CompilerParams(num_warps=4),
            interpret=interpret,
        )(x.reshape(rows, length))
        return made.reshape(x.shape)

    return cumsum
