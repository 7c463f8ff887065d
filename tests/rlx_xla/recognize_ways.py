"""Ways of writing softmax, norms, activations and losses, with what is recognised in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

WIDTH = 8


@dataclass(frozen=True)
class Way:
    """One way of writing something.

    Attributes:
        name: what it is called.
        function: of arrays.
        shapes: of its arguments; an int in place of a shape is an int array of that bound.
        counts: what the pass finds; nothing for a look-alike.
        dtype: of the floating arguments.
        x64: traced with 64-bit types on.
        misses: a part of each near miss that is reported.
        hostile: whether Inf and NaN are among the drawn inputs.
        scores: whether the first two arguments are queries and keys.
        units: the units that are counted; None for any.
        depth: patterns and steps in a row, whose roundings add up.
        trees: with ``FusionOptions(scan_trees=True)``.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    counts: dict[str, int]
    dtype: Any = jnp.float32
    x64: bool = False
    misses: tuple[str, ...] = ()
    hostile: bool = True
    scores: bool = False
    units: dict[str, int] | None = None
    depth: int = 1
    trees: bool = False

    def __str__(self) -> str:
        return self.name


def ints(shape: tuple[int, ...], bound: int) -> tuple[str, tuple[int, ...], int]:
    """An argument of integers from 0 to bound − 1."""
    return ("ints", shape, bound)


def bools(shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], int]:
    """An argument of truth values."""
    return ("bools", shape, 2)


X = (4, WIDTH)
V = (WIDTH,)


def softmax(x: Any, axis: int = -1) -> Any:
    shifted = jnp.exp(x - x.max(axis, keepdims=True))
    return shifted / shifted.sum(axis, keepdims=True)


def softmax_by_reciprocal(x: Any) -> Any:
    shifted = jnp.exp(x - jnp.max(x, -1)[:, None])
    return shifted * (1.0 / shifted.sum(-1, keepdims=True))


def softmax_in_f32(x: Any) -> Any:
    return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)


def log_softmax(x: Any) -> Any:
    top = x.max(-1, keepdims=True)
    return (x - top) - jnp.log(jnp.exp(x - top).sum(-1, keepdims=True))


def log_softmax_by_total(x: Any) -> Any:
    top = x.max(-1, keepdims=True)
    return x - (top + jnp.log(jnp.sum(jnp.exp(x - top), axis=-1, keepdims=True)))


def logsumexp(x: Any) -> Any:
    top = x.max(-1, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(jnp.exp(x - top).sum(-1)) + top[..., 0]


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta


def layer_norm_by_rsqrt(x: Any, gamma: Any, beta: Any) -> Any:
    centred = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(centred * centred, -1, keepdims=True)
    return gamma * (centred * lax.rsqrt(variance + 1e-6)) + beta


def layer_norm_by_sums(x: Any, gamma: Any, beta: Any) -> Any:
    centred = x - x.sum(-1, keepdims=True) / WIDTH
    variance = (centred**2).sum(-1, keepdims=True) * (1.0 / WIDTH)
    return beta + centred * gamma * (1 / jnp.sqrt(variance + 1e-5))


def layer_norm_by_squares(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.maximum((x * x).mean(-1, keepdims=True) - mean**2, 0.0)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gamma + beta


def layer_norm_of_columns(x: Any) -> Any:
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)


def layer_norm_in_f32(x: Any, gamma: Any, beta: Any) -> Any:
    return layer_norm(x.astype(jnp.float32), gamma, beta).astype(x.dtype)


def rms_norm(x: Any, gamma: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gamma


def rms_norm_by_root(x: Any, gamma: Any) -> Any:
    return gamma * (x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6))


def rms_norm_of_llama(x: Any, gamma: Any) -> Any:
    wide = x.astype(jnp.float32)
    scaled = wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * gamma


def rms_norm_of_gemma(x: Any, gamma: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * (1.0 + gamma)


def group_norm(x: Any, gamma: Any, beta: Any) -> Any:
    grouped = x.reshape(2, 4, -1)
    mean = grouped.mean(-1, keepdims=True)
    grouped = (grouped - mean) / jnp.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    return grouped.reshape(x.shape) * gamma[None, :, None, None] + beta[None, :, None, None]


def batch_norm(x: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
    return (x - mean) / jnp.sqrt(jnp.abs(variance) + 1e-5) * gamma + beta


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (x + 0.044715 * x**3)))


def gelu_tanh_by_power(x: Any) -> Any:
    return x * 0.5 * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * jnp.power(x, 3))))


