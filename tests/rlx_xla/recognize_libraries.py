"""Layers, losses and loops as whole models of common libraries have them, of small sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

from tests.rlx_xla.recognize_layers import KEY, _haiku, _linen, _nnx
from tests.rlx_xla.recognize_ways import Way, bools, ints

B, S, C, H = 2, 6, 8, 2
X, W, V, WIDE = (B, S, C), (C, C), (C,), (C, 2 * C)
LOWEST = float(jnp.finfo(jnp.float32).min)


def _norm(x: Any, gain: Any = 1.0, eps: float = 1e-6) -> Any:
    """Layer normalisation of one pass, by hand."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * gain


def _rms(x: Any, gain: Any) -> Any:
    return gain * (x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6))


def _heads(x: Any, heads: int = H) -> Any:
    return x.reshape(*x.shape[:-1], heads, -1)


def _mixed(q: Any, k: Any, v: Any, bias: Any = None, scale: float = 0.5) -> Any:
    """Attention of [B, S, H, D] with something added to the scores; heads side by side again."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
    scores = scores if bias is None else scores + bias
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return y.reshape(*y.shape[:-2], -1)


def bert(x: Any, mask: Any, w: Any, o: Any, up: Any, down: Any) -> Any:
    """Norms after the sums; padding is added as the lowest number."""
    bias = (1.0 - mask[:, None, None, :]) * LOWEST
    q, k, v = (_heads(y) for y in jnp.split(x @ w, 3, -1))
    x = _norm(x + _mixed(q, k, v, bias) @ o, eps=1e-12)
    return _norm(x + jax.nn.gelu(x @ up, approximate=False) @ down, eps=1e-12)


def gpt2(x: Any, w: Any, o: Any, up: Any, down: Any) -> Any:
    q, k, v = (_heads(y) for y in jnp.split(_norm(x, eps=1e-5) @ w, 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(C // H)
    scores = jnp.where(jnp.tril(jnp.ones((1, 1, S, S), bool)), scores, LOWEST)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + y @ o
    return x + jax.nn.gelu(_norm(x, eps=1e-5) @ up) @ down


def t5(x: Any, gain: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
    """No scale; a bias of buckets of distances."""
    y = _rms(x, gain)
    distance = jnp.arange(S)[None, :] - jnp.arange(S)[:, None]
    bucket = jnp.where(distance > 0, 4, 0) + jnp.minimum(jnp.abs(distance), 3)
    bias = jnp.moveaxis(table[bucket], -1, 0)[None]
    return x + _mixed(_heads(y @ q), _heads(y @ k), _heads(y @ v), bias, 1.0)


def gated_ffn(x: Any, gain: Any, gate: Any, up: Any, down: Any) -> Any:
    """The feed-forward layer of T5 1.1."""
    y = _rms(x, gain)
    return x + (jax.nn.gelu(y @ gate) * (y @ up)) @ down


def vit(image: Any, kernel: Any, token: Any, place: Any, w: Any) -> Any:
    """Patches by a convolution, with a token in front."""
    patches = lax.conv_general_dilated(
        image, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ).reshape(image.shape[0], -1, C)
    x = jnp.concatenate([jnp.tile(token, (image.shape[0], 1, 1)), patches], 1) + place
    q, k, v = (_heads(y) for y in jnp.split(_norm(x) @ w, 3, -1))
    return _norm((x + _mixed(q, k, v))[:, 0])


def clip_text(x: Any, w: Any, up: Any, down: Any) -> Any:
    """Causal, with the sigmoid in place of gelu."""
    q, k, v = (_heads(y) for y in jnp.split(_norm(x) @ w, 3, -1))
    bias = jnp.triu(jnp.full((S, S), -jnp.inf), 1)
    x = x + _mixed(q, k, v, bias)
    hidden = _norm(x) @ up
    return x + (hidden * jax.nn.sigmoid(1.702 * hidden)) @ down


def clip_loss(text: Any, image: Any, scale: Any) -> Any:
    """Cross entropy along both axes of the similarities."""
    text, image = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (text, image))
    logits = jnp.exp(scale) * text @ image.T
    labels = jnp.arange(logits.shape[0])
    loss = optax.softmax_cross_entropy_with_integer_labels
    return (loss(logits, labels).mean() + loss(logits.T, labels).mean()) / 2


def whisper_front(audio: Any, one: Any, two: Any) -> Any:
    """Two convolutions over time."""
    for kernel, stride in ((one, 1), (two, 2)):
        audio = jax.nn.gelu(lax.conv_general_dilated(
            audio, kernel, (stride,), ((1, 1),), dimension_numbers=("NWC", "WIO", "NWC"),
        ), approximate=False)  # fmt: skip
    return audio


def cross_attention(x: Any, memory: Any, mask: Any, q: Any, kv: Any) -> Any:
    k, v = jnp.split(memory @ kv, 2, -1)
    bias = jnp.where(mask[:, None, None, :], 0.0, -1e9)
    return x + _mixed(_heads(_norm(x) @ q), _heads(k), _heads(v), bias)


def _rotated(x: Any, turned: int | None = None) -> Any:
    """Rotary places of the first elements of each head, by halves."""
    turned = turned or x.shape[-1]
    angles = jnp.arange(S)[:, None] * 10000.0 ** (-jnp.arange(0, turned, 2) / turned)
    cos, sin = (jnp.concatenate([f(angles)] * 2, -1)[:, None] for f in (jnp.cos, jnp.sin))
    part, rest = x[..., :turned], x[..., turned:]
    one, two = jnp.split(part, 2, -1)
    part = part * cos + jnp.concatenate([-two, one], -1) * sin
    return jnp.concatenate([part, rest], -1) if rest.shape[-1] else part


def _causal(window: int | None = None) -> Any:
    distance = jnp.arange(S)[:, None] - jnp.arange(S)[None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def llama(x: Any, gain: Any, q: Any, kv: Any, gate: Any, up: Any, down: Any) -> Any:
    y = _rms(x, gain)
    k, v = (_heads(part, 1) for part in jnp.split(y @ kv, 2, -1))
    queries, keys = _rotated(_heads(y @ q)), _rotated(k)
    keys, v = (jnp.repeat(part, H, 2) for part in (keys, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / 2
    weights = jax.nn.softmax(jnp.where(_causal(), scores, LOWEST), -1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    y = _rms(x, gain)
    return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down


def mistral(q: Any, k: Any, v: Any) -> Any:
    q, k, v = map(_heads, (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    weights = jax.nn.softmax(jnp.where(_causal(3), scores, -jnp.inf), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def gemma2(x: Any, gain: Any, w: Any, gate: Any, up: Any, down: Any) -> Any:
    """Norms before and after, with capped scores."""
    q, k, v = (_heads(y) for y in jnp.split(_rms(x, 1 + gain) @ w, 3, -1))
    scores = 50 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2 / 50)
    weights = jax.nn.softmax(jnp.where(_causal(), scores, LOWEST), -1)
    y = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    x = x + _rms(y, 1 + gain)
    y = _rms(x, 1 + gain)
    return x + _rms((jax.nn.gelu(y @ gate) * (y @ up)) @ down, 1 + gain)


def gpt_neox(x: Any, w: Any, up: Any, down: Any) -> Any:
    """Part of each head is turned; attention and feed-forward layer side by side."""
    q, k, v = (_heads(y) for y in jnp.split(_norm(x) @ w, 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", _rotated(q, 2), _rotated(k, 2)) / 2
    weights = jax.nn.softmax(jnp.where(_causal(), scores, LOWEST), -1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    return x + mixed + jax.nn.gelu(_norm(x) @ up, approximate=False) @ down


def albert(x: Any, w: Any, up: Any, down: Any) -> Any:
    """One layer, again and again, in a scan."""

    def layer(x: Any, _: None) -> Any:
        q, k, v = (_heads(y) for y in jnp.split(x @ w, 3, -1))
        x = _norm(x + _mixed(q, k, v))
        return _norm(x + jax.nn.gelu(x @ up) @ down), None

    return lax.scan(layer, x, None, length=3)[0]


def swin(x: Any, w: Any, bias: Any, mask: Any) -> Any:
    """Windows of places, moved by half of one, with a bias of each head and a mask of each."""
    moved = jnp.roll(x, -2, 1).reshape(B * 2, S // 2, C)
    q, k, v = (_heads(y) for y in jnp.split(moved @ w, 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2 + bias
    scores = (scores.reshape(B, 2, H, 3, 3) + mask[None, :, None]).reshape(scores.shape)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return jnp.roll(y.reshape(B, S, C), 2, 1)


def convnext(x: Any, kernel: Any, gain: Any, up: Any, down: Any, scale: Any) -> Any:
    y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", feature_group_count=C,
                                 dimension_numbers=("NHWC", "HWIO", "NHWC"))  # fmt: skip
    return x + scale * (jax.nn.gelu(_norm(y, gain) @ up, approximate=False) @ down)


def mixer(x: Any, one: Any, two: Any, up: Any, down: Any) -> Any:
    y = jnp.swapaxes(_norm(x), 1, 2)
    x = x + jnp.swapaxes(jax.nn.gelu(y @ one) @ two, 1, 2)
    return x + jax.nn.gelu(_norm(x) @ up) @ down


def unet_block(x: Any, time: Any, kernel: Any, w: Any, gain: Any, offset: Any) -> Any:
    """Group norm and silu before each convolution, with the time added."""

    def part(x: Any) -> Any:
        y = jax.nn.silu(nn.GroupNorm(2).apply({"params": {"scale": gain, "bias": offset}}, x))
        return lax.conv_general_dilated(y, kernel, (1, 1), "SAME",
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"))  # fmt: skip

    return x + part(part(x) + (jax.nn.silu(time) @ w)[:, None, None])


def dit(x: Any, condition: Any, w: Any, qkv: Any, up: Any, down: Any) -> Any:
    """Norms without weights, scaled and shifted by a condition, and gates of it."""
    parts = jnp.split((jax.nn.silu(condition) @ w)[:, None], 6, -1)
    y = _norm(x) * (1 + parts[0]) + parts[1]
    q, k, v = (_heads(part) for part in jnp.split(y @ qkv, 3, -1))
    x = x + parts[2] * _mixed(q, k, v)
    y = _norm(x) * (1 + parts[3]) + parts[4]
    return x + parts[5] * (jax.nn.gelu(y @ up) @ down)


def squeeze(x: Any, down: Any, up: Any) -> Any:
    gate = jax.nn.sigmoid(jax.nn.silu(x.mean((1, 2)) @ down) @ up)
    return x * gate[:, None, None]


def experts(x: Any, router: Any, up: Any, down: Any) -> Any:
    """The best two of four, mixed by their probabilities."""
    best, which = lax.top_k(jax.nn.softmax(x @ router), 2)
    weights = (best / best.sum(-1, keepdims=True))[..., None] * jax.nn.one_hot(which, 4)
    hidden = jax.nn.silu(jnp.einsum("bsc,ecf->bsef", x, up))
    return jnp.einsum("bsef,efc,bske->bsc", hidden, down, weights)


def lora(x: Any, w: Any, a: Any, b: Any, bias: Any) -> Any:
    return jax.nn.relu(x @ w + (x @ a) @ b * 0.5 + bias)


def graph_attention(x: Any, w: Any, edges: Any) -> Any:
    """Softmax over the edges into each node."""
    source, target = edges[0], edges[1]
    hidden = x @ w
    scores = jax.nn.leaky_relu((hidden[source] * hidden[target]).sum(-1))
    top = jax.ops.segment_max(scores, target, x.shape[0])
    weights = jnp.exp(scores - top[target])
    total = jax.ops.segment_sum(weights, target, x.shape[0])
    return jax.ops.segment_sum((weights / total[target])[:, None] * hidden[source], target,
                               x.shape[0])  # fmt: skip


def hidden_markov(start: Any, moves: Any, seen: Any) -> Any:
    """The forward algorithm, in logarithms."""

    def step(alpha: Any, log: Any) -> Any:
        alpha = jax.nn.logsumexp(alpha[:, None] + jax.nn.log_softmax(moves), 0) + log
        return alpha, None

    first = jax.nn.log_softmax(start) + seen[0]
    return jax.nn.logsumexp(lax.scan(step, first, seen[1:])[0])


def kalman(moves: Any, noise: Any, seen: Any) -> Any:
    noise = noise @ noise.T + jnp.eye(3)

    def step(carry: Any, y: Any) -> Any:
        mean, spread = carry
        mean, spread = moves @ mean, moves @ spread @ moves.T + noise
        gain = jnp.linalg.solve(spread + jnp.eye(3), spread)
        mean, spread = mean + gain.T @ (y - mean), spread - spread @ gain
        return (mean, spread), mean

    return lax.scan(step, (jnp.zeros(3), jnp.eye(3)), seen)[1]


def runge_kutta(y: Any, w: Any, u: Any) -> Any:
    """A field of two layers, along steps of one size."""
    field = lambda y: jnp.tanh(y @ w) @ u  # noqa: E731

    def step(y: Any, _: Any) -> Any:
        one = field(y)
        two = field(y + 0.05 * one)
        three = field(y + 0.05 * two)
        four = field(y + 0.1 * three)
        return y + 0.1 / 6 * (one + 2 * two + 2 * three + four), y

    return lax.scan(step, y, None, length=5)[1]


def adaptive_steps(y: Any, w: Any) -> Any:
    """Heun's steps, whose size follows from the error until the time is over."""
    field = lambda y: jnp.tanh(y @ w)  # noqa: E731

    def step(carry: Any) -> Any:
        t, size, y = carry
        one = field(y)
        two = field(y + size * one)
        error = jnp.abs(size * (two - one) / 2).max()
        accept = error < 0.1
        y = jnp.where(accept, y + size * (one + two) / 2, y)
        t = jnp.where(accept, t + size, t)
        return t, size * jnp.where(accept, 1.5, 0.5), y

    return lax.while_loop(lambda carry: carry[0] < 1, step, (0.0, 0.2, y))[2]


