"""Ways of writing norms of channels, rotations by batch, losses, lookups, cells and layers."""

from __future__ import annotations

from collections.abc import Callable
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

from tests.rlx_xla.recognize_ways import Way, ints

B, S, H, D = 2, 6, 4, 8
C = 8
IMAGE = (B, 3, 3, C)
FIRST = (B, C, 3, 3)
V = (C,)
X = (4, C)
KEY = jax.random.key(0)


def _unlike_zero(params: Any) -> Any:
    """Parameters other than those a layer starts with, so that none is left out."""
    count = lambda a: jnp.arange(1.0, 1 + a.size, dtype=a.dtype).reshape(a.shape)  # noqa: E731
    floats = lambda a: a + count(a) / 8 if jnp.issubdtype(a.dtype, jnp.floating) else a  # noqa: E731
    return jax.tree.map(floats, params)


def _linen(module: nn.Module, shape: tuple[int, ...]) -> Callable[..., Any]:
    params = _unlike_zero(module.init(KEY, jnp.ones(shape)))
    return lambda x: module.apply(params, x)


def _nnx(module: nnx.Module) -> Callable[..., Any]:
    definition, state = nnx.split(module)
    state = _unlike_zero(state)
    return lambda x: nnx.merge(definition, state)(x)


def _haiku(make: Callable[[Any], Any], shape: tuple[int, ...]) -> Callable[..., Any]:
    transformed = hk.transform_with_state(make)
    params, state = transformed.init(KEY, jnp.ones(shape))
    params = _unlike_zero(params)
    return lambda x: transformed.apply(params, state, None, x)


def group_norm_last(x: Any, gamma: Any, beta: Any) -> Any:
    grouped = x.reshape(B, 3, 3, 2, 4)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    normal = (grouped - mean) / jnp.sqrt(grouped.var((1, 2, 4), keepdims=True) + 1e-5)
    return normal.reshape(x.shape) * gamma + beta


def _linen_batch_norm(x: Any) -> Any:
    module = nn.BatchNorm(use_running_average=False)
    params = _unlike_zero(module.init(KEY, jnp.ones(IMAGE)))
    return module.apply(params, x, mutable=["batch_stats"])


def batch_norm_first(x: Any, gamma: Any, beta: Any) -> Any:
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    along = lambda v: v[None, :, None, None]  # noqa: E731
    y = (x - along(mean)) * lax.rsqrt(along(variance) + 1e-5) * along(gamma) + along(beta)
    return y, 0.9 + 0.1 * mean, 0.9 + 0.1 * variance


