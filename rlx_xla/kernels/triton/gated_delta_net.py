"""The gated delta rule, in Pallas for Triton: columns of the state do not meet.

A program takes some columns of the state of one head and keeps them in registers from the first
token to the last.
"""

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
from rlx.ops.sequence import GatedDeltaNet
from rlx.types import TensorType
from rlx_xla.kernels.triton import power_of_2

_STATES = 2048
"""Most numbers of the state in a program."""


def _walk(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *others: Any, op: GatedDeltaNet, length: int
) -> None:
    """All tokens of a block of columns."""
    rows, columns = q.shape[1], v.shape[1]
    row = jnp.arange(rows, dtype=jnp.int32) < op.state_size
    first = pl.program_id(0) * columns
    column = first + jnp.arange(columns, dtype=jnp.int32) < op.state_size
    block = row[:, None] & column[None, :]
    y = others[1] if op.carry_state else others[0]

    def vector(ref: Any, step: Any, mask: Any) -> Any:
        return plt.load(ref.at[step, :], mask=mask, other=0.0).astype(jnp.float32)

    def number(ref: Any, step: Any) -> Any:
        return ref[step].astype(jnp.float32)

    def read(step: Any) -> tuple[Any, ...]:
        gate = vector(g, step, row) if op.gate_per_channel else number(g, step)
        return (
            vector(q, step, row),
            vector(k, step, row),
            vector(v, step, column),
            gate,
            number(beta, step),
        )

    def one(step: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        state, query, key, value, gate, strength = carry
        # Asked for now, so that the next token does not wait.
        ahead = read(jnp.minimum(step + 1, length - 1))
        decay = jnp.exp(gate)
        state = state * (decay[:, None] if op.gate_per_channel else decay)
        found = jnp.sum(state * key[:, None], axis=0)
        correction = (value - found) * strength
        state = state + key[:, None] * correction[None, :]
        out = jnp.sum(state * query[:, None], axis=0) * jnp.float32(op.state_size**-0.5)
        plt.store(y.at[step, :], out.astype(y.dtype), mask=column)
        return state, *ahead

    state = jnp.zeros((rows, columns), jnp.float32)
    if op.carry_state:
        state = plt.load(others[0], mask=block, other=0.0).astype(jnp.float32)
    carry = (state, *read(jnp.int32(0)))
    state = lax.fori_loop(jnp.int32(0), jnp.int32(length), one, carry)[0]
    if op.carry_state:
        plt.store(others[2], state.astype(others[2].dtype), mask=block)


def make(
    op: GatedDeltaNet, types: Sequence[TensorType], *, interpret: bool = False
) -> Callable[..., Any]:
    """The function of q, k, v, g, beta and, with carry_state, of the first state.

    Args:
        op: the op.
        types: of its inputs.
        interpret: run as JAX operations, on any device.
    """
    batch, length, heads, size = (dims.evaluate(d, {}) for d in types[0].shape)
    rows = power_of_2(size)
    columns = min(rows, max(1, _STATES // rows))

    def gated_delta_net(*inputs: Any) -> Any:
        whole = pl.BlockSpec((None, length, None, rows), lambda j, h, b: (b, 0, h, 0))
        part = pl.BlockSpec((None, length, None, columns), lambda j, h, b: (b, 0, h, j))
        scalar = pl.BlockSpec((None, length, None), lambda j, h, b: (b, 0, h))
        state = pl.BlockSpec((None, None, rows, columns), lambda j, h, b: (b, h, 0, j))
        carried = [state] if op.carry_state else []
        results = (inputs[0], inputs[5]) if op.carry_state else (inputs[0],)
        made = pl.pallas_call(
            functools.partial(_walk, op=op, length=length),
            grid=(-(-size // columns), heads, batch),
            in_specs=[
                whole,
                whole,
                part,
                whole if op.gate_per_channel else scalar,
                scalar,
                *carried,
            ],
            out_specs=[part, *carried],
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
            compiler_params=plt.CompilerParams(num_warps=4),
            interpret=interpret,
        )(*inputs)
        return tuple(made) if op.carry_state else made[0]

    return gated_delta_net
