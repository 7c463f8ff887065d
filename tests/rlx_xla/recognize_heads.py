"""Attention and rotary embeddings as models have them: groups of heads, masks, biases, sinks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from tests.rlx_xla.recognize_models import (
    BHSD,
    BSHD,
    GROUPS,
    QKV,
    SEQUENCES,
    TABLES,
    B,
    D,
    H,
    S,
    _einsum_scores,
    _mix,
    _places,
    _scores,
    _tril,
)
from tests.rlx_xla.recognize_ways import Way, bools, ints

LOW = -2.3819763e38
"""What Gemma fills hidden scores with."""


def t5_buckets(q: Any, k: Any, v: Any, table: Any) -> Any:
    """A bias for buckets of distances, wider ones further away."""
    query, key = _places()
    distance = jnp.maximum(query - key, 0)
    far = 4 + (jnp.log(jnp.maximum(distance, 1) / 4) / math.log(4) * 4).astype(jnp.int32)
    bias = table[jnp.where(distance < 4, distance, jnp.minimum(far, 7))].transpose(2, 0, 1)
    return _mix(jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias[None], v)


def normed_queries(q: Any, k: Any, v: Any, gain: Any, other: Any) -> Any:
    def norm(x: Any, gamma: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gamma

    return _mix(_einsum_scores(norm(q, gain), norm(k, other)), v)


def cosines(q: Any, k: Any, v: Any) -> Any:
    q, k = (x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    return _mix(10 * jnp.einsum("bqhd,bkhd->bhqk", q, k), v)


def one_key_head(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkd->bhqk", q, k) * D**-0.5, -1)
    return jnp.einsum("bhqk,bkd->bqhd", weights, v)


def one_head_spread(q: Any, k: Any, v: Any) -> Any:
    k, v = (jnp.broadcast_to(x, BSHD) for x in (k, v))
    return _mix(_einsum_scores(q, k), v)


def groups_spread(q: Any, k: Any, v: Any) -> Any:
    k, v = (jnp.broadcast_to(x[:, :, :, None], (B, S, 2, 2, D)).reshape(BSHD) for x in (k, v))
    return _mix(jnp.where(_tril(), _einsum_scores(q, k), -jnp.inf), v)


def groups_of_gemma(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", q.reshape(B, S, 2, 2, D), k) * D**-0.5
    scores = jnp.where(_tril()[None, None, None], jnp.tanh(scores / 50) * 50, LOW)
    mixed = jnp.einsum("BKGTS,BSKH->BTKGH", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(BSHD)


def heads_last(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("BTNH,BSNH->BTNS", q * D**-0.5, k)
    scores = jnp.where(_tril()[None, :, None], scores, LOW)
    return jnp.einsum("BTNS,BSNH->BTNH", jax.nn.softmax(scores, -1), v)


def _alike(segments: Any) -> Any:
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def packed(q: Any, k: Any, v: Any, segments: Any) -> Any:
    return _mix(jnp.where(_alike(segments) & _tril(), _einsum_scores(q, k), -jnp.inf), v)


def packed_added(q: Any, k: Any, v: Any, segments: Any) -> Any:
    alike = _alike(segments)
    bias = lax.select(alike, jnp.zeros(alike.shape), jnp.full(alike.shape, -1e10))
    return _mix(_einsum_scores(q, k) + bias, v)


def window(seen: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def function(q: Any, k: Any, v: Any) -> Any:
        query, key = (lax.broadcasted_iota(jnp.int32, (S, S), axis) for axis in (0, 1))
        return jax.nn.softmax(jnp.where(seen(query, key), _scores(q, k), -jnp.inf)) @ v

    return function


def band(q: Any, k: Any, v: Any) -> Any:
    ones = jnp.ones((S, S), bool)
    seen = jnp.tril(ones) & jnp.triu(ones, -2)
    return jax.nn.softmax(jnp.where(seen, _scores(q, k), -jnp.inf)) @ v


def wide_scores(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * D**-0.5
    weights = jax.nn.softmax(jnp.where(_tril(), scores, -jnp.inf), -1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def by_dot_general(q: Any, k: Any, v: Any) -> Any:
    batch = ((0, 1), (0, 1))
    scores = lax.dot_general(q, k, (((3,), (3,)), batch)) / np.float32(np.sqrt(D))
    return lax.dot_general(jax.nn.softmax(scores), v, (((3,), (2,)), batch))


def flat_heads(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.reshape(B, S, H, D).transpose(0, 2, 1, 3) for x in (q, k, v))
    mixed = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * D**-0.5) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(B, S, H * D)


def one_projection(x: Any, w: Any) -> Any:
    """As nanoGPT has it."""
    q, k, v = (part.reshape(B, S, 2, 4).swapaxes(1, 2) for part in jnp.split(x @ w, 3, -1))
    scores = (q @ jnp.swapaxes(k, -2, -1)) * (1 / math.sqrt(4))
    mask = jnp.tril(jnp.ones((S, S))).reshape(1, 1, S, S)
    weights = jax.nn.softmax(jnp.where(mask == 0, float("-inf"), scores), -1)
    return (weights @ v).swapaxes(1, 2).reshape(B, S, 8)


def one_projection_of_parts(x: Any, w: Any) -> Any:
    q, k, v = jnp.einsum("bsd,dthk->tbshk", x, w)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _nnx_masked() -> Callable[..., Any]:
    module = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    return lambda x, mask: module(x, mask=nn.make_attention_mask(mask, mask))


def _linen_masks() -> Callable[..., Any]:
    module = nn.MultiHeadDotProductAttention(num_heads=2)
    params = module.init(jax.random.key(0), jnp.ones((B, S, 8)))

    def function(x: Any, mask: Any) -> Any:
        pairs = nn.make_attention_mask(mask, mask)
        return module.apply(params, x, mask=nn.combine_masks(nn.make_causal_mask(mask), pairs))

    return function


def sunk(beside: Callable[[Any], Any]) -> Callable[..., Any]:
    """Attention of which a part of the weights goes nowhere, written out."""

    def function(q: Any, k: Any, v: Any, *sinks: Any) -> Any:
        scores = _einsum_scores(q, k)
        sink = beside(*sinks)
        top = jnp.maximum(scores.max(-1, keepdims=True), sink)
        e = jnp.exp(scores - top)
        weights = e / (e.sum(-1, keepdims=True) + jnp.exp(sink - top))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    return function


def by_chunks(q: Any, k: Any, v: Any) -> Any:
    """Softmax over keys of which a part is seen at a time."""

    def step(carry: Any, now: Any) -> Any:
        top, total, mixed = carry
        scores = q @ now[0].T * D**-0.5
        new = jnp.maximum(top, scores.max(-1))
        e, kept = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
        return (new, total * kept + e.sum(-1), mixed * kept[:, None] + e @ now[1]), None

    start = (jnp.full(8, -jnp.inf), jnp.zeros(8), jnp.zeros((8, D)))
    (_, total, mixed), _ = lax.scan(step, start, (k.reshape(2, 4, D), v.reshape(2, 4, D)))
    return mixed / total[:, None]


def linear_attention(q: Any, k: Any, v: Any) -> Any:
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    total = jnp.einsum("bqhd,bhd->bqh", q, k.sum(1))
    return jnp.einsum("bqhd,bhde->bqhe", q, jnp.einsum("bkhd,bkhe->bhde", k, v)) / total[..., None]


def talking_heads(q: Any, k: Any, v: Any, w: Any) -> Any:
    return _mix(jnp.einsum("bhqk,hg->bgqk", _einsum_scores(q, k), w), v)


def by_sigmoid(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.sigmoid(_einsum_scores(q, k) - math.log(S))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def rope_of_gemma(x: Any, places: Any) -> Any:
    scale = 10_000 ** (2 * jnp.arange(D // 2) / D)
    angles = (places[..., None] / scale[None, None])[..., None, :]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def rope_of_outer(x: Any) -> Any:
    angles = jnp.outer(jnp.arange(x.shape[-2]), 1 / (10000 ** (jnp.arange(0, D, 2) / D)))
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = x[..., 0::2], x[..., 1::2]
    turned = jnp.stack((first * cos - second * sin, first * sin + second * cos), -1)
    return turned.reshape(*x.shape[:-1], -1)


def _wide(table: Any) -> Any:
    return table[None, :, None]


def rope_rolled(x: Any, cos: Any, sin: Any) -> Any:
    """x and itself rolled by a half, with sines of both signs."""
    cos, sin = jnp.concatenate([cos, cos], -1), jnp.concatenate([-sin, sin], -1)
    return x * _wide(cos) + jnp.roll(x, D // 2, -1) * _wide(sin)


def rope_of_repeated(x: Any, cos: Any, sin: Any) -> Any:
    """Pairs with tables that hold each number twice, as GPT-J has it."""
    cos, sin = (jnp.repeat(table, 2, -1) for table in (cos, sin))
    copy = jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * _wide(cos) + copy * _wide(sin)


def rope_of_tiled(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = (jnp.tile(table, (1, 2)) for table in (cos, sin))
    copy = jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)
    return x * _wide(cos) + copy * _wide(sin)


def rope_of_written_tables(style: str, *, other: bool = False) -> Callable[..., Any]:
    """Tables that are constants, with each number twice, or all but one of them."""
    angles = np.arange(S)[:, None] / (100.0 ** (np.arange(0, D, 2) / D))
    double = np.tile if style == "halves" else np.repeat
    twice: Any = (1, 2) if style == "halves" else 2
    axis = () if style == "halves" else (-1,)
    cos, sin = (double(f(angles), twice, *axis).astype(np.float32) for f in (np.cos, np.sin))
    if other:
        sin[-1, 0] += 0.5

    def function(x: Any) -> Any:
        low, high = x[..., : D // 2], x[..., D // 2 :]
        copy = jnp.concatenate([-high, low], -1)
        if style == "pairs":
            copy = jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        return x * _wide(cos) + copy * _wide(sin)

    return function


def rope_of_other_signs(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = jnp.concatenate([cos, cos], -1), jnp.concatenate([sin, sin], -1)
    return x * _wide(cos) + jnp.roll(x, D // 2, -1) * _wide(sin)


def rope_of_complex_halves(x: Any) -> Any:
    angles = jnp.arange(S)[:, None] / (100.0 ** (jnp.arange(0, D, 2) / D))
    turns = lax.complex(jnp.cos(angles), jnp.sin(angles))[None, :, None]
    turned = lax.complex(x[..., : D // 2], x[..., D // 2 :]) * turns
    return jnp.concatenate([turned.real, turned.imag], -1)


NONE, CAUSAL = {"attention (none)": 1}, {"attention (causal)": 1}
CUSTOM, BIAS = {"attention (custom)": 1}, {"attention (bias)": 1}
WINDOW = {"attention (sliding_window)": 1}
ONE = (B, S, D)
WAYS = [
    Way("attention, buckets of T5", t5_buckets, (*SEQUENCES, (8, H)), BIAS),
    Way("attention, normed queries", normed_queries, (*SEQUENCES, (D,), (D,)),
        {**NONE, "rms_norm": 2}, hostile=False),
    Way("attention of cosines", cosines, SEQUENCES, NONE, hostile=False),
    Way("attention, one key head", one_key_head, (BSHD, ONE, ONE), NONE),
    Way("attention, one key head spread", one_head_spread, (BSHD, *((B, S, 1, D),) * 2), NONE),
    Way("attention, groups spread", groups_spread, (BSHD, GROUPS, GROUPS), CAUSAL),
    Way("attention, groups of Gemma", groups_of_gemma, (BSHD, GROUPS, GROUPS), CAUSAL,
        hostile=False),
    Way("attention, heads last", heads_last, SEQUENCES, CAUSAL, hostile=False),
    Way("attention, packed sequences", packed, (*SEQUENCES, ints((B, S), 2)), CUSTOM),
    Way("attention, packed sequences added", packed_added, (*SEQUENCES, ints((B, S), 2)), BIAS,
        hostile=False),
    Way("attention, window of both sides", window(lambda i, j: jnp.abs(i - j) <= 2), QKV, CUSTOM),
    Way("attention, window of iotas", window(lambda i, j: (i >= j) & (j > i - 3)), QKV, WINDOW),
    Way("attention, band", band, QKV, WINDOW),
    Way("attention, wide scores of bf16", wide_scores, SEQUENCES, CAUSAL, jnp.bfloat16),
    Way("attention by dot_general", by_dot_general, QKV, NONE, hostile=False),
    Way("attention of flat heads", flat_heads, ((B, S, H * D),) * 3, NONE, hostile=False),
    Way("attention, remat", lambda q, k, v: jax.checkpoint(
        lambda q, k, v: jax.nn.softmax(_scores(q, k)) @ v)(q, k, v), QKV, NONE, hostile=False),
    Way("attention of one projection", one_projection, ((B, S, 8), (8, 24)), CAUSAL),
    Way("attention of one projection, parts", one_projection_of_parts, ((B, S, 8), (8, 3, 2, 4)),
        NONE, hostile=False),
    Way("nnx attention, mask", _nnx_masked(), ((B, S, 8), bools((B, S))), CUSTOM, hostile=False),
    Way("linen attention, two masks", _linen_masks(), ((B, S, 8), bools((B, S))), CUSTOM,
        hostile=False),
    Way("rope of Gemma", rope_of_gemma, (BSHD, ints((B, S), 9)), {"rope": 1}),
    Way("rope of an outer product", rope_of_outer, (BHSD,), {"rope": 1}, hostile=False),
    Way("rope, rolled", rope_rolled, TABLES, {"rope": 1}),
    Way("rope, tiled tables", rope_of_tiled, TABLES, {"rope": 1}),
    Way("eqx.nn.RotaryPositionalEmbedding", eqx.nn.RotaryPositionalEmbedding(D), ((S, D),),
        {"rope": 1}),
    Way("rope, tables written out", rope_of_written_tables("halves"), (BSHD,), {"rope": 1}),
    Way("rope, tables of pairs written out", rope_of_written_tables("pairs"), (BSHD,),
        {"rope": 1}),
    Way("rope, repeated tables", rope_of_repeated, TABLES, {"rope": 1}),
]  # fmt: skip
WAYS = [dataclasses.replace(way, scores=len(way.shapes) > 2 and "rope" not in way.name)
        for way in WAYS]  # fmt: skip

SINK = "its sum has a term besides the exponentials of its scores, as for a sink"
LOOKALIKES = [
    Way("attention with sinks", sunk(lambda sink: sink[:, None, None]), (*SEQUENCES, (H,)), {},
        misses=(SINK,)),
    Way("softmax with one more", sunk(lambda: 0.0), SEQUENCES, {}, misses=(SINK,)),
    Way("attention by chunks", by_chunks, ((8, D),) * 3, {}, misses=(
        "its keys are seen in parts, with a running maximum and sum",)),
    Way("linear attention", linear_attention, SEQUENCES, {}),
    Way("talking heads", talking_heads, (*SEQUENCES, (H, H)), {"softmax": 1}),
    Way("attention by a sigmoid", by_sigmoid, SEQUENCES, {}),
    Way("rope of other signs", rope_of_other_signs, TABLES, {}),
    Way("rope, tables written out, but for one", rope_of_written_tables(
        "halves", other=True), (BSHD,), {},
        misses=("its tables are not known to hold each half twice",)),
    Way("rope of complex halves", rope_of_complex_halves, (BSHD,), {}, misses=(
        "it turns pairs as complex numbers, and the op takes sines and cosines",)),
]  # fmt: skip
