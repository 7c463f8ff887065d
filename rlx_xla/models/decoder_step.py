"""Attention of one new token as products and sums, for devices that run a step as one graph.

XLA records a chain of kernels as one CUDA graph and starts it with one call; a product of matrices
by cuBLAS interrupts it, twice in each layer. One query for each head needs none: XLA makes sums of
products of it, which read each key and each value once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

MOST_POSITIONS = 1 << 14
"""Capacity up to which all of a cache is read: a loop that ends earlier interrupts the graph."""

HIDDEN = -1e30
"""The score of what must not be seen; finite, so that a row that sees nothing has no NaN."""


def attend_one(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    place: jax.Array,
    start: jax.Array,
    window: Any,
) -> jax.Array:
    """Return what `decoder.attend` returns for one query of each head.

    Args:
        q: float[batch, heads, 1, size], scaled; computing is in its dtype.
        keys: float[batch, kv_heads, capacity, size], all of which is read.
        values: float[batch, kv_heads, value_size, capacity].
        place: i32[], the query's position in the cache.
        start: i32[batch], the first position that a row may see.
        window: positions seen, itself included, an int or i32[]; the int 0 for all.

    Returns:
        float[batch, heads, 1, value_size].
    """
    batch, heads, _, size = q.shape
    kv_heads, capacity, value_size = keys.shape[1], keys.shape[2], values.shape[2]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, 1, size)
    scores = (grouped * keys[:, :, None].astype(q.dtype)).sum(axis=-1)
    there = jnp.arange(capacity, dtype=jnp.int32)
    seen = (there <= place)[None] & (there[None] >= start[:, None])
    if not isinstance(window, int) or window > 0:
        seen = seen & (there > place - window)[None]
    scores = jnp.where(seen[:, None, None], scores, q.dtype.type(HIDDEN))
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    summed = (weights[:, :, :, None] * values[:, :, None].astype(q.dtype)).sum(axis=-1)
    return summed.reshape(batch, heads, 1, value_size)
