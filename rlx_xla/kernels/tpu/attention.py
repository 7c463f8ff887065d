"""Attention without a matrix of scores in memory, in Pallas.

A step of the grid takes a block of queries past a block of keys and keeps three things in VMEM for
the next: the greatest score of each query, the sum of its exponentials, and the weighted values.
Blocks of keys that a causal or a window mask hides whole are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rlx.ops.attention import Attention, MaskKind
from rlx.types import TensorType
from rlx_xla.kernels.attention_sizes import sizes_of

LANES = 128
_BLOCKS = (512, 256, 128)
"""Sizes of a block of queries or keys, the largest that divides is taken."""


def _attend(
    q: Any, k: Any, v: Any, y: Any, most: Any, total: Any, sums: Any, *, op: Attention, offset: int
) -> None:
    """One block of queries and one of keys; the last axis of the grid runs over keys."""
    at, last = pl.program_id(3), pl.num_programs(3) - 1
    rows, columns = q.shape[2], k.shape[2]
    first = offset + pl.program_id(2) * rows
    """Position of the block's first query among the keys."""

    @pl.when(at == 0)
    def _() -> None:
        most[...] = jnp.full_like(most, -jnp.inf)
        total[...] = jnp.zeros_like(total)
        sums[...] = jnp.zeros_like(sums)

    masked = op.mask_kind is not MaskKind.NONE
    window = op.window if op.mask_kind is MaskKind.SLIDING_WINDOW else None
    seen = at * columns <= first + rows - 1 if masked else at >= 0
    if window is not None:
        seen = seen & ((at + 1) * columns - 1 >= first - window)

    @pl.when(seen)
    def _() -> None:
        scores = lax.dot_general(
            q[0, 0], k[0, 0], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        scale = op.head_dim**-0.5 if op.score_scale is None else op.score_scale
        scores = scores * jnp.float32(scale)
        if op.softcap is not None:
            scores = op.softcap * jnp.tanh(scores / op.softcap)
        if masked:
            query = first + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            key = at * columns + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            visible = key <= query
            if window is not None:
                visible = visible & (key >= query - window)
            scores = jnp.where(visible, scores, -jnp.inf)
        before = most[...]
        now = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        # A query that has seen nothing yet keeps zeros: exp(-inf - 0), not of -inf - -inf.
        base = jnp.where(now == -jnp.inf, 0.0, now)
        weights = jnp.exp(scores - base[:, :1])
        kept = jnp.exp(before - base)
        most[...] = now
        total[...] = total[...] * kept + jnp.sum(weights, axis=1, keepdims=True)
        value = v[0, 0]
        product = lax.dot_general(
            weights.astype(value.dtype),
            value,
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        sums[...] = sums[...] * kept[:, :1] + product

    @pl.when(at == last)
    def _() -> None:
        y[0, 0] = (sums[...] / total[...][:, :1]).astype(y.dtype)


def make(
    op: Attention, types: Sequence[TensorType], *, interpret: bool = False
) -> Callable[..., Any]:
    """The function of q, k and v.

    Args:
        op: the op.
        types: of q, k and v.
        interpret: run as JAX operations, on any device.
    """
    sizes = sizes_of(op, types)
    rows = next(n for n in _BLOCKS if sizes.queries % n == 0)
    columns = next(n for n in _BLOCKS if sizes.keys % n == 0)
    group = sizes.heads // sizes.kv_heads

    def attention(q: Any, k: Any, v: Any) -> Any:
        if op.layout == "bshd":
            q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
        y = pl.pallas_call(
            functools.partial(_attend, op=op, offset=sizes.keys - sizes.queries),
            grid=(sizes.batch, sizes.heads, sizes.queries // rows, sizes.keys // columns),
            in_specs=[
                pl.BlockSpec((1, 1, rows, sizes.dim), lambda b, h, i, j: (b, h, i, 0)),
                pl.BlockSpec((1, 1, columns, sizes.dim), lambda b, h, i, j: (b, h // group, j, 0)),
                pl.BlockSpec(
                    (1, 1, columns, sizes.v_dim), lambda b, h, i, j: (b, h // group, j, 0)
                ),
            ],
            out_specs=pl.BlockSpec((1, 1, rows, sizes.v_dim), lambda b, h, i, j: (b, h, i, 0)),
            out_shape=jax.ShapeDtypeStruct((*q.shape[:3], sizes.v_dim), q.dtype),
            scratch_shapes=[
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, sizes.v_dim), jnp.float32),
            ],
            interpret=interpret,
        )(q, k, v)
        return jnp.swapaxes(y, 1, 2) if op.layout == "bshd" else y

    return attention