def clipped_policy(logits: Any, action: Any, before: Any, gain: Any) -> Any:
    """The loss of proximal policies, with an entropy."""
    logs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(logs, action[:, None], 1)[:, 0]
    ratio = jnp.exp(taken - before)
    loss = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
    return loss + 0.01 * (jnp.exp(logs) * logs).sum(-1).mean()


def elbo(x: Any, w: Any, u: Any, noise: Any) -> Any:
    mean, log_spread = jnp.split(x @ w, 2, -1)
    logits = (mean + jnp.exp(0.5 * log_spread) * noise) @ u
    seen = optax.sigmoid_binary_cross_entropy(logits, jax.nn.sigmoid(x)).sum(-1)
    return (seen - 0.5 * (1 + log_spread - mean**2 - jnp.exp(log_spread)).sum(-1)).mean()


def greedy(h: Any, table: Any, w: Any, u: Any, out: Any) -> Any:
    """A plain network that reads the token it has said."""

    def step(carry: Any, _: None) -> Any:
        h, token = carry
        h = jnp.tanh(table[token] @ w + h @ u)
        token = jnp.argmax(h @ out, -1).astype(jnp.int32)
        return (h, token), token

    return lax.scan(step, (h, jnp.zeros(h.shape[0], jnp.int32)), None, length=4)[0][0]


