"""The selective scan on TPUs, in Pallas.

XLA runs one step of the loop after another and writes the states to memory between them; here the
states of 128 channels stay in VMEM from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.sequence import SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.pallas import PallasKernel
from rlx_xla.kernels.select import register_kernel

_CHANNELS = 128
_STEPS = 128
"""Steps of a block; b and c of so many are turned at once."""


def _check(op: SelectiveScan, types: Sequence[TensorType]) -> Supported | Refused:
    x = types[0]
    if x.dtype is not DType.F32:
        return Refused(f"x is {x.dtype} and not f32")
    if not all(t.is_static for t in types):
        return Refused(f"{x} is not static")
    batch, length, width = (dims.evaluate(d, {}) for d in x.shape)
    if not batch or not length or length % _STEPS or not width or width % _CHANNELS:
        return Refused(
            f"length {length} and width {width} are no multiples of {_STEPS} and {_CHANNELS}"
        )
    if op.state_size % 8:
        return Refused(f"state_size {op.state_size} is no multiple of 8")
    return Supported()


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
    op: SelectiveScan, types: Sequence[TensorType], *, steps: int = _STEPS, interpret: bool = False
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
        channels = pl.BlockSpec((1, steps, _CHANNELS), lambda i, j, t: (i, t, j))
        shared = pl.BlockSpec((1, steps, states), lambda i, j, t: (i, t, 0))
        return pl.pallas_call(
            _scan,
            grid=(batch, width // _CHANNELS, length // steps),
            in_specs=[
                channels,
                channels,
                pl.BlockSpec((states, _CHANNELS), lambda i, j, t: (0, j)),
                shared,
                shared,
            ],
            out_specs=channels,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[pltpu.VMEM((states, _CHANNELS), jnp.float32)],
            interpret=interpret,
        )(x, delta, a.T, b, c)

    return selective_scan


register_kernel(
    PallasKernel(
        name="selective_scan.tpu.pallas",
        op=SelectiveScan,
        platforms=("tpu",),
        unproven="it has not been measured on a TPU",
        make=make,
        check=_check,
    )
)