def gelu_tanh_factored(x: Any) -> Any:
    return 0.5 * x * (1.0 + jnp.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))


def gelu_erf(x: Any) -> Any:
    return x * 0.5 * (1.0 + lax.erf(x / np.sqrt(2)))


def gelu_erf_halved(x: Any) -> Any:
    return x * (lax.erf(x * 0.70710678) + 1.0) / 2


def silu(x: Any) -> Any:
    return x / (1 + jnp.exp(-x))


def silu_by_sigmoid(x: Any) -> Any:
    return x * (1 / (1 + jnp.exp(-x)))


def softplus(x: Any) -> Any:
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def swiglu(x: Any) -> Any:
    gate, up = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(gate) * up


def geglu(x: Any) -> Any:
    gate, up = jnp.split(x, 2, axis=-1)
    return jax.nn.gelu(gate) * up


def _linen(module: nn.Module, *shape: int) -> Callable[..., Any]:
    params = module.init(jax.random.key(0), jnp.ones(shape))
    params = jax.tree.map(lambda a: a + jnp.arange(1.0, 1 + a.size).reshape(a.shape) / 8, params)
    return lambda x: module.apply(params, x)


def _haiku(make: Callable[[], Any]) -> Callable[..., Any]:
    transformed = hk.transform_with_state(lambda x: make()(x))
    params, state = transformed.init(jax.random.key(0), jnp.ones(X))
    return lambda x: transformed.apply(params, state, None, x)[0]


def take_loss(logits: Any, labels: Any) -> Any:
    logs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logs, labels[:, None], -1)[:, 0].mean()


def where_loss(logits: Any, labels: Any) -> Any:
    hot = jax.nn.one_hot(labels, WIDTH, dtype=bool)
    return jnp.where(hot, -jax.nn.log_softmax(logits), 0).sum(-1)


