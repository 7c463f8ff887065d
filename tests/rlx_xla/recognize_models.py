"""Ways of writing attention, rotary embeddings and selective scans, and look-alikes of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from tests.rlx_xla.recognize_ways import Way, bools

B, S, H, D = 2, 6, 4, 8
BHSD = (B, H, S, D)
BSHD = (B, S, H, D)
GROUPS = (B, S, 2, D)
LOWEST = float(jnp.finfo(jnp.float32).min)


def _scores(q: Any, k: Any) -> Any:
    return q @ k.mT / jnp.sqrt(D)


def _einsum_scores(q: Any, k: Any) -> Any:
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5


def _mix(scores: Any, v: Any) -> Any:
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def _tril() -> Any:
    return jnp.tril(jnp.ones((S, S), bool))


def _places() -> tuple[Any, Any]:
    return jnp.arange(S)[:, None], jnp.arange(S)[None, :]


def plain(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(_scores(q, k)) @ v


def scaled_before(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax((q * D**-0.5) @ k.mT) @ v


def by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = _scores(q, k)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


def causal(fill: float) -> Callable[..., Any]:
    return lambda q, k, v: jax.nn.softmax(jnp.where(_tril(), _scores(q, k), fill)) @ v


def causal_by_iota(q: Any, k: Any, v: Any) -> Any:
    query, key = _places()
    return jax.nn.softmax(jnp.where(key <= query, _scores(q, k), -jnp.inf)) @ v


def causal_by_floats(q: Any, k: Any, v: Any) -> Any:
    seen = jnp.tril(jnp.ones((S, S)))
    return jax.nn.softmax(jnp.where(seen == 0, LOWEST, _scores(q, k))) @ v


def causal_by_triu(q: Any, k: Any, v: Any) -> Any:
    hidden = jnp.triu(jnp.ones((S, S), bool), 1)
    return jax.nn.softmax(jnp.where(hidden, -1e9, _scores(q, k))) @ v


def sliding(q: Any, k: Any, v: Any) -> Any:
    query, key = _places()
    seen = (key <= query) & (query - key < 3)
    return jax.nn.softmax(jnp.where(seen, _scores(q, k), -jnp.inf)) @ v


def padding(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _mix(jnp.where(mask[:, None, None, :], _einsum_scores(q, k), -jnp.inf), v)


def padding_finite(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _mix(jnp.where(mask[:, None, None, :], _einsum_scores(q, k), -1e9), v)


def padding_and_causal(q: Any, k: Any, v: Any, mask: Any) -> Any:
    seen = mask[:, None, None, :] & _tril()[None, None]
    return _mix(jnp.where(seen, _einsum_scores(q, k), -jnp.inf), v)


def two_masks(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = jnp.where(_tril()[None, None], _einsum_scores(q, k), -jnp.inf)
    return _mix(jnp.where(mask[:, None, None, :], scores, -jnp.inf), v)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return _mix(_einsum_scores(q, k) + bias[None], v)


def capped(q: Any, k: Any, v: Any) -> Any:
    return _mix(20.0 * jnp.tanh(_einsum_scores(q, k) / 20.0), v)


def grouped_by_repeat(q: Any, k: Any, v: Any) -> Any:
    return _mix(_einsum_scores(q, jnp.repeat(k, 2, axis=2)), jnp.repeat(v, 2, axis=2))


def grouped_by_reshape(q: Any, k: Any, v: Any) -> Any:
    split = q.reshape(B, S, 2, 2, D)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", split, k) * D**-0.5
    weights = jax.nn.softmax(jnp.where(_tril(), scores, -1e9))
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(BSHD)


def one_sequence(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k)), v)


def one_head(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T / jnp.sqrt(D)) @ v


def decode(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _mix(jnp.where(mask[:, None, None, :], _einsum_scores(q, k), LOWEST), v)


def _linen_attention() -> Callable[..., Any]:
    module = nn.MultiHeadDotProductAttention(num_heads=2)
    params = module.init(jax.random.key(0), jnp.ones((B, S, 8)))
    return lambda x: module.apply(params, x, mask=nn.make_causal_mask(x[..., 0]))


def _nnx_attention() -> Callable[..., Any]:
    module = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    return lambda x: module(x)


def _eqx_attention() -> Callable[..., Any]:
    module = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
    return jax.vmap(lambda x: module(x, x, x))


def _haiku_attention() -> Callable[..., Any]:
    def make(x: Any) -> Any:
        module = hk.MultiHeadAttention(2, 4, w_init=hk.initializers.RandomNormal())
        return module(x, x, x)

    transformed = hk.transform(make)
    params = transformed.init(jax.random.key(0), jnp.ones((B, S, 8)))
    return lambda x: transformed.apply(params, None, x)


def _tables(cos: Any, sin: Any, axis: int = 1) -> tuple[Any, Any]:
    shape = [1, 1, 1, cos.shape[-1]]
    shape[axis] = cos.shape[0]
    return cos.reshape(shape), sin.reshape(shape)


def neox(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = _tables(cos, sin)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def rotated_half(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = (jnp.concatenate([t, t], -1) for t in (cos, sin))
    cos, sin = _tables(cos, sin, 2)
    first, second = x[..., : D // 2], x[..., D // 2 :]
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def rotated_half_of_angles(x: Any) -> Any:
    frequencies = 1 / (10000 ** (jnp.arange(0, D, 2) / D))
    angles = jnp.arange(S)[:, None] * frequencies[None]
    angles = jnp.concatenate([angles, angles], -1)
    cos, sin = _tables(jnp.cos(angles), jnp.sin(angles))
    first, second = x[..., : D // 2], x[..., D // 2 :]
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def gptj(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = _tables(cos, sin)
    first, second = x[..., ::2], x[..., 1::2]
    turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.reshape(x.shape)


def gptj_of_pairs(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = _tables(cos, sin)
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([first * cos - second * sin, first * sin + second * cos], -1)
    return turned.reshape(x.shape)


def selective_scan(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        x, d, b, c = now
        h = jnp.exp(d[..., None] * -jnp.exp(a)) * h + (d * x)[..., None] * b[:, None, :]
        return h, (h * c[:, None, :]).sum(-1)

    along = jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), (x, jax.nn.sigmoid(delta), b, c))
    _, y = lax.scan(step, jnp.zeros((x.shape[0], x.shape[2], b.shape[2])), along)
    return jnp.swapaxes(y, 0, 1)


def selective_scan_prepared(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    delta = jax.nn.sigmoid(delta)
    decay = jnp.exp(jnp.einsum("bsh,hn->bshn", delta, -jnp.exp(a)))
    entering = jnp.einsum("bsh,bsh,bsn->bshn", delta, x, b)

    def step(h: Any, now: Any) -> Any:
        decay, entering, c = now
        h = decay * h + entering
        return h, jnp.einsum("bhn,bn->bh", h, c)

    along = jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), (decay, entering, c))
    _, y = lax.scan(step, jnp.zeros((x.shape[0], x.shape[2], b.shape[2])), along)
    return jnp.swapaxes(y, 0, 1)


def selective_scan_of_one(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        x, d, b, c = now
        h = jnp.exp(d[:, None] * a) * h + d[:, None] * x[:, None] * b[None]
        return h, h @ c

    return lax.scan(step, jnp.zeros(a.shape), (x, jax.nn.sigmoid(delta), b, c))[1]


def lstm(x: Any, w: Any, u: Any, bias: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(now @ w + h @ u + bias, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[1], u.shape[0]))
    return lax.scan(step, (start, start), x)[1]


def lstm_by_rows(x: Any, w: Any, u: Any, bias: Any, h: Any, c: Any) -> Any:
    width = u.shape[1]

    def step(carry: Any, now: Any) -> Any:
        h, c = carry
        gates = now @ w.T + h @ u.T + bias
        i, f, g, o = (gates[:, n * width : (n + 1) * width] for n in range(4))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), jax.nn.sigmoid(o) * jnp.tanh(c)

    return lax.scan(step, (h, c), x)


def lstm_of_other_gates(x: Any, w: Any, u: Any, bias: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(now @ w + h @ u + bias, 4, -1)
        c = jax.nn.sigmoid(f) * c + (1 - jax.nn.sigmoid(f)) * jnp.tanh(g)
        h = jax.nn.sigmoid(o + i) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[1], u.shape[0]))
    return lax.scan(step, (start, start), x)[1]


def rnn(x: Any, w: Any, u: Any, bias: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        h = jnp.tanh(now @ w + bias + h @ u)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)


def _linen_rnn(cell: nn.Module) -> Callable[..., Any]:
    module = nn.RNN(cell)
    params = module.init(jax.random.key(0), jnp.ones((B, S, 3)))

    def apply(x: Any) -> Any:
        start = (jnp.zeros((B, 4), x.dtype),) * 2
        start = start[0] if isinstance(cell, nn.SimpleCell) else start
        return module.apply(params, x, initial_carry=start)

    return apply


CELL = ((S, B, 3), (3, 16), (4, 16), (16,))
ROWS = ((S, B, 3), (16, 3), (16, 4), (16,), (B, 4), (B, 4))
QKV = (BHSD, BHSD, BHSD)
SEQUENCES = (BSHD, BSHD, BSHD)
TABLES = (BSHD, (S, D // 2), (S, D // 2))
SCAN = ((B, S, 4), (B, S, 4), (4, 3), (B, S, 3), (B, S, 3))
NONE = {"attention (none)": 1}
CAUSAL = {"attention (causal)": 1}
CUSTOM = {"attention (custom)": 1}
WAYS = [
    Way("attention", plain, QKV, NONE),
    Way("attention, scaled before", scaled_before, QKV, NONE),
    Way("attention by hand", by_hand, QKV, NONE),
    Way("attention, bf16", plain, QKV, NONE, jnp.bfloat16),
    Way("attention, f64", plain, QKV, NONE, jnp.float64, x64=True),
    Way("attention, −Inf", causal(-jnp.inf), QKV, CAUSAL),
    Way("attention, −1e9", causal(-1e9), QKV, CAUSAL, hostile=False),
    Way("attention, lowest", causal(LOWEST), QKV, CAUSAL, hostile=False),
    Way("attention, iota", causal_by_iota, QKV, CAUSAL),
    Way("attention, tril of floats", causal_by_floats, QKV, CAUSAL, hostile=False),
    Way("attention, triu", causal_by_triu, QKV, CAUSAL, hostile=False),
    Way("attention, window", sliding, QKV, {"attention (sliding_window)": 1}),
    Way("attention of sequences", lambda q, k, v: _mix(_einsum_scores(q, k), v), SEQUENCES, NONE),
    Way("attention, padding", padding, (*SEQUENCES, bools((B, S))), CUSTOM),
    Way("attention, finite padding", padding_finite, (*SEQUENCES, bools((B, S))), CUSTOM,
        hostile=False),
    Way("attention, padding and causal", padding_and_causal, (*SEQUENCES, bools((B, S))), CUSTOM),
    Way("attention, two masks", two_masks, (*SEQUENCES, bools((B, S))), CUSTOM),
    Way("attention, bias", biased, (*SEQUENCES, (H, S, S)), {"attention (bias)": 1}),
    Way("attention, soft cap", capped, SEQUENCES, NONE),
    Way("attention, repeated heads", grouped_by_repeat, (BSHD, GROUPS, GROUPS), NONE),
    Way("attention, grouped heads", grouped_by_reshape, (BSHD, GROUPS, GROUPS), CAUSAL,
        hostile=False),
    Way("attention under vmap", jax.vmap(one_sequence), SEQUENCES, NONE),
    Way("attention of one sequence", one_sequence, ((S, H, D),) * 3, NONE),
    Way("attention of one head", one_head, ((S, D),) * 3, NONE),
    Way("attention of one head under vmap", jax.vmap(jax.vmap(one_head)), QKV, NONE),
    Way("attention of one query", decode, ((B, 1, H, D), BSHD, BSHD, bools((B, S))), CUSTOM,
        hostile=False),
    Way("jax.nn attention", jax.nn.dot_product_attention, SEQUENCES, NONE),
    Way("jax.nn attention, causal", lambda q, k, v: jax.nn.dot_product_attention(
        q, k, v, is_causal=True), SEQUENCES, CAUSAL, hostile=False),
    Way("jax.nn attention, groups, bf16", lambda q, k, v: jax.nn.dot_product_attention(
        q, k, v, is_causal=True), (BSHD, GROUPS, GROUPS), CAUSAL, jnp.bfloat16, hostile=False),
    Way("jax.nn attention, window", lambda q, k, v: jax.nn.dot_product_attention(
        q, k, v, is_causal=True, local_window_size=(2, 0)), SEQUENCES,
        {"attention (sliding_window)": 1}, hostile=False),
    Way("linen attention", _linen_attention(), ((B, S, 8),), CAUSAL, hostile=False),
    Way("nnx attention", _nnx_attention(), ((B, S, 8),), NONE),
    Way("eqx attention", _eqx_attention(), ((B, S, 8),), NONE),
    Way("hk attention", _haiku_attention(), ((B, S, 8),), NONE),
    Way("rope, halves", neox, TABLES, {"rope": 1}),
    Way("rope, rotated half", rotated_half, (BHSD, (S, D // 2), (S, D // 2)), {"rope": 1}),
    Way("rope, rotated half of angles", rotated_half_of_angles, (BSHD,), {"rope": 1}),
    Way("rope, pairs", gptj, TABLES, {"rope": 1}),
    Way("rope, reshaped pairs", gptj_of_pairs, TABLES, {"rope": 1}),
    Way("rope, bf16", neox, TABLES, {"rope": 1}, jnp.bfloat16),
    Way("rope under vmap", jax.vmap(neox, (0, None, None)), ((3, *BSHD), *TABLES[1:]),
        {"rope": 1}),
    Way("selective scan", selective_scan, SCAN, {"selective_scan": 1}),
    Way("selective scan, prepared", selective_scan_prepared, SCAN, {"selective_scan": 1}),
    Way("selective scan of one", selective_scan_of_one,
        ((S, 4), (S, 4), (4, 3), (S, 3), (S, 3)), {"selective_scan": 1}),
    Way("lstm", lstm, CELL, {"lstm": 1}),
    Way("lstm by rows, states kept", lstm_by_rows, ROWS, {"lstm": 1}),
    Way("rnn", rnn, ((S, B, 3), (3, 4), (4, 4), (4,)), {"rnn": 1}),
    Way("linen.OptimizedLSTMCell", _linen_rnn(nn.OptimizedLSTMCell(4)), ((B, S, 3),), {"lstm": 1}),
    Way("linen.LSTMCell", _linen_rnn(nn.LSTMCell(4)), ((B, S, 3),), {"lstm": 1}),
    Way("linen.SimpleCell", _linen_rnn(nn.SimpleCell(4)), ((B, S, 3),), {"rnn": 1}),
    Way("selective scan under vmap", jax.vmap(selective_scan_of_one, (0, 0, None, 0, 0)), SCAN,
        {"selective_scan": 1}),
]  # fmt: skip


WAYS = [
    dataclasses.replace(way, scores="attention" in way.name and len(way.shapes) > 1) for way in WAYS
]


def dropped(q: Any, k: Any, v: Any, keep: Any) -> Any:
    weights = jax.nn.softmax(_scores(q, k))
    return jnp.where(keep, weights / 0.9, 0) @ v


def multiplied(q: Any, k: Any, v: Any, keep: Any) -> Any:
    return jax.nn.softmax(_scores(q, k) * keep) @ v


def with_weights(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(_scores(q, k))
    return weights @ v, weights


def other_axis(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(_scores(q, k), axis=-2) @ v


def without_softmax(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.sigmoid(_scores(q, k)) @ v


def bias_scaled(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return jax.nn.softmax((q @ k.mT + bias) / 3.0) @ v


def cap_after_mask(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.where(_tril(), _scores(q, k), -1e9)
    return jax.nn.softmax(20 * jnp.tanh(scores / 20)) @ v


def off_by(number: int) -> Callable[..., Any]:
    def function(q: Any, k: Any, v: Any) -> Any:
        seen = jnp.tril(jnp.ones((S, S), bool), number)
        return jax.nn.softmax(jnp.where(seen, _scores(q, k), -1e9)) @ v

    return function


def anticausal(q: Any, k: Any, v: Any) -> Any:
    query, key = _places()
    return jax.nn.softmax(jnp.where(key >= query, _scores(q, k), -jnp.inf)) @ v


def wrong_turn(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = _tables(cos, sin)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos - first * sin], -1)


def crossed_tables(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = _tables(cos, sin)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * sin + first * cos], -1)


def full_tables(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = _tables(cos, sin)
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def kept_state(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        x, d, b, c = now
        h = jnp.exp(d[:, None] * a) * h + d[:, None] * x[:, None] * b[None]
        return h, h @ c

    return lax.scan(step, jnp.zeros(a.shape), (x, delta, b, c))


def from_ones(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        x, d, b, c = now
        h = jnp.exp(d[:, None] * a) * h + d[:, None] * x[:, None] * b[None]
        return h, h @ c

    return lax.scan(step, jnp.ones(a.shape), (x, delta, b, c))[1]


def undecayed(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        x, d, b, c = now
        h = (d[:, None] * a) * h + d[:, None] * x[:, None] * b[None]
        return h, h @ c

    return lax.scan(step, jnp.zeros(a.shape), (x, delta, b, c))[1]


ONE_SCAN = ((S, 4), (S, 4), (4, 3), (S, 3), (S, 3))
LOOKALIKES = [
    Way("a dropout between", dropped, (*QKV, bools((B, H, S, S))), {"softmax": 1}),
    Way("scores times a tensor", multiplied, (*QKV, (B, H, S, S)), {"softmax": 1},
        misses=("its scores are multiplied by a tensor",)),
    Way("weights returned", with_weights, QKV, {"softmax": 1},
        misses=("its weights are used elsewhere",)),
    Way("a gradient of attention", jax.grad(lambda q, k, v: plain(q, k, v).sum()), QKV, {}),
    Way("softmax of queries", other_axis, QKV, {"softmax": 1}),
    Way("sigmoid in place of softmax", without_softmax, QKV, {}),
    Way("a bias that is scaled", bias_scaled, (*QKV, (B, H, S, S)), {"softmax": 1},
        misses=("its scores are scaled after the bias",)),
    Way("a cap after the mask", cap_after_mask, QKV, {"softmax": 1},
        misses=("its scores are scaled after the mask",)),
    Way("a fill of −1e4", causal(-1e4), QKV, {"softmax": 1},
        misses=("hidden scores become -10000",)),
    Way("a fill of NaN", causal(math.nan), QKV, {"softmax": 1},
        misses=("hidden scores become nan",)),
    Way("causal, off by one below", off_by(-1), QKV, CUSTOM,
        misses=("t ≤ s + -1 is not t ≤ s + 0",)),
    Way("causal, off by one above", off_by(1), QKV, CUSTOM,
        misses=("t ≤ s + 1 is not t ≤ s + 0",)),
    Way("anticausal", anticausal, QKV, CUSTOM, misses=("t ≥ s + 0 is not",)),
    Way("rope with a wrong turn", wrong_turn, TABLES, {}),
    Way("rope with crossed tables", crossed_tables, TABLES, {}),
    Way("rope with full tables", full_tables, (BSHD, (S, D), (S, D)), {},
        misses=("its tables are not known to hold each half twice",)),
    Way("selective scan, state kept", kept_state, ONE_SCAN, {},
        misses=("its last state is read",)),
    Way("selective scan from ones", from_ones, ONE_SCAN, {},
        misses=("its first state is not known to be zeros",)),
    Way("scan without a decay", undecayed, ONE_SCAN, {}),
    Way("a cell of other gates", lstm_of_other_gates, CELL, {}),
]  # fmt: skip
