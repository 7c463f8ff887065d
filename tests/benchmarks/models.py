"""Small models written as people write them, for benchmarks of whole programs.

Each takes a dtype and gives ``(function, params, inputs)`` with ``function(params, *inputs)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlx_xla.models import minilm

Model: TypeAlias = tuple[Callable[..., Any], Any, tuple[Any, ...]]


def _normal(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def _linen(module: nn.Module, dtype: Any, *inputs: jax.Array) -> Model:
    variables = module.init(jax.random.key(0), *inputs)
    params = jax.tree.map(lambda x: x.astype(dtype), variables)
    return lambda p, *xs: module.apply(p, *xs), params, tuple(x.astype(dtype) for x in inputs)


class Mlp(nn.Module):
    """Three wide layers."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (1024, 1024, 256):
            x = nn.gelu(nn.Dense(width, dtype=self.dtype)(x))
        return nn.Dense(10, dtype=self.dtype)(x)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions around a skip."""

    features: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def conv(features: int, kernel: int, stride: int) -> nn.Conv:
            return nn.Conv(
                features, (kernel, kernel), (stride, stride), use_bias=False, dtype=self.dtype
            )

        y = conv(self.features, 3, self.stride)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=True, dtype=self.dtype)(y))
        y = conv(self.features, 3, 1)(y)
        y = nn.BatchNorm(use_running_average=True, dtype=self.dtype)(y)
        if x.shape != y.shape:
            x = conv(self.features, 1, self.stride)(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """ResNet-18 with a quarter of its width."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(16, (7, 7), (2, 2), dtype=self.dtype)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, features in enumerate((16, 32, 64, 128)):
            for block in range(2):
                stride = 2 if stage and not block else 1
                x = ResidualBlock(features, stride, self.dtype)(x)
        return nn.Dense(10, dtype=self.dtype)(x.mean((1, 2)))


class MobileNet(nn.Module):
    """Inverted residual blocks with depthwise convolutions."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu6(nn.Conv(16, (3, 3), (2, 2), dtype=self.dtype)(x))
        for features, stride, repeat in ((24, 2, 2), (32, 2, 2), (64, 2, 3)):
            for block in range(repeat):
                step = stride if not block else 1
                wide = x.shape[-1] * 6
                y = nn.relu6(nn.Conv(wide, (1, 1), dtype=self.dtype)(x))
                y = nn.Conv(wide, (3, 3), (step, step), feature_group_count=wide, dtype=self.dtype)(
                    y
                )
                y = nn.Conv(features, (1, 1), dtype=self.dtype)(nn.relu6(y))
                x = x + y if x.shape == y.shape else y
        return nn.Dense(10, dtype=self.dtype)(x.mean((1, 2)))


class Lstm(nn.Module):
    """One LSTM layer over a sequence."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        return nn.RNN(nn.OptimizedLSTMCell(128, dtype=self.dtype))(x)


def _decoder_params(layers: int, width: int, vocabulary: int, dtype: Any) -> dict[str, Any]:
    def weight(*shape: int, seed: int) -> jax.Array:
        return _normal(*shape, dtype=dtype, seed=seed) * jnp.asarray(shape[0] ** -0.5, dtype)

    blocks = [
        {
            "norm1": jnp.ones(width, dtype),
            "qkv": weight(width, 3 * width, seed=5 * i),
            "out": weight(width, width, seed=5 * i + 1),
            "norm2": jnp.ones(width, dtype),
            "up": weight(width, 4 * width, seed=5 * i + 2),
            "down": weight(4 * width, width, seed=5 * i + 3),
        }
        for i in range(layers)
    ]
    return {"embed": weight(vocabulary, width, seed=999), "blocks": blocks}


def _rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scaled = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * gain