def similar_views(x: Any) -> Any:
    """The loss of pairs among all others."""
    x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-8)
    logits = jnp.where(jnp.eye(len(x), dtype=bool), -jnp.inf, x @ x.T / 0.5)
    pair = jnp.arange(len(x)) ^ 1
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), pair[:, None], 1).mean()


def adam_of_a_layer(x: Any, w: Any) -> Any:
    """Three updates of optax in a scan."""
    optimiser = optax.adam(0.1)

    def step(carry: Any, _: None) -> Any:
        w, state = carry
        slope = jax.grad(lambda w: ((jax.nn.softplus(x @ w)) ** 2).mean())(w)
        change, state = optimiser.update(slope, state)
        return (optax.apply_updates(w, change), state), None

    return lax.scan(step, (w, optimiser.init(w)), None, length=3)[0][0]


class _Tagger(nn.Module):
    """Embeddings, networks in both directions and a layer for each place."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(5, 3)(tokens)
        cells = (nn.RNN(nn.OptimizedLSTMCell(4)), nn.RNN(nn.OptimizedLSTMCell(4)))
        return nn.Dense(3)(nn.Bidirectional(*cells)(x, seq_lengths=(tokens != 0).sum(-1)))


class _Encoder(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(x[..., 0])
        y = nn.MultiHeadDotProductAttention(H)(nn.LayerNorm()(x), mask=mask)
        x = x + y
        return x + nn.Dense(C)(nn.gelu(nn.Dense(2 * C)(nn.LayerNorm()(x))))


class _NnxEncoder(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.attention = nnx.MultiHeadAttention(H, C, decode=False, rngs=rngs)
        self.norm, self.dense = nnx.RMSNorm(C, rngs=rngs), nnx.Linear(C, C, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + nnx.silu(self.dense(self.norm(x)))


def _hk_block(x: Any) -> Any:
    norm = lambda x: hk.LayerNorm(-1, True, True)(x)  # noqa: E731
    attend = hk.MultiHeadAttention(H, C // H, w_init=hk.initializers.VarianceScaling(1.0))
    y = norm(x)
    x = x + attend(y, y, y, mask=jnp.tril(jnp.ones((1, 1, S, S))))
    return x + hk.Linear(C)(jax.nn.gelu(hk.Linear(2 * C)(norm(x))))


def _eqx_block() -> Callable[..., Any]:
    keys = jax.random.split(KEY, 2)
    attend = eqx.nn.MultiheadAttention(H, C, key=keys[0])
    norm, mlp = eqx.nn.LayerNorm(C), eqx.nn.MLP(C, C, 12, 1, jax.nn.gelu, key=keys[1])

    def one(x: Any) -> Any:
        y = jax.vmap(norm)(x)
        x = x + attend(y, y, y, mask=jnp.tril(jnp.ones((S, S), bool)))
        return x + jax.vmap(mlp)(jax.vmap(norm)(x))

    return jax.vmap(one)


def _eqx_classifier() -> Callable[..., Any]:
    keys = jax.random.split(KEY, 2)
    cell, out = eqx.nn.GRUCell(3, 4, key=keys[0]), eqx.nn.Linear(4, 3, key=keys[1])

    def one(x: Any) -> Any:
        last, _ = lax.scan(lambda h, now: (cell(now, h), None), jnp.zeros(4), x)
        return jax.nn.log_softmax(out(last))

    return jax.vmap(one)


def _hk_speller(tokens: Any) -> Any:
    x = hk.Embed(5, 3)(tokens)
    core = hk.LSTM(4)
    y, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    logits = hk.BatchApply(hk.Linear(5))(y)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


def _speller() -> Callable[..., Any]:
    transformed = hk.transform(_hk_speller)
    params = transformed.init(KEY, jnp.zeros((S, B), int))
    return lambda tokens: transformed.apply(params, None, tokens)


def _tagger() -> Callable[..., Any]:
    params = _Tagger().init(KEY, jnp.ones((B, S), int))
    return lambda tokens: _Tagger().apply(params, tokens)


QKV, UP, DOWN = (C, 3 * C), (C, 12), (12, C)
IMAGE = (B, 4, 4, C)
GELUS, ERFS = {"gelu_tanh": 1}, {"gelu": 1}
CAUSAL, BIASED, PLAIN = "attention (causal)", "attention (bias)", "attention (none)"
NORMS = {"layer_norm": 2}
MODELS = [
    Way("BERT's layer", bert, (X, (B, S), QKV, W, UP, DOWN), {BIASED: 1, **NORMS, **ERFS},
        hostile=False),
    Way("GPT-2's layer", gpt2, (X, QKV, W, UP, DOWN), {CAUSAL: 1, **NORMS, **GELUS},
        hostile=False),
    Way("T5's attention", t5, (X, V, W, W, W, (8, H)), {BIASED: 1, "rms_norm": 1},
        hostile=False),
    Way("T5's gated layer", gated_ffn, (X, V, UP, UP, DOWN), {"rms_norm": 1, **GELUS},
        hostile=False, units={"geglu": 1}),
    Way("ViT's patches and attention", vit, ((B, 4, 4, 3), (2, 2, 3, C), (1, 1, C), (1, 5, C),
        QKV), {PLAIN: 1, **NORMS}, hostile=False),
    Way("CLIP's layer of text", clip_text, (X, QKV, UP, DOWN), {BIASED: 1, **NORMS}, hostile=False),
    Way("CLIP's loss", clip_loss, ((4, C), (4, C), ()), {"cross_entropy": 2}, hostile=False),
    Way("Whisper's convolutions", whisper_front, ((B, S, 3), (3, 3, C), (3, C, C)), {"gelu": 2},
        hostile=False),
    Way("attention to an encoder", cross_attention, (X, (B, 5, C), bools((B, 5)), W, WIDE),
        {BIASED: 1, "layer_norm": 1}, hostile=False),
    Way("Llama's layer", llama, (X, V, W, (C, 8), UP, UP, DOWN),
        {CAUSAL: 1, "rms_norm": 2, "rope": 2, "silu": 1}, hostile=False),
    Way("Mistral's window", mistral, (X, X, X), {"attention (sliding_window)": 1}, hostile=False),
    Way("Gemma 2's layer", gemma2, (X, V, QKV, UP, UP, DOWN),
        {CAUSAL: 1, "rms_norm": 4, **GELUS}, hostile=False),
    Way("GPT-NeoX's layer", gpt_neox, (X, QKV, UP, DOWN), {
        CAUSAL: 1, "layer_norm": 1, "rope": 2, **ERFS}, hostile=False),
    Way("ALBERT's layer in a scan", albert, (X, QKV, UP, DOWN), {PLAIN: 1, **NORMS, **GELUS},
        hostile=False),
    Way("Swin's windows", swin, (X, QKV, (H, 3, 3), (2, 3, 3)), {"softmax": 1}, hostile=False),
    Way("ConvNeXt's block", convnext, (IMAGE, (3, 3, 1, C), V, UP, DOWN, V),
        {"layer_norm": 1, **ERFS}, hostile=False),
    Way("MLP-Mixer's block", mixer, (X, (S, 5), (5, S), UP, DOWN),
        {"layer_norm": 2, "gelu_tanh": 2}, hostile=False),
    Way("a block of a diffusion's U-Net", unet_block, (IMAGE, (B, 5), (3, 3, C, C), (5, C), V, V),
        {"group_norm": 2, "silu": 3}, hostile=False),
    Way("DiT's block", dit, (X, (B, 5), (5, 6 * C), QKV, UP, DOWN),
        {PLAIN: 1, **NORMS, "silu": 1, **GELUS}, hostile=False),
    Way("squeeze and excite", squeeze, (IMAGE, (C, 3), (3, C)), {"silu": 1}, hostile=False),
    Way("experts of which two count", experts, (X, (C, 4), (4, C, 5), (4, 5, C)),
        {"silu": 1, "softmax": 1}, hostile=False),
    Way("a layer with an adapter", lora, (X, W, (C, 2), (2, C), V), {}, hostile=False),
    Way("attention along edges", graph_attention, ((5, C), W, ints((2, 7), 5)), {},
        hostile=False),
    Way("a hidden Markov model", hidden_markov, ((4,), (4, 4), (S, 4)),
        {"log_softmax": 2, "logsumexp": 2}, hostile=False),
    Way("a Kalman filter", kalman, ((3, 3), (3, 3), (S, 3)), {}, hostile=False),
    Way("Runge and Kutta's steps", runge_kutta, ((B, 3), (3, 5), (5, 3)), {}, hostile=False),
    Way("steps whose size follows", adaptive_steps, ((B, 3), (3, 3)), {}, hostile=False),
    Way("the loss of clipped policies", clipped_policy, ((4, C), ints((4,), C), (4,), (4,)),
        {"log_softmax": 1}, hostile=False),
    Way("the bound of an autoencoder", elbo, ((4, 5), (5, 6), (3, 5), (4, 3)), {"softplus": 2},
        hostile=False),
    Way("a cell that reads what it said", greedy, ((B, 4), (5, 3), (3, 4), (4, 4), (4, 5)), {},
        hostile=False),
    Way("the loss of similar views", similar_views, ((6, C),), {"cross_entropy": 1},
        hostile=False),
    Way("Adam in a scan", adam_of_a_layer, ((4, C), (C, 3)), {"softplus": 1}, hostile=False),
    Way("linen tagger of both directions", _tagger(), (ints((B, S), 5),), {"lstm": 2},
        hostile=False),
    Way("linen encoder, causal", _linen(_Encoder(), X), (X,), {CAUSAL: 1, **NORMS, **GELUS},
        hostile=False),
    Way("nnx encoder", _nnx(_NnxEncoder()), (X,), {PLAIN: 1, "rms_norm": 2, "silu": 1},
        hostile=False),
    Way("hk block, causal", _haiku(_hk_block, X), (X,), {CAUSAL: 1, **NORMS, **GELUS},
        hostile=False),
    Way("eqx block, causal", _eqx_block(), (X,), {CAUSAL: 1, **NORMS, **GELUS},
        hostile=False),
    Way("eqx classifier of sequences", _eqx_classifier(), ((B, S, 3),),
        {"gru": 1, "log_softmax": 1}, hostile=False),
    Way("hk speller", _speller(), (ints((S, B), 5),), {"cross_entropy": 1, "lstm": 1},
        hostile=False),
    Way("optax.sigmoid_focal_loss", lambda x, y: optax.sigmoid_focal_loss(
        x, jax.nn.sigmoid(y)), ((4, C), (4, C)), {"softplus": 2}, hostile=False),
    Way("optax.kl_divergence", lambda x, y: optax.kl_divergence(
        jax.nn.log_softmax(x), jax.nn.softmax(y)), ((4, C), (4, C)),
        {"log_softmax": 1, "softmax": 1}, hostile=False),
    Way("optax.ctc_loss", lambda x, labels: optax.ctc_loss(
        x, jnp.zeros(x.shape[:2]), labels, jnp.zeros(labels.shape)), ((B, S, 5), ints((B, 2), 5)),
        {"log_softmax": 1}, hostile=False),
    Way("optax.huber_loss", lambda x, y: optax.huber_loss(x, y).mean(), ((4, C), (4, C)), {}),
    Way("optax.cosine_distance", optax.cosine_distance, ((4, C), (4, C)), {}, hostile=False),
]  # fmt: skip

WAYS = [replace(way, depth=4 * max(1, sum(way.counts.values()))) for way in MODELS]
"""Roundings of what a layer reads are seen in what it makes."""

LOOKALIKES: list[Way] = []
