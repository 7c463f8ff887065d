"""Attention without a matrix of scores in memory, in Pallas for Triton.

A program takes a block of queries of one head past blocks of keys and keeps three things in
registers: the greatest score of each query, the sum of its exponentials, and the weighted values.
Keys that a causal, a window or a length mask hides from all of its queries are not read.
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

from rlx.dtypes import DType
from rlx.ops.attention import Attention, MaskKind
from rlx.types import TensorType
from rlx_xla.kernels.attention_sizes import Sizes, sizes_of
from rlx_xla.kernels.triton import power_of_2

_LEAST = 16
"""Least size of an axis of a product on the matrix units."""


def _attend(
    q: Any, k: Any, v: Any, *others: Any, op: Attention, sizes: Sizes, rows: int, columns: int
) -> None:
    """A block of queries past the keys that it sees."""
    y = others[-1]
    first = pl.program_id(0) * rows
    query = first + jnp.arange(rows, dtype=jnp.int32)
    position = query + (sizes.keys - sizes.queries)
    """Positions of the queries among the keys."""

    masked = op.mask_kind in (MaskKind.CAUSAL, MaskKind.SLIDING_WINDOW)
    window = op.window if op.mask_kind is MaskKind.SLIDING_WINDOW else None
    begin, limit, end = jnp.int32(0), jnp.int32(sizes.keys), jnp.int32(sizes.keys)
    if op.mask_kind is MaskKind.LENGTHS:
        limit = end = jnp.clip(others[0][0], 0, sizes.keys)
    if masked:
        end = jnp.clip(first + (rows + sizes.keys - sizes.queries), 0, sizes.keys)
    if window is not None:
        oldest = first + (sizes.keys - sizes.queries - window)
        begin = lax.div(jnp.maximum(oldest, 0), jnp.int32(columns))

    here = (query < sizes.queries)[:, None]
    inner = (jnp.arange(q.shape[1], dtype=jnp.int32) < sizes.dim)[None, :]
    outer = (jnp.arange(v.shape[1], dtype=jnp.int32) < sizes.v_dim)[None, :]
    queries = plt.load(q, mask=here & inner, other=0.0)
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    product = functools.partial(
        lax.dot_general, preferred_element_type=jnp.float32, precision=precision
    )
    scale = op.head_dim**-0.5 if op.score_scale is None else op.score_scale

    def step(block: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        sums, before, total = carry
        at = pl.ds(block * columns, columns)
        key = block * columns + jnp.arange(columns, dtype=jnp.int32)
        there = (key < limit)[:, None]
        keys = plt.load(k.at[at, :], mask=there & inner, other=0.0)
        scores = product(queries, keys, (((1,), (1,)), ((), ()))) * jnp.float32(scale)
        if op.softcap is not None:
            scores = op.softcap * jnp.tanh(scores / op.softcap)
        visible = (key < limit)[None, :]
        if masked:
            visible = visible & (key[None, :] <= position[:, None])
        if window is not None:
            visible = visible & (key[None, :] >= position[:, None] - window)
        scores = jnp.where(visible, scores, -jnp.inf)
        now = jnp.maximum(before, jnp.max(scores, axis=1))
        # A query that has seen nothing yet keeps zeros: exp(-inf - 0), not of -inf - -inf.
        base = jnp.where(now == -jnp.inf, 0.0, now)
        weights = jnp.exp(scores - base[:, None])
        kept = jnp.exp(before - base)
        values = plt.load(v.at[at, :], mask=there & outer, other=0.0)
        added = product(weights.astype(values.dtype), values, (((1,), (0,)), ((), ())))
        return sums * kept[:, None] + added, now, total * kept + jnp.sum(weights, axis=1)

    start = (
        jnp.zeros((rows, v.shape[1]), jnp.float32),
        jnp.full((rows,), -jnp.inf, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
    )
    blocks = lax.div(end + (columns - 1), jnp.int32(columns))
    sums, _, total = lax.fori_loop(begin, blocks, step, start)
    out = sums / total[:, None]
    if op.masked_rows == "zeros" and op.mask_kind is not MaskKind.NONE:
        sees = (position >= 0) if masked else jnp.full((rows,), limit > 0)
        out = jnp.where(sees[:, None], out, 0.0)
    plt.store(y, out.astype(y.dtype), mask=here & outer)


def blocks_of(sizes: Sizes, dtype: DType) -> tuple[int, int]:
    """Queries and keys of a block: fewer of long heads, so that registers hold them."""
    longest = max(power_of_2(sizes.dim), power_of_2(sizes.v_dim))
    most = 128 if longest <= 64 else 64 if longest <= 128 else 32
    if dtype is DType.F32:
        most //= 2
    rows = min(most, power_of_2(sizes.queries, _LEAST))
    return rows, min(64, most, power_of_2(sizes.keys, _LEAST))


def make(
    op: Attention, types: Sequence[TensorType], *, interpret: bool = False
) -> Callable[..., Any]:
    """The function of q, k, v and, for mask_kind lengths, of the lengths.

    Args:
        op: the op.
        types: of its inputs.
        interpret: run as JAX operations, on any device.
    """
    sizes = sizes_of(op, types)
    rows, columns = blocks_of(sizes, types[0].dtype)
    group = sizes.heads // sizes.kv_heads
    keys = -(-sizes.keys // columns) * columns
    dim, v_dim = (power_of_2(size, _LEAST) for size in (sizes.dim, sizes.v_dim))

    def spec(length: int, width: int, place: Callable[..., tuple[Any, Any, Any]]) -> pl.BlockSpec:
        """Block of one batch and head; ``place`` gives batch, block along the sequence, head."""
        if op.layout == "bhsd":

            def at(i: Any, h: Any, b: Any) -> tuple[Any, Any, Any, int]:
                batch, block, head = place(i, h, b)
                return batch, head, block, 0

            return pl.BlockSpec((None, None, length, width), at)
        return pl.BlockSpec((None, length, None, width), lambda i, h, b: (*place(i, h, b), 0))

    queried = functools.partial(spec, rows, place=lambda i, h, b: (b, i, h))
    kept = functools.partial(spec, keys, place=lambda i, h, b: (b, 0, h // group))

    def attention(q: Any, k: Any, v: Any, *mask: Any) -> Any:
        lengths = [x.astype(jnp.int32) for x in mask]
        shape = (*q.shape[:3], sizes.v_dim)
        return pl.pallas_call(
            functools.partial(_attend, op=op, sizes=sizes, rows=rows, columns=columns),
            grid=(-(-sizes.queries // rows), sizes.heads, sizes.batch),
            in_specs=[
                queried(dim),
                kept(dim),
                kept(v_dim),
                *[pl.BlockSpec((1,), lambda i, h, b: (b,)) for _ in lengths],
            ],
            out_specs=queried(v_dim),
            out_shape=jax.ShapeDtypeStruct(shape, q.dtype),
            compiler_params=plt.CompilerParams(num_warps=4),
            interpret=interpret,
        )(q, k, v, *lengths)

    return attention
