"""The selective scan, in Pallas: the states of 128 channels stay in VMEM from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rlx import dims
from rlx.ops.sequence import SelectiveScan
from rlx.types import TensorType

CHANNELS = 128
STEPS = 128
"""Steps of a block; b and c of so many are turned at once."""


def _scan(x: Any, delta: Any, a: Any, b: Any, c: Any, y: Any, state: Any) -> None:
    """A block of steps of a block of channels; the last axis of the grid runs over steps."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        state[...] = jnp.zeros_like(state)

    rates = a[...]
    entering, leaving = b[0].T, c[0].T  # [states, steps]
    h = state[...]
    for step in range(x.shape[1]):
        width = delta[0, step : step + 1, :]
        fed = width * x[0, step : step + 1, :]
        h = jnp.exp(width * rates) * h + fed * entering[:, step : step + 1]
        y[0, step : step + 1, :] = jnp.sum(h * leaving[:, step : step + 1], axis=0, keepdims=True)
    state[...] = h


def make(
    op: SelectiveScan, types: Sequence[TensorType], *, steps: int = STEPS, interpret: bool = False
) -> Callable[..., Any]:
    """The function of x, delta, a, b and c.

    Args:
        op: the op.
        types: of its inputs.
        steps: of a block; they divide the length.
        interpret: run as JAX operations, on any device.
    """
    batch, length, width = (dims.evaluate(d, {}) for d in types[0].shape)
    states = op.state_size

    def selective_scan(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        channels = pl.BlockSpec((1, steps, CHANNELS), lambda i, j, t: (i, t, j))
        shared = pl.BlockSpec((1, steps, states), lambda i, j, t: (i, t, 0))
        return pl.pallas_call(
            _scan,
            grid=(batch, width // CHANNELS, length // steps),
            in_specs=[
                channels,
                channels,
                pl.BlockSpec((states, CHANNELS), lambda i, j, t: (0, j)),
                shared,
                shared,
            ],
            out_specs=channels,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[pltpu.VMEM((states, CHANNELS), jnp.float32)],
            interpret=interpret,
        )(x, delta, a.T, b, c)

    return selective_scan
