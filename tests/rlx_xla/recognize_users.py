"""Norms, activations, softmax and losses as models have them, and what only looks like them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tests.rlx_xla.recognize_layers import FIRST, IMAGE, LABELS, C, V, X
from tests.rlx_xla.recognize_ways import Way, bools, ints, rms_norm


def rms_norm_by_power(x: Any, gamma: Any) -> Any:
    return x * (jnp.mean(x**2, -1, keepdims=True) + 1e-5) ** -0.5 * gamma


def rms_norm_by_sum(x: Any, gamma: Any) -> Any:
    return gamma * x / jnp.sqrt(jnp.sum(x**2, -1, keepdims=True) / x.shape[-1] + 1e-5)


def rms_norm_by_einsum(x: Any, gamma: Any) -> Any:
    return x * lax.rsqrt(jnp.einsum("bc,bc->b", x, x)[:, None] / C + 1e-6) * gamma


def rms_norm_of_gemma(x: Any, gamma: Any) -> Any:
    variance = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return x * lax.rsqrt(variance + 1e-6).astype(x.dtype) * (1 + gamma)


def _normed(x: Any, eps: float = 1e-5) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + eps)


def deep_norm(x: Any, y: Any, gamma: Any, beta: Any) -> Any:
    return _normed(x * 2.5 + y) * gamma + beta


def adaptive_norm(x: Any, scale: Any, shift: Any) -> Any:
    return _normed(x) * (1 + scale[:, None]) + shift[:, None]


def layer_norm_by_power(x: Any, gamma: Any, beta: Any) -> Any:
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * (jnp.mean(centred**2, -1, keepdims=True) + 1e-6) ** -0.5 * gamma + beta


def group_norm_last(x: Any, gamma: Any, beta: Any) -> Any:
    n, h, w, c = x.shape
    grouped = x.reshape(n, h, w, 2, c // 2)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    grouped = (grouped - mean) * lax.rsqrt(grouped.var((1, 2, 4), keepdims=True) + 1e-5)
    return grouped.reshape(x.shape) * gamma + beta


def group_norm_first(x: Any, gamma: Any, beta: Any) -> Any:
    n, c, *sizes = x.shape
    grouped = x.reshape(n, 2, c // 2, *sizes)
    axes = tuple(range(2, grouped.ndim))
    mean = grouped.mean(axes, keepdims=True)
    grouped = (grouped - mean) / jnp.sqrt(grouped.var(axes, keepdims=True) + 1e-5)
    shape = (1, c) + (1,) * len(sizes)
    return grouped.reshape(x.shape) * gamma.reshape(shape) + beta.reshape(shape)


def standard_weights(axes: tuple[int, ...]) -> Any:
    """Weights of a convolution less their mean, over their deviation."""
    return lambda w: (w - w.mean(axes, keepdims=True)) / jnp.sqrt(w.var(axes, keepdims=True) + 1e-5)


def silu_by_reciprocal(x: Any) -> Any:
    return x * jnp.reciprocal(1 + jnp.exp(-x))


def swiglu_of_pairs(x: Any, w: Any) -> Any:
    hidden = (x @ w).reshape(4, 12, 2)
    return jax.nn.silu(hidden[..., 0]) * hidden[..., 1]


def swiglu_of_two(x: Any, w: Any) -> Any:
    gate, up = jnp.einsum("bc,gcf->gbf", x, w)
    return jax.nn.silu(gate) * up


def swiglu_of_one(x: Any, w: Any, down: Any) -> Any:
    gate, up = jnp.split(x @ w, 2, -1)
    return (jax.nn.silu(gate) * up) @ down


def geglu_of_halves(x: Any, w: Any) -> Any:
    hidden = x @ w
    return hidden[:, 12:] * jax.nn.gelu(hidden[:, :12])


def clamped_swiglu(x: Any, w: Any) -> Any:
    """As gpt-oss has it."""
    hidden = x @ w
    gate, up = jnp.minimum(hidden[..., ::2], 7), jnp.clip(hidden[..., 1::2], -7, 7)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)


def log_softmax_by_stop(x: Any) -> Any:
    shifted = x - lax.stop_gradient(x.max(-1, keepdims=True))
    return shifted - jnp.log(jnp.exp(shifted).sum(-1, keepdims=True))


def entropy(x: Any) -> Any:
    logs = jax.nn.log_softmax(x)
    return -(jnp.exp(logs) * logs).sum(-1)


def shown_zero(x: Any, mask: Any) -> Any:
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, x, -jnp.inf)), 0)


def _taken(x: Any, i: Any) -> Any:
    return jnp.take_along_axis(jax.nn.log_softmax(x), i[..., None], -1)[..., 0]


def focal_loss(x: Any, i: Any) -> Any:
    logs = _taken(x, i)
    return -((1 - jnp.exp(logs)) ** 2) * logs


def masked_loss(x: Any, i: Any, mask: Any) -> Any:
    return jnp.where(mask, -_taken(x, i), 0).sum() / jnp.maximum(mask.sum(), 1)


def loss_with_z(x: Any, i: Any) -> Any:
    total = jax.nn.logsumexp(x, -1)
    return total - jnp.take_along_axis(x, i[:, None], -1)[:, 0] + 1e-4 * total**2


def divergence(x: Any, y: Any) -> Any:
    p, q = jax.nn.log_softmax(x), jax.nn.log_softmax(y)
    return (jnp.exp(p) * (p - q)).sum(-1)


def binary_loss(x: Any, y: Any) -> Any:
    return jnp.maximum(x, 0) - x * y + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _mlp() -> Any:
    return jax.vmap(eqx.nn.MLP(C, 4, 6, 2, key=jax.random.key(0)))


LOSS = {"cross_entropy": 1}
WAYS = [
    Way("rms_norm by a power", rms_norm_by_power, (X, V), {"rms_norm": 1}),
    Way("rms_norm of a gated value", lambda x, z, g: rms_norm(x * jax.nn.silu(z), g), (X, X, V),
        {"rms_norm": 1, "silu": 1}, hostile=False),
    Way("rms_norm of a gated value, bf16", lambda x, z, g: rms_norm(
        (x * z).astype(jnp.float32), g.astype(jnp.float32)).astype(x.dtype), (X, X, V),
        {"rms_norm": 1}, jnp.bfloat16, hostile=False),
    Way("rms_norm of scaled rows", lambda x, g: rms_norm(x * 4.0, 1 + g), (X, V), {"rms_norm": 1}),
    Way("rms_norm of a quotient", lambda x, y, g: rms_norm(x / y, g), (X, X, V), {"rms_norm": 1},
        hostile=False),
    Way("rms_norm by a sum", rms_norm_by_sum, (X, V), {"rms_norm": 1}, hostile=False),
    Way("rms_norm by einsum", rms_norm_by_einsum, (X, V), {"rms_norm": 1}),
    Way("rms_norm of Gemma, bf16", rms_norm_of_gemma, (X, V), {"rms_norm": 1}, jnp.bfloat16),
    Way("deep norm", deep_norm, (X, X, V, V), {"layer_norm": 1}, hostile=False),
    Way("adaptive norm", adaptive_norm, ((2, 3, C), (2, C), (2, C)), {"layer_norm": 1},
        hostile=False),
    Way("layer_norm by a power", layer_norm_by_power, (X, V, V), {"layer_norm": 1}),
    Way("jax.nn.standardize", lambda x: jax.nn.standardize(x, epsilon=1e-5), (X,),
        {"layer_norm": 1}, hostile=False),
    Way("group_norm of groups, last", group_norm_last, (IMAGE, V, V), {"group_norm": 1},
        hostile=False),
    Way("group_norm of groups, first", group_norm_first, (FIRST, V, V), {"group_norm": 1},
        hostile=False),
    Way("gated residual", lambda x, w, a: x + a * jax.nn.gelu(x @ w), (X, (C, C), (1,)),
        {"gelu_tanh": 1}, hostile=False),
    Way("silu by jnp.reciprocal", silu_by_reciprocal, (X,), {"silu": 1}),
    Way("silu by lax.logistic", lambda x: x * lax.logistic(x), (X,), {"silu": 1}, hostile=False),
    Way("gelu by erfc", lambda x: 0.5 * x * lax.erfc(-x * np.float32(np.sqrt(0.5))), (X,),
        {"gelu": 1}),
    Way("swiglu of pairs", swiglu_of_pairs, (X, (C, 24)), {"silu": 1}, hostile=False),
    Way("swiglu of two in one", swiglu_of_two, (X, (2, C, 12)), {"silu": 1}, hostile=False),
    Way("swiglu of one weight", swiglu_of_one, (X, (C, 24), (12, C)), {"silu": 1},
        units={"swiglu": 1}, hostile=False),
    Way("geglu of halves", geglu_of_halves, (X, (C, 24)), {"gelu_tanh": 1}, units={"geglu": 1},
        hostile=False),
    Way("eqx.nn.MLP", _mlp(), (X,), {}, hostile=False,
        units={"linear (bias)": 1, "linear (bias, relu)": 2}),
    Way("softmax at a temperature", lambda x, t: jax.nn.softmax(x / (jnp.abs(t) + 0.5)),
        (X, (1,)), {"softmax": 1}),
    Way("softmax with noise", lambda x, g: jax.nn.softmax((x + g) / 0.5), (X, X),
        {"softmax": 1}, hostile=False),
    Way("softmax, hidden ones 0", shown_zero, (X, bools(X)), {"softmax": 1}),
    Way("exp of log_softmax", lambda x: jnp.exp(jax.nn.log_softmax(x)), (X,), {"softmax": 1}),
    Way("log_softmax, stopped", log_softmax_by_stop, (X,), {"log_softmax": 1}),
    Way("entropy", entropy, (X,), {"log_softmax": 1}),
    Way("divergence", divergence, (X, X), {"log_softmax": 2}, hostile=False),
    Way("focal loss", focal_loss, LABELS, LOSS),
    Way("masked loss", masked_loss, (*LABELS, bools((4,))), LOSS),
    Way("loss with z", loss_with_z, LABELS, LOSS),
    Way("loss of sequences", lambda x, i: optax.softmax_cross_entropy_with_integer_labels(
        x, i).mean(), ((2, 3, C), ints((2, 3), C)), LOSS, hostile=False),
]  # fmt: skip

LOOKALIKES = [
    Way("standard weights, channels last", standard_weights((0, 1, 2)), ((3, 3, 4, 8),), {},
        misses=("the statistics are over the axes (0, 1, 2), and not over one",)),
    Way("standard weights, channels first", standard_weights((1, 2, 3)), ((8, 4, 3, 3),), {},
        misses=("the statistics are over the axes (1, 2, 3), and not over one",)),
    Way("instance norm", standard_weights((1, 2)), (IMAGE,), {},
        misses=("the statistics are over the axes (1, 2), and not over one",)),
    Way("rms_norm with eps beside the root", lambda x, g: x / (
        jnp.sqrt(jnp.mean(x * x, -1, keepdims=True)) + 1e-6) * g, (X, V), {}),
    Way("a norm of length 1", lambda x: x / jnp.maximum(
        jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12), (X,), {}),
    Way("rms_norm of a product", lambda x, y, g: x * lax.rsqrt(jnp.einsum(
        "bc,bc->b", x, y)[:, None] ** 2 / C + 1e-6) * g, (X, X, V), {}),
    Way("swish of another slope", lambda x: x * jax.nn.sigmoid(1.5 * x), (X,), {},
        misses=("the logistic function is of 1.5·x^1 and not of x",)),
    Way("clamped swiglu", clamped_swiglu, (X, (C, 24)), {},
        misses=("the logistic function is of 1.702·x^1 and not of x",)),
    Way("hard swish", lambda x: x * jnp.clip(x + 3, 0, 6) / 6, (X,), {}),
    Way("jax.nn.mish", jax.nn.mish, (X,), {"softplus": 1}),
    Way("softplus that is cut", lambda x: jnp.where(
        x > 20, x, jnp.log1p(jnp.exp(jnp.minimum(x, 20)))), (X,), {},
        misses=("exp(x) overflows for large x",)),
    Way("binary loss", binary_loss, (X, X), {}),
    Way("exp of another logarithm", lambda x: jnp.exp2(jax.nn.log_softmax(x)), (X,),
        {"log_softmax": 1}),
]  # fmt: skip
