"""JAX functions of every family, with arguments, for the import of their StableHLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def whole(*shape: int, low: int = -5, high: int = 9, dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(1).integers(low, high, shape).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return np.abs(normal(*shape)) + np.float32(0.1)


X, Y, M, N = normal(4, 8), normal(4, 8, seed=1), normal(8, 3), whole(4, 8)
B = X.astype(jnp.bfloat16)
C = (X + 1j * Y).astype(np.complex64)
IMAGE, KERNEL = normal(2, 8, 8, 3), normal(3, 3, 3, 4)
KEY = np.array([1, 2], np.uint32)


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(nn.gelu(nn.LayerNorm()(nn.Dense(16)(x))))


class Cnn(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Conv(4, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.avg_pool(nn.BatchNorm(use_running_average=True)(x), (2, 2), (1, 1))
        return nn.Dense(3)(x.reshape(len(x), -1))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(17, 16)(tokens)
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.log_softmax(nn.Dense(17)(x))


def applied(module: nn.Module, x: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    variables = module.init(jax.random.key(0), x)
    return lambda v, x: module.apply(v, x), (variables, x)


def train_step(params: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        hidden = jnp.tanh(x @ p["a"]) @ p["b"]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(hidden) * y, axis=-1))

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def fori(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x)


def while_captured(x: Any, limit: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < limit, lambda s: (s[0] + 1, s[1] * x), (0, x))[1]


def scan_sum(x: Any) -> Any:
    return lax.scan(lambda c, a: (c + a, c * a), jnp.zeros(8, x.dtype), x, reverse=True)


def dilated_pool(x: Any) -> Any:
    dims = {"window_dimensions": (1, 2, 2, 1), "window_strides": (1, 1, 1, 1), "padding": "VALID"}
    return lax.reduce_window(x, -jnp.inf, lax.max, **dims, window_dilation=(1, 2, 2, 1))


def general_reduce(x: Any) -> Any:
    return lax.reduce(x, np.float32(1), lambda a, b: a * b + a + b, (0,))


def two_reductions(x: Any) -> Any:
    def both(a: Any, b: Any) -> Any:
        return a[0] + b[0], jnp.maximum(a[1], b[1])

    return lax.reduce((x, x), (np.float32(0), np.float32(-np.inf)), both, (1,))


CONV = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
SMALL = {"a": normal(8, 6), "b": normal(6, 3)}

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arithmetic": (lambda x, y: (x + y, x - y, x * y, x / y, -x, abs(x), jnp.sign(x)), (X, Y)),
    "integers": (lambda x: (x // 3, x % 3, x >> 1, x << 2, ~x, x & 5, x | 3, x ^ 6), (N,)),
    "bits": (lambda x: (lax.population_count(x), lax.clz(x), x >> np.uint32(2)), (N.astype("u4"),)),
    "rounding": (lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(x), lax.round(x)), (X * 3,)),
    "exponential": (lambda x: (jnp.exp(x), jnp.expm1(x), jnp.log(x), jnp.log1p(x)), (positive(9),)),
    "roots": (lambda x: (jnp.sqrt(x), lax.rsqrt(x), jnp.cbrt(x), x**2.5), (positive(9),)),
    "trigonometric": (lambda x: (jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.arctan2(x, x + 1)), (X,)),
    "hyperbolic": (lambda x: (jnp.tanh(x), jnp.sinh(x), jnp.cosh(x), jnp.arcsinh(x)), (X,)),
    "inverse": (lambda x: (jnp.arcsin(x), jnp.arccos(x), jnp.arctan(x), jnp.arctanh(x)), (X / 4,)),
    "special": (
        lambda x: (lax.erf(x), lax.erfc(x), lax.erf_inv(x / 9), lax.lgamma(x), lax.digamma(x)),
        (positive(9),),
    ),
    "more_special": (
        lambda x: (
            lax.bessel_i1e(x),
            lax.zeta(x + 1, x),
            lax.igamma(x, x),
            lax.nextafter(x, x + 1),
        ),
        (positive(9),),
    ),
    "logistic": (jax.nn.sigmoid, (X,)),
    "compare": (lambda x, y: (x < y, x >= y, x == y, x != y, jnp.isfinite(x)), (X, Y)),
    "select": (lambda x, y: (jnp.where(x > 0, x, y), jnp.clip(x, -0.5, 0.5)), (X, Y)),
    "select_n": (lambda i, *xs: lax.select_n(i, *xs), (N % 3, X, Y, X + Y)),
    "complex": (
        lambda c: (c.real, c.imag, jnp.conj(c), abs(c), c * c, jnp.exp(c), jnp.sin(c)),
        (C,),
    ),
    "fft": (lambda c, x: (jnp.fft.fft2(c), jnp.fft.rfft(x), jnp.fft.irfft(c)), (C, X)),
    "bfloat16": (lambda b: (b * b, jnp.sum(b), b @ b.T, jnp.max(b, 1)), (B,)),
    "convert": (lambda x, n: (x.astype("int8"), n.astype("f2"), n.astype(bool), n > 0), (X, N)),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.uint32), (X,)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 3), (X,)),
    "barrier": (lambda x: lax.optimization_barrier((x, x + 1)), (X,)),
    "constants": (
        lambda x: (
            x + X,
            x + 2,
            jnp.full(3, True),
            jnp.array([1 + 2j, 3]),
            jnp.array([1.5, 3], B.dtype),
        ),
        (Y,),
    ),
    "iota": (lambda: (jnp.arange(5), lax.broadcasted_iota("float32", (3, 4), 1)), ()),
    "layout": (lambda x: (x.T, x.reshape(2, 16), x[None], jnp.flip(x, 1), jnp.repeat(x, 2)), (X,)),
    "slices": (lambda x: (x[1:3, ::2], x[:, -1], x[::-1]), (X,)),
    "joins": (lambda x, y: (jnp.concatenate([x, y], 1), jnp.stack([x, y]), jnp.tile(x, 2)), (X, Y)),
    "pad": (lambda x: lax.pad(x, np.float32(7), ((1, -1, 1), (0, 2, 0))), (X,)),
    "dynamic": (
        lambda x, i: (lax.dynamic_slice(x, (i, 2), (2, 3)), x.at[i].set(0), x[i]),
        (X, np.int32(2)),
    ),
    "gather": (
        lambda x, i: (x[i], x[:, i], jnp.take(x, i, axis=1, mode="clip")),
        (X, whole(5) % 4),
    ),
    "gather_fill": (lambda x, i: jnp.take(x, i, axis=0, mode="fill"), (X, whole(5))),
    "take_along": (lambda x, i: jnp.take_along_axis(x, i, 1), (X, N % 8)),
    "scatter": (
        lambda x, i: (
            x.at[i].add(1),
            x.at[i].mul(2),
            x.at[i].max(0),
            x.at[i].min(0),
            x.at[i].set(3),
        ),
        (X, whole(3) % 4),
    ),
    "scatter_drop": (lambda x, i: x.at[i, 0].add(1, mode="drop"), (X, whole(6))),
    "scatter_apply": (lambda x, i: x.at[i].apply(jnp.sin), (X, whole(3) % 4)),
    "segment": (lambda x, i: jax.ops.segment_sum(x, i, 3), (X, whole(4) % 3)),
    "one_hot": (lambda i: jax.nn.one_hot(i, 5), (whole(6) % 5,)),
    "reduce": (
        lambda x: (x.sum(0), x.prod(1), x.max(), x.min(1), (x > 0).any(), (x > 0).all(0)),
        (X,),
    ),
    "reduce_bits": (
        lambda x: (
            lax.reduce(x, np.int32(-1), lax.bitwise_and, (0,)),
            lax.reduce(x, np.int32(0), lax.bitwise_xor, (1,)),
        ),
        (N,),
    ),
    "general_reduce": (general_reduce, (X,)),
    "two_reductions": (two_reductions, (X,)),
    "reduce_with_start": (lambda x: lax.reduce(x, np.float32(2), lax.add, (1,)), (X,)),
    "argmax": (lambda x, n: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(n, 1)), (X, N)),
    "statistics": (lambda x: (x.mean(), x.std(1), jnp.median(x, 1), jnp.quantile(x, 0.3)), (X,)),
    "cumulative": (
        lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cumlogsumexp(x, 1)),
        (X,),
    ),
    "sort": (lambda x, n: (jnp.sort(x), jnp.argsort(x, 0), jnp.sort(n, descending=True)), (X, N)),
    "lexsort": (lambda x, n: lax.sort((n, x, x + 1), num_keys=2), (X, N)),
    "sort_complex": (jnp.sort, (C,)),
    "unique": (lambda n: jnp.unique(n, size=9, return_counts=True), (N,)),
    "top_k": (lambda x: (lax.top_k(x, 3), lax.approx_max_k(x, 2)), (X,)),
    "dot": (lambda x, m: (x @ m, jnp.einsum("ij,kj->ik", x, x), jnp.dot(x[0], m)), (X, M)),
    "batched_dot": (lambda x: jnp.einsum("bij,bkj->bik", x, x), (normal(3, 4, 5),)),
    "integer_dot": (
        lambda n: lax.dot_general(n, n, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32),
        (N.astype("int8"),),
    ),
    "dot_precision": (lambda x, m: jnp.dot(x, m, precision="highest"), (X, M)),
    "conv": (lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME", **CONV), (IMAGE, KERNEL)),
    "conv_grouped": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "VALID", feature_group_count=3, **CONV),
        (IMAGE, normal(3, 3, 1, 6)),
    ),
    "conv_dilated": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (1, 1), ((1, 2), (0, 1)), lhs_dilation=(2, 1), rhs_dilation=(1, 2), **CONV
        ),
        (IMAGE, KERNEL),
    ),
    "conv_gradient": (
        jax.grad(lambda k, x: jnp.sum(lax.conv_general_dilated(x, k, (2, 2), "SAME", **CONV) ** 2)),
        (KERNEL, IMAGE),
    ),
    "pool": (lambda x: (nn.max_pool(x, (2, 2)), nn.avg_pool(x, (3, 3), (2, 2), "SAME")), (IMAGE,)),
    "pool_gradient": (jax.grad(lambda x: jnp.sum(nn.max_pool(x, (2, 2), (2, 2)) ** 2)), (IMAGE,)),
    "pool_dilated": (dilated_pool, (IMAGE,)),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, lambda a: a * 2, lambda a: a - Y, x), (X,)),
    "switch": (
        lambda i, x: lax.switch(i, [lambda a: a, lambda a: a * Y, lambda a: -a], x),
        (np.int32(7), X),
    ),
    "fori": (fori, (X,)),
    "while": (while_captured, (X, np.int32(3))),
    "scan": (scan_sum, (X,)),
    "nested_loops": (
        lambda x: lax.map(lambda r: lax.fori_loop(0, 3, lambda i, c: c * r, r), x),
        (X,),
    ),
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, x, axis=1), (X,)),
    "nested_jit": (lambda x: jax.jit(lambda a: jnp.sin(a) * a + 1)(x) + jax.nn.relu(x), (X,)),
    "checkpoint": (jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.sin)(x) ** 2)), (X,)),
    "vmap": (jax.vmap(lambda r: jnp.outer(r, r).sum(0)), (X,)),
    "solve": (lambda x: jnp.linalg.inv(x @ x.T + 5 * jnp.eye(4)), (X,)),
    "random_bits": (lambda k: jax.random.bits(jax.random.wrap_key_data(k), (3, 5)), (KEY,)),
    "random_normal": (lambda k: jax.random.normal(jax.random.wrap_key_data(k), (3, 5)), (KEY,)),
    "random_split": (lambda k: jax.random.uniform(jax.random.split(k, 3)[2], (4,)), (KEY,)),
    "random_choice": (lambda k, x: jax.random.permutation(k, x), (KEY, X)),
    "random_rbg": (
        lambda k: jax.random.uniform(jax.random.wrap_key_data(k, impl="rbg"), (5,)),
        (np.arange(4, dtype=np.uint32),),
    ),
    "softmax": (lambda x: (jax.nn.softmax(x), jax.nn.logsumexp(x, 1), jax.nn.gelu(x)), (X,)),
    "attention": (
        lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True),
        (normal(2, 5, 2, 8),),
    ),
    "train_step": (train_step, (SMALL, X, np.eye(3, dtype=np.float32)[whole(4) % 3])),
    "mlp": applied(Mlp(), X),
    "cnn": applied(Cnn(), IMAGE),
    "lstm": applied(nn.RNN(nn.LSTMCell(5)), normal(2, 6, 3)),
    "transformer": applied(Transformer(), whole(2, 7, low=0, high=17)),
}

ALLOWED: dict[str, frozenset[str]] = {
    "solve": frozenset({"lapack_sgetrf_ffi", "lapack_strsm_ffi"}),
    "top_k": frozenset({"ApproxTopK"}),
}
"""Custom calls that cases need."""

EXTERNAL: dict[str, list[str]] = {
    "scatter_apply": ["stablehlo.scatter"],
    "solve": ["lapack_sgetrf_ffi", "lapack_strsm_ffi", "lapack_strsm_ffi"],
    "top_k": ["ApproxTopK"],
}
"""External nodes that cases become; all others become none."""