def _mix(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def gpt_prefill(dtype: Any, layers: int = 4, width: int = 512, length: int = 128) -> Model:
    """A decoder over a prompt."""
    heads = width // 64

    def forward(params: Any, ids: jax.Array) -> jax.Array:
        x = params["embed"][ids]
        mask = jnp.tril(jnp.ones((length, length), bool))
        for block in params["blocks"]:
            qkv = _rms_norm(x, block["norm1"]) @ block["qkv"]
            q, k, v = jnp.split(qkv.reshape(*x.shape[:2], 3 * heads, 64), 3, axis=2)
            x = x + _mix(q, k, v, mask).reshape(x.shape) @ block["out"]
            hidden = jax.nn.gelu(_rms_norm(x, block["norm2"]) @ block["up"])
            x = x + hidden @ block["down"]
        return x[:, -1] @ params["embed"].T

    ids = jnp.asarray(np.random.default_rng(0).integers(0, 2048, (1, length)), jnp.int32)
    return forward, _decoder_params(layers, width, 2048, dtype), (ids,)


def gpt_decode(dtype: Any, layers: int = 4, width: int = 1024, length: int = 256) -> Model:
    """One token of a decoder against a cache."""
    heads = width // 64

    def forward(params: Any, token: jax.Array, cache: Any, at: jax.Array) -> tuple[Any, Any]:
        x = params["embed"][token][:, None]
        mask = jnp.arange(length) <= at
        made = []
        for block, (keys, values) in zip(params["blocks"], cache, strict=True):
            qkv = _rms_norm(x, block["norm1"]) @ block["qkv"]
            q, k, v = jnp.split(qkv.reshape(1, 1, 3 * heads, 64), 3, axis=2)
            keys = lax.dynamic_update_slice(keys, k, (0, at, 0, 0))
            values = lax.dynamic_update_slice(values, v, (0, at, 0, 0))
            made.append((keys, values))
            x = x + _mix(q, keys, values, mask).reshape(x.shape) @ block["out"]
            hidden = jax.nn.gelu(_rms_norm(x, block["norm2"]) @ block["up"])
            x = x + hidden @ block["down"]
        return x[:, -1] @ params["embed"].T, made

    cache = [(_normal(1, length, heads, 64, dtype=dtype),) * 2 for _ in range(layers)]
    token = jnp.asarray([7], jnp.int32)
    return forward, _decoder_params(layers, width, 2048, dtype), (token, cache, jnp.int32(100))


def mamba(dtype: Any, length: int = 128, width: int = 256, state: int = 16) -> Model:
    """A selective scan between two projections."""

    def forward(params: Any, x: jax.Array) -> jax.Array:
        hidden, gate = jnp.split(x @ params["in"], 2, axis=-1)
        delta = jax.nn.softplus(hidden @ params["delta"])
        b, c = hidden @ params["b"], hidden @ params["c"]
        a = -jnp.exp(params["a"])

        def step(h: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
            u, d, bt, ct = at
            h = jnp.exp(d[..., None] * a) * h + (d * u)[..., None] * bt[:, None, :]
            return h, (h * ct[:, None, :]).sum(-1)

        start = jnp.zeros((x.shape[0], width, state), dtype)
        along = jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), (hidden, delta, b, c))
        _, y = lax.scan(step, start, along)
        return (jnp.swapaxes(y, 0, 1) * jax.nn.silu(gate)) @ params["out"]

    def weight(*shape: int, seed: int) -> jax.Array:
        return _normal(*shape, dtype=dtype, seed=seed) * jnp.asarray(shape[0] ** -0.5, dtype)

    params = {
        "in": weight(width, 2 * width, seed=1),
        "delta": weight(width, width, seed=2),
        "b": weight(width, state, seed=3),
        "c": weight(width, state, seed=4),
        "a": _normal(width, state, dtype=dtype, seed=5),
        "out": weight(width, width, seed=6),
    }
    return forward, params, (_normal(1, length, width, dtype=dtype),)


def mini_lm(dtype: Any) -> Model:
    """The sentence encoder of ``rlx_xla.models.minilm`` with drawn weights, over four texts."""
    ids = jnp.asarray(np.random.default_rng(0).integers(1000, 20000, (4, 32)), jnp.int32)
    mask = jnp.ones((4, 32), jnp.int32)
    drawn = minilm.MiniLm().init(jax.random.key(0), ids, mask)["params"]
    return minilm.embed, jax.tree.map(lambda x: x.astype(dtype), drawn), (ids, mask)


MODELS: dict[str, Callable[[Any], Model]] = {
    "MLP": lambda dtype: _linen(Mlp(dtype), dtype, _normal(32, 784)),
    "ResNet-like CNN": lambda dtype: _linen(ResNet(dtype), dtype, _normal(1, 96, 96, 3)),
    "MobileNet-like CNN": lambda dtype: _linen(MobileNet(dtype), dtype, _normal(1, 96, 96, 3)),
    "MiniLM": mini_lm,
    "LSTM": lambda dtype: _linen(Lstm(dtype), dtype, _normal(4, 64, 128)),
    "GPT-like prefill": gpt_prefill,
    "GPT-like decode": gpt_decode,
    "Mamba-like": mamba,
}


def _gradient(model: Callable[[Any], Model]) -> Callable[[Any], Model]:
    """The value and gradient of a model's sum of squares by its params."""

    def made(dtype: Any) -> Model:
        function, params, inputs = model(dtype)

        def loss(p: Any, *xs: jax.Array) -> jax.Array:
            return jnp.sum(jnp.square(function(p, *xs).astype(jnp.float32)))

        return jax.value_and_grad(loss), params, inputs

    return made


GRADIENTS: dict[str, Callable[[Any], Model]] = {
    f"{name}, gradient": _gradient(MODELS[name])
    for name in ("ResNet-like CNN", "MobileNet-like CNN")
}
