"""Ways of writing attention with biases, with and without masks, and what looks like it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from tests.rlx_xla.recognize_models import (
    BSHD,
    GROUPS,
    LOWEST,
    QKV,
    SEQUENCES,
    B,
    D,
    H,
    S,
    _einsum_scores,
    _mix,
    _places,
    _tril,
)
from tests.rlx_xla.recognize_ways import Way, bools


def _slopes() -> Any:
    return 2.0 ** (-8 * (jnp.arange(H) + 1) / H)


def _distances() -> Any:
    query, key = _places()
    return (key - query).astype(jnp.float32)


def alibi(fill: float | None) -> Callable[..., Any]:
    def function(q: Any, k: Any, v: Any) -> Any:
        scores = _einsum_scores(q, k) + _slopes()[:, None, None] * _distances()
        return _mix(scores if fill is None else jnp.where(_tril(), scores, fill), v)

    return function


def alibi_of_keys(q: Any, k: Any, v: Any) -> Any:
    """Slopes times places of keys, as BLOOM adds them, and a mask that is added."""
    scores = _einsum_scores(q, k) + _slopes()[:, None, None] * jnp.arange(S)
    return _mix(scores + jnp.where(_tril(), 0, -jnp.inf), v)


def less_distances(q: Any, k: Any, v: Any) -> Any:
    scores = _einsum_scores(q, k) - _slopes()[:, None, None] * jnp.abs(_distances())
    return _mix(jnp.where(_tril(), scores, -jnp.inf), v)


def _relative(table: Any) -> Any:
    """A bias for each distance and head, as T5 has it."""
    query, key = _places()
    return jnp.transpose(table[jnp.clip(key - query, -4, 3) + 4], (2, 0, 1))[None]


def relative_and_padding(q: Any, k: Any, v: Any, table: Any, mask: Any) -> Any:
    seen = mask.at[:, 0].set(True)
    hidden = jnp.where(seen[:, None, None, :], 0.0, -1e10)
    return _mix(jnp.einsum("bqhd,bkhd->bhqk", q, k) + _relative(table) + hidden, v)


def groups_first(q: Any, k: Any, v: Any) -> Any:
    """Query heads in groups of which each reads all heads of keys."""
    split = q.reshape(B, S, 2, 2, D)
    weights = jax.nn.softmax(jnp.einsum("bqghd,bkhd->bghqk", split, k) * D**-0.5)
    return jnp.einsum("bghqk,bkhd->bqghd", weights, v).reshape(BSHD)


def bias_and_mask(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, bias=bias, mask=mask[:, None, None, :])


def mask_under_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return _mix(jnp.where(_tril(), _einsum_scores(q, k), -jnp.inf) + bias, v)


def masked_by_products(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """As GPT-2 in its first form: hidden scores are multiplied by 0."""
    seen = mask[:, None, None, :].astype(jnp.float32)
    return _mix(_einsum_scores(q, k) * seen - 1e10 * (1 - seen), v)


def relative_products(q: Any, k: Any, v: Any, places: Any) -> Any:
    """As Shaw et al. have it: queries meet vectors for distances too."""
    return _mix(_einsum_scores(q, k) + jnp.einsum("bqhd,qkd->bhqk", q, places), v)


def dropped(scale: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def function(q: Any, k: Any, v: Any, keep: Any) -> Any:
        weights = scale(jax.nn.softmax(_einsum_scores(q, k), -1), keep)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    return function


def with_sink(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """A place beside the keys that takes weight and gives nothing."""
    scores = _einsum_scores(q, k)
    beside = jnp.broadcast_to(sink[None, :, None, None], (B, H, S, 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, beside], -1), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights[..., :-1], v)


def divided_after(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT
    e = jnp.exp(scores - scores.max(-1, keepdims=True))
    return (e @ v) / e.sum(-1, keepdims=True)


def complex_rope(x: Any) -> Any:
    angles = jnp.arange(S)[:, None] / (100.0 ** (jnp.arange(0, D, 2) / D))
    turned = lax.complex(x[..., ::2], x[..., 1::2]) * jnp.exp(1j * angles)[None, :, None]
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


def _eqx_dropout() -> Callable[..., Any]:
    key = jax.random.key(0)
    module = eqx.nn.MultiheadAttention(2, 8, dropout_p=0.1, key=key)
    return lambda x: module(x, x, x, key=key)


BIAS = {"attention (bias)": 1}
CAUSAL_BIAS = {"attention (bias, causal)": 1}
DROPOUT = "its weights are multiplied or chosen from before they meet v, as by a dropout"
WAYS = [
    Way("alibi", alibi(None), SEQUENCES, BIAS),
    Way("alibi, causal, −Inf", alibi(-jnp.inf), SEQUENCES, CAUSAL_BIAS),
    Way("alibi, causal, lowest", alibi(LOWEST), SEQUENCES, CAUSAL_BIAS, hostile=False),
    Way("alibi of keys, added mask", alibi_of_keys, SEQUENCES, BIAS),
    Way("distances taken away, causal", less_distances, SEQUENCES, CAUSAL_BIAS),
    Way("jax.nn attention, bias, causal", lambda q, k, v, bias: jax.nn.dot_product_attention(
        q, k, v, bias=bias, is_causal=True), (*SEQUENCES, (1, H, S, S)), CAUSAL_BIAS,
        hostile=False),
    Way("relative bias and padding", relative_and_padding, (*SEQUENCES, (8, H), bools((B, S))),
        BIAS, hostile=False),
    Way("attention, groups before heads", groups_first, (BSHD, GROUPS, GROUPS),
        {"attention (none)": 1}),
]  # fmt: skip
WAYS = [dataclasses.replace(way, scores=True) for way in WAYS]

LOOKALIKES = [
    Way("a bias and a mask tensor", bias_and_mask, (*SEQUENCES, (1, H, S, S), bools((B, S))),
        {"softmax": 1}, misses=(
        "it has a bias, and a mask that is not known to be causal: the op takes one of both",)),
    Way("a mask under the bias", mask_under_bias, (*SEQUENCES, (H, S, S)), {"softmax": 1},
        misses=("a mask lies under the bias",)),
    Way("a mask by products", masked_by_products, (*SEQUENCES, bools((B, S))), {"softmax": 1},
        misses=("its scores are multiplied by a tensor",)),
    Way("relative positions by products", relative_products, (*SEQUENCES, (S, S, D)),
        {"softmax": 1}, misses=("two products are added",)),
    Way("a dropout that chooses", dropped(lambda w, keep: jnp.where(keep, w / 0.9, 0)),
        (*SEQUENCES, bools((B, H, S, S))), {"softmax": 1}, misses=(DROPOUT,)),
    Way("a dropout that multiplies", dropped(lambda w, keep: w * keep / 0.9),
        (*SEQUENCES, bools((B, H, S, S))), {"softmax": 1}, misses=(DROPOUT,)),
    Way("eqx attention with a dropout", _eqx_dropout(), ((S, 8),), {"softmax": 1},
        misses=(DROPOUT,)),
    Way("attention beside a sink", with_sink, (*SEQUENCES, (H,)), {"softmax": 1}, misses=(
        "its weights are a part of a softmax over more keys, as beside a sink",)),
    Way("attention that divides last", divided_after, QKV, {}, misses=(
        "its weights are divided by their sum after the product with v, and not before",)),
    Way("rope by complex numbers", complex_rope, (BSHD,), {}, misses=(
        "it turns pairs as complex numbers, and the op takes sines and cosines",)),
    Way("a bias that is scaled away", lambda q, k, v, bias: jax.nn.softmax(
        bias - q @ k.mT, -1) @ v, (*QKV, (B, H, S, S)), {"softmax": 1}),
]  # fmt: skip