WAYS = [
    Way("softmax by hand", softmax, (X,), {"softmax": 1}),
    Way("softmax of columns", lambda x: softmax(x, 0), (X,), {"softmax": 1}),
    Way("softmax, a middle axis", lambda x: softmax(x, 1), ((2, 5, 3),), {"softmax": 1}),
    Way("softmax by a reciprocal", softmax_by_reciprocal, (X,), {"softmax": 1}),
    Way("jax.nn.softmax", jax.nn.softmax, (X,), {"softmax": 1}),
    Way("jax.nn.softmax, bf16", jax.nn.softmax, (X,), {"softmax": 1}, jnp.bfloat16),
    Way("jax.nn.softmax, f16", jax.nn.softmax, (X,), {"softmax": 1}, jnp.float16),
    Way("softmax in f32 of bf16", softmax_in_f32, (X,), {"softmax": 1}, jnp.bfloat16),
    Way("softmax, f64", softmax, (X,), {"softmax": 1}, jnp.float64, x64=True),
    Way("softmax under vmap", jax.vmap(softmax), ((3, *X),), {"softmax": 1}),
    Way("softmax under vmap of columns", jax.vmap(softmax, 1, 1), (X,), {"softmax": 1}),
    Way("softmax in jit", jax.jit(softmax), (X,), {"softmax": 1}),
    Way(
        "softmax inside a gradient",
        jax.value_and_grad(lambda x: (jax.nn.softmax(x) ** 2).sum()),
        (X,),
        {"softmax": 1},
    ),
    Way(
        "softmax inside a scan",
        lambda x: lax.scan(lambda c, row: (softmax(c + row), None), x[:1], x[:, None])[0],
        (X,),
        {"softmax": 1},
    ),
    Way("log_softmax by hand", log_softmax, (X,), {"log_softmax": 1}),
    Way("log_softmax by a total", log_softmax_by_total, (X,), {"log_softmax": 1}),
    Way("jax.nn.log_softmax", jax.nn.log_softmax, (X,), {"log_softmax": 1}),
    Way("log_softmax, bf16", jax.nn.log_softmax, (X,), {"log_softmax": 1}, jnp.bfloat16),
    Way("logsumexp by hand", logsumexp, (X,), {"logsumexp": 1}),
    Way("jax.nn.logsumexp", lambda x: jax.nn.logsumexp(x, -1), (X,), {"logsumexp": 1}),
    Way(
        "jax.nn.logsumexp, kept axis",
        lambda x: jax.nn.logsumexp(x, 0, keepdims=True),
        (X,),
        {"logsumexp": 1},
    ),
    Way("layer_norm by hand", layer_norm, (X, V, V), {"layer_norm": 1}),
    Way("layer_norm by rsqrt", layer_norm_by_rsqrt, (X, V, V), {"layer_norm": 1}),
    Way("layer_norm by sums", layer_norm_by_sums, (X, V, V), {"layer_norm": 1}),
    Way("layer_norm by squares", layer_norm_by_squares, (X, V, V), {"layer_norm": 1}),
    Way("layer_norm of columns", layer_norm_of_columns, (X,), {"layer_norm": 1}),
    Way("layer_norm in f32 of bf16", layer_norm_in_f32, (X, V, V), {"layer_norm": 1}, jnp.bfloat16),
    Way("layer_norm, bf16", layer_norm, (X, V, V), {"layer_norm": 1}, jnp.bfloat16),
    Way("layer_norm, f64", layer_norm, (X, V, V), {"layer_norm": 1}, jnp.float64, x64=True),
    Way(
        "layer_norm under vmap",
        jax.vmap(layer_norm, (0, None, None)),
        (X, V, V),
        {"layer_norm": 1},
    ),
    Way(
        "layer_norm inside a gradient",
        lambda x, g, b: jax.value_and_grad(lambda y: (layer_norm(y, g, b) ** 2).sum())(x)[0],
        (X, V, V),
        {"layer_norm": 1},
    ),
    Way("linen.LayerNorm", _linen(nn.LayerNorm(), *X), (X,), {"layer_norm": 1}),
    Way(
        "linen.LayerNorm, two passes",
        _linen(nn.LayerNorm(use_fast_variance=False), *X),
        (X,),
        {"layer_norm": 1},
    ),
    Way(
        "linen.LayerNorm, bf16",
        _linen(nn.LayerNorm(dtype=jnp.bfloat16), *X),
        (X,),
        {"layer_norm": 1},
        jnp.bfloat16,
    ),
    Way("nnx.LayerNorm", nnx.LayerNorm(WIDTH, rngs=nnx.Rngs(0)), (X,), {"layer_norm": 1}),
    Way("eqx.nn.LayerNorm", jax.vmap(eqx.nn.LayerNorm(WIDTH)), (X,), {"layer_norm": 1}),
    Way("hk.LayerNorm", _haiku(lambda: hk.LayerNorm(-1, True, True)), (X,), {"layer_norm": 1}),
    Way("rms_norm by hand", rms_norm, (X, V), {"rms_norm": 1}),
    Way("rms_norm by a root", rms_norm_by_root, (X, V), {"rms_norm": 1}),
    Way("rms_norm as Llama's", rms_norm_of_llama, (X, V), {"rms_norm": 1}, jnp.bfloat16),
    Way("rms_norm as Gemma's", rms_norm_of_gemma, (X, V), {"rms_norm": 1}),
    Way("linen.RMSNorm", _linen(nn.RMSNorm(), *X), (X,), {"rms_norm": 1}),
    Way("nnx.RMSNorm", nnx.RMSNorm(WIDTH, rngs=nnx.Rngs(0)), (X,), {"rms_norm": 1}),
    Way("eqx.nn.RMSNorm", jax.vmap(eqx.nn.RMSNorm(WIDTH)), (X,), {"rms_norm": 1}),
    Way("hk.RMSNorm", _haiku(lambda: hk.RMSNorm(-1)), (X,), {"rms_norm": 1}),
    Way("group_norm by hand", group_norm, ((2, WIDTH, 3, 3), V, V), {"group_norm": 1}),
    Way("batch_norm by hand", batch_norm, (X, V, V, V, V), {"batch_norm_inference": 1}),
    Way(
        "linen.BatchNorm",
        _linen(nn.BatchNorm(use_running_average=True), *X),
        (X,),
        {"batch_norm_inference": 1},
    ),
    Way("jax.nn.gelu", jax.nn.gelu, (X,), {"gelu_tanh": 1}),
    Way("jax.nn.gelu, exact", lambda x: jax.nn.gelu(x, approximate=False), (X,), {"gelu": 1}),
    Way("jax.nn.gelu, bf16", jax.nn.gelu, (X,), {"gelu_tanh": 1}, jnp.bfloat16),
    Way("gelu by hand", gelu_tanh, (X,), {"gelu_tanh": 1}),
    Way("gelu by a power", gelu_tanh_by_power, (X,), {"gelu_tanh": 1}),
    Way("gelu with a factored cube", gelu_tanh_factored, (X,), {"gelu_tanh": 1}),
    Way("gelu by erf", gelu_erf, (X,), {"gelu": 1}),
    Way("gelu by erf, halved", gelu_erf_halved, (X,), {"gelu": 1}),
    Way("jax.nn.silu", jax.nn.silu, (X,), {"silu": 1}),
    Way("silu by hand", silu, (X,), {"silu": 1}),
    Way("silu by a sigmoid", silu_by_sigmoid, (X,), {"silu": 1}),
    Way("silu, bf16", jax.nn.silu, (X,), {"silu": 1}, jnp.bfloat16),
    Way("jax.nn.softplus", jax.nn.softplus, (X,), {"softplus": 1}),
    Way("softplus by hand", softplus, (X,), {"softplus": 1}),
    Way("jnp.logaddexp with 0", lambda x: jnp.logaddexp(0.0, x), (X,), {"softplus": 1}),
    Way("swiglu", swiglu, (X,), {"silu": 1}),
    Way("geglu", geglu, (X,), {"gelu_tanh": 1}),
    Way("linen.gelu in a gradient", jax.grad(lambda x: nn.silu(x).sum()), (X,), {}),
    Way("loss by take_along_axis", take_loss, (X, ints((4,), 8)), {"cross_entropy": 1}),
    Way("loss by where", where_loss, (X, ints((4,), 8)), {"cross_entropy": 1}),
    Way(
        "one-hot of an integer table",
        lambda table, i: jax.nn.one_hot(i, 8, dtype=jnp.int32) @ table,
        (ints((8, 6), 99), ints((4,), 8)),
        {"one_hot lookup": 1},
    ),
]