def batch_norm_first_inference(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    along = lambda v: v[None, :, None, None]  # noqa: E731
    scale = along(gamma / jnp.sqrt(1 + variance * variance + 1e-5))
    return (x - along(mean)) * scale + along(beta)


def _eqx_batch_norm() -> Callable[..., Any]:
    module = eqx.nn.inference_mode(eqx.nn.BatchNorm(C, "batch", mode="batch"))
    state = eqx.nn.State(module)
    one = jax.vmap(lambda x: module(x, state)[0], axis_name="batch")
    return lambda x: one(x)


def _angles(places: Any) -> Any:
    return places[..., None] / (100.0 ** (jnp.arange(0, D, 2) / D))


def neox_by_place(x: Any, places: Any) -> Any:
    angles = _angles(places)[..., None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def rotated_by_place(x: Any, places: Any) -> Any:
    angles = _angles(places)
    angles = jnp.concatenate([angles, angles], -1)[:, None]
    first, second = x[..., : D // 2], x[..., D // 2 :]
    return x * jnp.cos(angles) + jnp.concatenate([-second, first], -1) * jnp.sin(angles)


def gptj_by_place(x: Any, places: Any) -> Any:
    angles = _angles(places)[..., None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., ::2], x[..., 1::2]
    turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.reshape(x.shape)


def partly_by_place(x: Any, places: Any) -> Any:
    wide = jnp.concatenate([x, x], -1)
    return jnp.concatenate([neox_by_place(wide[..., :D], places), wide[..., D:]], -1)


def one_hot_loss(x: Any, labels: Any) -> Any:
    return -(jax.nn.one_hot(labels, C) * jax.nn.log_softmax(x)).sum(-1).mean()


def einsum_loss(x: Any, labels: Any) -> Any:
    return -jnp.einsum("bc,bc->b", jax.nn.one_hot(labels, C), jax.nn.log_softmax(x))


def indexed_loss(x: Any, labels: Any) -> Any:
    return -jax.nn.log_softmax(x)[jnp.arange(x.shape[0]), labels]


def total_less_label(x: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(x, labels[:, None], -1)[:, 0]
    return jax.nn.logsumexp(x, -1) - picked


def compared_rows(table: Any, numbers: Any) -> Any:
    return (numbers[:, None] == jnp.arange(C)).astype(jnp.float32) @ table


SEQUENCE = (B, S, 3)


def _linen_cell(cell: nn.RNNCellBase) -> Callable[..., Any]:
    module = nn.RNN(cell)
    params = _unlike_zero(module.init(KEY, jnp.ones(SEQUENCE)))
    return lambda x: module.apply(params, x / 8, initial_carry=jnp.zeros((B, 4), x.dtype))


def _nnx_cell(cell: Any, states: int = 1, dtype: Any = None) -> Callable[..., Any]:
    definition, state = nnx.split(cell)

    def apply(x: Any) -> Any:
        start = jnp.zeros((B, 4), dtype or x.dtype)

        def step(carry: Any, now: Any) -> Any:
            return nnx.merge(definition, state)(carry, now)

        return lax.scan(step, (start,) * 2 if states == 2 else start, jnp.swapaxes(x, 0, 1))[1]

    return apply


def _eqx_cell(cell: Any, states: int = 1) -> Callable[..., Any]:
    def one(x: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            carry = cell(now, carry)
            return carry, (carry[0] if states == 2 else carry)

        start = jnp.zeros(4, x.dtype)
        return lax.scan(step, (start,) * 2 if states == 2 else start, x)[1]

    return jax.vmap(one)


def _haiku_cell(make: Callable[[], Any]) -> Callable[..., Any]:
    def apply(x: Any) -> Any:
        core = make()
        return hk.dynamic_unroll(core, x, core.initial_state(B), time_major=False)[0]

    transformed = hk.transform(apply)
    params = transformed.init(KEY, jnp.ones(SEQUENCE))
    return lambda x: transformed.apply(params, None, x)


def gru(
    x: Any,
    w: Any,
    u: Any,
    b: Any,
    c: Any,
    mix: Callable[..., Any] = lambda z, n, h: z * h + (1 - z) * n,
) -> Any:
    def step(h: Any, now: Any) -> Any:
        (r, z, n), (s, t, m) = jnp.split(now @ w + b, 3, -1), jnp.split(h @ u + c, 3, -1)
        n = jnp.tanh(n + jax.nn.sigmoid(r + s) * m)
        h = mix(jax.nn.sigmoid(z + t), n, h)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)


def gru_before(x: Any, w: Any, u: Any, b: Any, v: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        r, z = jnp.split(jax.nn.sigmoid(now @ w + h @ u + b), 2, -1)
        n = jnp.tanh(now @ w[:, :4] + (r * h) @ v)
        h = z * h + (1 - z) * n
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)


GRU = ((S, B, 3), (3, 12), (4, 12), (12,), (12,))


class _Gated(nn.Module):
    """A feed-forward layer as Llama has it."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        gate = nn.Dense(12, use_bias=False)(x)
        return nn.Dense(C, use_bias=False)(jax.nn.silu(gate) * nn.Dense(12, use_bias=False)(x))


def _eqx_layers() -> Callable[..., Any]:
    first, second = (eqx.nn.Linear(C, C, key=k) for k in jax.random.split(KEY))
    return jax.vmap(lambda x: second(jax.nn.gelu(first(x))))


def dense(x: Any, w: Any, b: Any) -> Any:
    return x @ w + b


def gated_projections(x: Any, w: Any, v: Any) -> Any:
    return jax.nn.gelu(x @ w) * (x @ v)


def gated_rows(x: Any, w: Any, v: Any) -> Any:
    return (x @ v.T) * jax.nn.silu(x @ w.T)


PAIR = (X, (C, 12), (C, 12))
LABELS = (X, ints((4,), C))
PLACES = ints((B, S), 9)
LOSS = {"cross_entropy": 1}
WAYS = [
    Way("group_norm, channels last", group_norm_last, (IMAGE, V, V), {"group_norm": 1}),
    Way("linen.GroupNorm", _linen(nn.GroupNorm(2), IMAGE), (IMAGE,), {"group_norm": 1}),
    Way("linen.GroupNorm, two passes", _linen(nn.GroupNorm(2, use_fast_variance=False), IMAGE),
        (IMAGE,), {"group_norm": 1}),
    Way("linen.GroupNorm, no gain", _linen(nn.GroupNorm(2, use_scale=False), IMAGE), (IMAGE,),
        {"group_norm": 1}),
    Way("linen.GroupNorm, bf16", _linen(nn.GroupNorm(2, dtype=jnp.bfloat16), IMAGE), (IMAGE,),
        {"group_norm": 1}, jnp.bfloat16),
    Way("nnx.GroupNorm", _nnx(nnx.GroupNorm(C, 2, rngs=nnx.Rngs(0))), (IMAGE,),
        {"group_norm": 1}),
    Way("eqx.nn.GroupNorm", jax.vmap(eqx.nn.GroupNorm(2, C)), (FIRST,), {"group_norm": 1}),
    Way("hk.GroupNorm", _haiku(lambda x: hk.GroupNorm(2)(x), IMAGE), (IMAGE,),
        {"group_norm": 1}),
    Way("linen.BatchNorm in training", _linen_batch_norm, (IMAGE,), {"batch_norm (training)": 1},
        hostile=False),
    Way("hk.BatchNorm in training", _haiku(
        lambda x: hk.BatchNorm(True, True, 0.9)(x, is_training=True), IMAGE), (IMAGE,),
        {"batch_norm (training)": 1}, hostile=False),
    Way("batch_norm in training, channels first", batch_norm_first, (FIRST, V, V),
        {"batch_norm (training)": 1}),
    Way("batch_norm, channels first", batch_norm_first_inference, (FIRST, V, V, V, V),
        {"batch_norm_inference": 1}),
    Way("nnx.BatchNorm", _nnx(nnx.BatchNorm(C, use_running_average=True, rngs=nnx.Rngs(0))),
        (IMAGE,), {"batch_norm_inference": 1}),
    Way("eqx.nn.BatchNorm", _eqx_batch_norm(), ((B, C, 5),), {"batch_norm_inference": 1}),
    Way("rope of places, halves", neox_by_place, ((B, S, H, D), PLACES), {"rope": 1}),
    Way("rope of places, rotated half", rotated_by_place, ((B, H, S, D), PLACES), {"rope": 1}),
    Way("rope of places, pairs", gptj_by_place, ((B, S, H, D), PLACES), {"rope": 1}),
    Way("rope of places, in part", partly_by_place, ((B, S, H, D), PLACES), {"rope": 1}),
    Way("rope of one place each", neox_by_place, ((B, 1, H, D), ints((B, 1), 9)), {"rope": 1}),
    Way("rope of one place", rotated_by_place, ((1, H, 1, D), ints((1, 1), 9)), {"rope": 1}),
    Way("rope of one sequence", neox_by_place, ((S, H, D), ints((S,), 9)), {"rope": 1}),
    Way("rope of places under vmap", jax.vmap(neox_by_place), ((B, S, H, D), PLACES),
        {"rope": 1}),
    Way("optax, labels", optax.softmax_cross_entropy_with_integer_labels, LABELS, LOSS),
    Way("optax, labels, bf16", optax.softmax_cross_entropy_with_integer_labels, LABELS, LOSS,
        jnp.bfloat16),
    Way("optax, one-hot", lambda x, i: optax.softmax_cross_entropy(x, jax.nn.one_hot(i, C)),
        LABELS, LOSS),
    Way("loss by one-hot", one_hot_loss, LABELS, LOSS),
    Way("loss by einsum", einsum_loss, LABELS, LOSS),
    Way("loss by indices", indexed_loss, LABELS, LOSS),
    Way("loss less the label", total_less_label, LABELS, LOSS),
    Way("loss under vmap", jax.vmap(lambda x, i: -jax.nn.log_softmax(x)[i]), LABELS, LOSS),
    Way("loss and its gradient", lambda x, i: jax.value_and_grad(
        lambda x: optax.softmax_cross_entropy_with_integer_labels(x, i).mean())(x), LABELS, LOSS,
        hostile=False),
    Way("one-hot of a table", lambda table, i: jax.nn.one_hot(i, C) @ table,
        ((C, 6), ints((9,), 12)), {"one_hot lookup": 1}),
    Way("one-hot of a turned table", lambda table, i: jax.nn.one_hot(i, C) @ table.T,
        ((6, C), ints((9,), 12)), {"one_hot lookup": 1}),
    Way("one-hot by comparison", compared_rows, ((C, 6), ints((9,), 12)), {"one_hot lookup": 1}),
    Way("one-hot of a constant table", lambda i: jax.nn.one_hot(i, C) @ jnp.asarray(
        np.linspace(-1, 1, C * 6, dtype=np.float32).reshape(C, 6)), (ints((4,), 12),),
        {"one_hot lookup": 1}),
    Way("gru", gru, GRU, {"gru": 1}),
    Way("gru as a step", lambda *a: gru(*a, mix=lambda z, n, h: n + z * (h - n)), GRU,
        {"gru": 1}),
    Way("linen.GRUCell", _linen_cell(nn.GRUCell(4)), (SEQUENCE,), {"gru": 1}),
    Way("linen.MGUCell", _linen_cell(nn.MGUCell(4)), (SEQUENCE,), {"gru": 1}),
    Way("nnx.GRUCell", _nnx_cell(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))), (SEQUENCE,), {"gru": 1}),
    Way("nnx.LSTMCell", _nnx_cell(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), 2), (SEQUENCE,),
        {"lstm": 1}),
    Way("nnx.SimpleCell", _nnx_cell(nnx.SimpleCell(3, 4, rngs=nnx.Rngs(0)), dtype=jnp.float32),
        (SEQUENCE,), {"rnn": 1}),
    Way("eqx.nn.GRUCell", _eqx_cell(eqx.nn.GRUCell(3, 4, key=KEY)), (SEQUENCE,), {"gru": 1}),
    Way("eqx.nn.LSTMCell", _eqx_cell(eqx.nn.LSTMCell(3, 4, key=KEY), 2), (SEQUENCE,),
        {"lstm": 1}),
    Way("gru that resets the state", gru_before, ((S, B, 3), (3, 8), (4, 8), (8,), (4, 4)),
        {"gru": 1}),
    Way("hk.GRU", _haiku_cell(lambda: hk.GRU(4)), (SEQUENCE,), {"gru": 1}),
    Way("hk.LSTM", _haiku_cell(lambda: hk.LSTM(4)), (SEQUENCE,), {"lstm": 1}),
    Way("hk.VanillaRNN", _haiku_cell(lambda: hk.VanillaRNN(4)), (SEQUENCE,), {"rnn": 1}),
]  # fmt: skip

UNITS = [
    Way("linear", dense, (X, (C, 6), (6,)), {}, units={"linear (bias)": 1}),
    Way("linear, relu", lambda *a: jax.nn.relu(dense(*a)), (X, (C, 6), (6,)), {},
        units={"linear (bias, relu)": 1}),
    Way("linear, gelu, bf16", lambda *a: jax.nn.gelu(dense(*a)), (X, (C, 6), (6,)),
        {"gelu_tanh": 1}, jnp.bfloat16, units={"linear (bias, gelu_tanh)": 1}),
    Way("linear of rows", lambda x, w, b: jnp.tanh(x @ w.T + b), (X, (6, C), (6,)), {},
        units={"linear (bias, tanh)": 1}),
    Way("linen.Dense", _linen(nn.Sequential([nn.Dense(6), nn.silu]), X), (X,), {"silu": 1},
        units={"linear (bias, silu)": 1}),
    Way("nnx.Linear", _nnx(nnx.Linear(C, 6, rngs=nnx.Rngs(0))), (X,), {},
        units={"linear (bias)": 1}),
    Way("eqx.nn.Linear", _eqx_layers(), (X,), {"gelu_tanh": 1},
        units={"linear (bias)": 1, "linear (bias, gelu_tanh)": 1}),
    Way("hk.Linear", _haiku(lambda x: jax.nn.relu(hk.Linear(6)(x)), X), (X,), {},
        units={"linear (bias, relu)": 1}),
    Way("linear in a batch", dense, ((3, *X), (C, 6), (6,)), {}, units={"linear (bias)": 1}),
    Way("swiglu of projections, linen", _linen(_Gated(), X), (X,), {"silu": 1},
        units={"swiglu": 1}),
    Way("swiglu of rows", gated_rows, (X, (12, C), (12, C)), {"silu": 1}, units={"swiglu": 1}),
    Way("geglu of projections", gated_projections, PAIR, {"gelu_tanh": 1}, units={"geglu": 1}),
    Way("jax.nn.glu", jax.nn.glu, (X,), {}, units={"glu": 1}),
]  # fmt: skip


def _spoilt_group_norm(x: Any) -> Any:
    grouped = x.reshape(B, 3, 3, 2, 4)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    other = grouped.var((1, 2), keepdims=True)
    return ((grouped - mean) / jnp.sqrt(other + 1e-5)).reshape(x.shape)


LOOKALIKES = [
    Way("group_norm of other axes", _spoilt_group_norm, (IMAGE,), {}),
    Way("gru of another gate", lambda *a: gru(*a, mix=lambda z, n, h: z * h + (2 - z) * n), GRU,
        {}),
    Way("loss by log of softmax", lambda x, i: -jnp.log(
        jnp.take_along_axis(jax.nn.softmax(x), i[:, None], -1)), LABELS, {"softmax": 1},
        misses=("the logarithm is taken of a softmax",)),
    Way("total less another label", lambda x, y, i: jax.nn.logsumexp(x, -1) - jnp.take_along_axis(
        y, i[:, None], -1)[:, 0], (X, *LABELS), {"logsumexp": 1}),
    Way("one-hot with a value", lambda table, i: (2 * jax.nn.one_hot(i, C)) @ table,
        ((C, 6), ints((4,), C)), {}),
    Way("gate of another value", lambda x, y, w, v: jax.nn.silu(x @ w) * (y @ v),
        (X, *PAIR), {"silu": 1}, misses=("gate and up are projections or parts",)),
    Way("linear whose sum is kept", lambda *a: (lambda y: (jnp.tanh(y), y))(dense(*a)),
        (X, (C, 6), (6,)), {}, units={"linear (bias)": 1},
        misses=("its sum is used elsewhere, by a derivative or as a result",)),
]  # fmt: skip