def _mean_variance_softmax(x: Any) -> Any:
    shifted = jnp.exp(x - x.mean(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def _softmax_of_two_axes(x: Any) -> Any:
    shifted = jnp.exp(x - x.max(0, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def _softmax_with_eps(x: Any) -> Any:
    shifted = jnp.exp(x - x.max(-1, keepdims=True))
    return shifted / (shifted.sum(-1, keepdims=True) + 1e-9)


def _unlike_sum(x: Any) -> Any:
    shifted = jnp.exp(x - x.max(-1, keepdims=True))
    return shifted / jnp.exp(x).sum(-1, keepdims=True)


def _masked_sum(x: Any) -> Any:
    shifted = jnp.exp(x - x.max(-1, keepdims=True))
    return shifted / jnp.where(x > 0, shifted, 0).sum(-1, keepdims=True)


def _unguarded_logsumexp(x: Any) -> Any:
    top = x.max(-1)
    return jnp.log(jnp.exp(x - top[:, None]).sum(-1)) + top


def _norm(x: Any, mean: Any, variance: Any) -> Any:
    return (x - mean) / jnp.sqrt(variance + 1e-5)


def _variance_about_other_mean(x: Any) -> Any:
    other = jnp.square(x - x.mean(0, keepdims=True)).mean(1, keepdims=True)
    return _norm(x, x.mean(1, keepdims=True), other)


def _squares_of_other_mean(x: Any) -> Any:
    other = (x * x).mean(1, keepdims=True) - jnp.square(x.mean(0, keepdims=True))
    return _norm(x, x.mean(1, keepdims=True), jnp.maximum(other, 0))


def _unguarded_variance(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt((x * x).mean(-1, keepdims=True) - mean**2 + 1e-5)


NO_MAXIMUM = "its exponentials are taken without subtracting a maximum"
LOOKALIKES = [
    Way("exp over its sum", lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True), (X,), {},
        misses=(NO_MAXIMUM,)),
    Way("softmax by the mean", _mean_variance_softmax, (X,), {}, misses=(NO_MAXIMUM,)),
    Way("softmax over two axes", _softmax_of_two_axes, ((8, 8),), {},
        misses=("the maximum is over axes (0,) and the sum over (1,)",)),
    Way("softmax over all", lambda x: softmax(x, None), (X,), {},  # pyright: ignore[reportArgumentType]
        misses=("it is over several axes, (0, 1)",)),
    Way("softmax with eps", _softmax_with_eps, (X,), {}),
    Way("softmax with another sum", _unlike_sum, (X,), {}),
    Way("softmax with a masked sum", _masked_sum, (X,), {}),
    Way("twice the sum", lambda x: (lambda e: e / (2 * e.sum(-1, keepdims=True)))(
        jnp.exp(x - x.max(-1, keepdims=True))), (X,), {}, misses=("the sum is multiplied by 2",)),
    Way("log of softmax", lambda x: jnp.log(jax.nn.softmax(x)), (X,), {"softmax": 1}),
    Way("x minus logsumexp", lambda x: x - jax.nn.logsumexp(x, -1, keepdims=True), (X,),
        {"logsumexp": 1}, misses=("rows with +Inf keep finite logits apart",)),
    Way("logsumexp, not guarded", _unguarded_logsumexp, (X,), {},
        misses=("a row of −Inf gives NaN",)),
    Way("logsumexp of two axes", lambda x: jax.nn.logsumexp(x), (X,), {},
        misses=("it is over the axes (0, 1)",)),
    Way("unbiased variance", lambda x: _norm(
        x, x.mean(-1, keepdims=True), x.var(-1, keepdims=True, ddof=1)), (X,), {},
        misses=("the variance is divided by 7 and not by 8",)),
    Way("eps outside the root", lambda x: (x - x.mean(-1, keepdims=True)) / (
        x.std(-1, keepdims=True) + 1e-5), (X,), {}),
    Way("no eps", lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True), (X,), {}),
    Way("mean of another axis", lambda x: _norm(
        x, x.mean(0, keepdims=True), x.var(1, keepdims=True)), ((8, 8),), {}),
    Way("mean of another value", lambda x, y: _norm(
        x, y.mean(-1, keepdims=True), y.var(-1, keepdims=True)), (X, X), {}),
    Way("norm over two axes", lambda x: _norm(x, x.mean(), x.var()), (X,), {},
        misses=("the statistics are over the axes (0, 1)",)),
    Way("variance by squares, not guarded", _unguarded_variance, (X,), {},
        misses=("may be negative",)),
    Way("variance about another mean", _variance_about_other_mean, ((8, 8),), {}),
    Way("squares less another mean", _squares_of_other_mean, ((8, 8),), {}),
    Way("maximum norm", lambda x: x / jnp.sqrt(
        (x * x).max(-1, keepdims=True) + 1e-6), (X,), {}),
    Way("sum of squares", lambda x: x * lax.rsqrt(
        (x * x).sum(-1, keepdims=True) + 1e-6), (X,), {}),
    Way("norm of another value", lambda x, y: x * lax.rsqrt(
        (y * y).mean(-1, keepdims=True) + 1e-6), (X, X), {}),
    Way("gelu with another cube", lambda x: 0.5 * x * (
        1 + jnp.tanh(np.sqrt(2 / np.pi) * (x + 0.0447 * x**3))), (X,), {},
        misses=("tanh is of 0.797885·x^1, 0.0356654·x^3",)),
    Way("gelu with another slope", lambda x: 0.5 * x * (
        1 + jnp.tanh(0.8 * (x + 0.044715 * x**3))), (X,), {}, misses=("tanh is of 0.8·x^1",)),
    Way("gelu with another factor", lambda x: 0.4 * x * (1 + lax.erf(x / np.sqrt(2))), (X,), {},
        misses=("its factor is 0.4 and not 0.5",)),
    Way("gelu by erf of x", lambda x: 0.5 * x * (1 + lax.erf(x)), (X,), {},
        misses=("erf is of 1·x^1",)),
    Way("gelu by a sigmoid", lambda x: x * jax.nn.sigmoid(1.702 * x), (X,), {},
        misses=("the logistic function is of 1.702·x^1",)),
    Way("silu of another value", lambda x, y: x * jax.nn.sigmoid(y), (X, X), {}),
    Way("softplus that overflows", lambda x: jnp.log1p(jnp.exp(x)), (X,), {},
        misses=("exp(x) overflows for large x",)),
    Way("softplus by log", lambda x: jnp.log(1 + jnp.exp(x)), (X,), {},
        misses=("exp(x) overflows for large x",)),
    Way("loss by optax, targets", optax.softmax_cross_entropy, (X, X), {"log_softmax": 1},
        misses=("a target of 0 times a logit of −Inf gives NaN",)),
    Way("few one-hot rows of a large table", lambda table, i: jax.nn.one_hot(i, 300) @ table,
        ((300, 300), ints((4,), 8)), {}, misses=("0 · Inf",)),
]  # fmt: skip
