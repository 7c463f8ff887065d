"""Real programs: traced, compiled, run over several steps, and compared with ``jax.jit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import equinox as eqx
import equinox.internal
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state

import rlx
import rlx_xla

STEPS = 3


def follow(
    step: Callable[..., Any],
    state: Any,
    batches: Sequence[tuple[Any, ...]],
    *,
    donate: bool = False,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> rlx_xla.Traced:
    """Run ``(state, *batch) -> (state, result)`` over the batches, as a graph and under jax.jit.

    Both start from the same state, and each goes on from its own: what differs adds up.
    """
    donated = (0,) if donate else ()
    traced = rlx_xla.trace(step, state, *batches[0], donate_argnums=donated)
    assert traced.coverage().external == 0, str(traced.coverage())
    compiled, jitted = rlx.Session("cpu").compile(traced), jax.jit(step)
    ours = theirs = state
    for batch in batches:
        before = ours
        # What is donated must be nobody else's: the reference starts from the same arrays.
        given = jax.tree.map(jnp.copy, ours) if donate else ours
        ours, found = compiled(given, *batch)
        theirs, wanted = jitted(theirs, *batch)
        if donate:
            assert any(leaf.is_deleted() for leaf in jax.tree.leaves(given))
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        close = _plain(found), _plain(wanted)
        chex.assert_trees_all_equal_shapes_and_dtypes(*close)
        chex.assert_trees_all_close(*close, rtol=rtol, atol=atol)
        assert before is not ours
    chex.assert_trees_all_equal_shapes_and_dtypes(_plain(ours), _plain(theirs))
    chex.assert_trees_all_close(_plain(ours), _plain(theirs), rtol=rtol, atol=atol)
    return traced


def _plain(tree: Any) -> list[Any]:
    """Leaves with keys as the numbers that they hold."""
    return [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in map(jnp.asarray, jax.tree.leaves(tree))
    ]


class Cnn(nn.Module):
    """Flax's MNIST network, with fewer channels."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for features in (8, 16):
            x = nn.avg_pool(nn.relu(nn.Conv(features, (3, 3))(x)), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def test_mnist_cnn_with_adamw_and_donation(rng: np.random.Generator) -> None:
    model = Cnn()

    def step(state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        def loss_of(params: Any) -> tuple[Any, Any]:
            logits = state.apply_fn({"params": params}, images)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), logits

        (loss, logits), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        accuracy = jnp.mean(jnp.argmax(logits, -1) == labels)
        return state.apply_gradients(grads=gradient), {"loss": loss, "accuracy": accuracy}

    images = jnp.asarray(rng.standard_normal((STEPS, 4, 28, 28, 1)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, (STEPS, 4)), jnp.int32)
    state = train_state.TrainState.create(
        apply_fn=model.apply,
        params=model.init(jax.random.key(0), images[0])["params"],
        tx=optax.adamw(1e-3),
    )
    batches = list(zip(images, labels, strict=True))
    traced = follow(step, state, batches, donate=True, atol=1e-4)
    assert "state/params/Conv_0/kernel" in traced.signature.donated


class Block(nn.Module):
    """A pre-norm transformer block."""

    @nn.compact
    def __call__(self, x: Any, *, train: bool) -> Any:
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        y = nn.MultiHeadDotProductAttention(
            2, dropout_rate=0.1, deterministic=not train, use_bias=False
        )(nn.LayerNorm()(x), mask=mask)
        x = x + nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(2 * x.shape[-1])(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=not train)(y)


class LanguageModel(nn.Module):
    """A decoder whose embedding is its last layer too."""

    @nn.compact
    def __call__(self, tokens: Any, *, train: bool) -> Any:
        embed = nn.Embed(17, 16)
        x = embed(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = Block()(x, train=train)
        return embed.attend(nn.LayerNorm()(x))


class Training(NamedTuple):
    params: Any
    optimizer: Any
    key: Any


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_transformer_with_dropout_keys_and_a_clipped_schedule(
    impl: str, rng: np.random.Generator
) -> None:
    model = LanguageModel()
    schedule = optax.warmup_cosine_decay_schedule(1e-4, 1e-3, 2, 6)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule))

    def step(state: Training, tokens: Any) -> tuple[Training, Any]:
        key, dropout = jax.random.split(state.key)

        def loss_of(params: Any) -> Any:
            logits = model.apply(
                {"params": params}, tokens[:, :-1], train=True, rngs={"dropout": dropout}
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return losses.mean()

        loss, gradient = jax.value_and_grad(loss_of)(state.params)
        updates, after = optimizer.update(gradient, state.optimizer, state.params)
        told = {"loss": loss, "norm": optax.tree.norm(gradient)}
        return Training(optax.apply_updates(state.params, updates), after, key), told

    batches = [(jnp.asarray(rng.integers(0, 17, (2, 9)), jnp.int32),) for _ in range(STEPS)]
    params = model.init(jax.random.key(0), batches[0][0][:, :-1], train=False)["params"]
    state = Training(params, optimizer.init(params), jax.random.key(1, impl=impl))
    follow(step, state, batches, atol=1e-4)


class NnxNet(nnx.Module):
    """Batch statistics, dropout counters and keys live in the module."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(6, 6, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.dropout(self.norm(x))


def test_nnx_state_in_and_out(rng: np.random.Generator) -> None:
    graphdef, params, rest = nnx.split(NnxNet(nnx.Rngs(0)), nnx.Param, ...)
    optimizer = optax.adamw(1e-2)

    def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        params, rest, moments = state

        def loss_of(params: Any, rest: Any) -> tuple[Any, Any]:
            # Copied: what the model changes must have been made inside the differentiated function.
            model = nnx.merge(graphdef, params, rest, copy=True)
            loss = jnp.mean((model(x) - y) ** 2)
            return loss, nnx.state(model, nnx.Not(nnx.Param))

        (loss, rest), gradient = jax.value_and_grad(loss_of, has_aux=True)(params, rest)
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), rest, moments), loss

    batches = [
        tuple(jnp.asarray(rng.standard_normal((5, 6)), jnp.float32) for _ in range(2))
        for _ in range(STEPS)
    ]
    follow(step, (params, rest, optimizer.init(params)), batches, atol=1e-4)


def test_nnx_params_are_named_by_their_path(rng: np.random.Generator) -> None:
    graphdef, state = nnx.split(NnxNet(nnx.Rngs(0)))
    x = jnp.asarray(rng.standard_normal((5, 6)), jnp.float32)

    def forward(state: Any, x: Any) -> tuple[Any, Any]:
        model = nnx.merge(graphdef, state)
        return model(x), nnx.state(model, nnx.BatchStat)

    wanted = [
        "state/layers/0/bias", "state/layers/0/kernel",
        "state/layers/1/bias", "state/layers/1/kernel",
        "state/norm/bias", "state/norm/scale",
    ]  # fmt: skip
    fed = [
        "state/norm/mean",
        "state/norm/var",
        "state/dropout/rngs/count",
        "state/dropout/rngs/key",
    ]
    by_class = rlx_xla.trace(forward, state, x, params=nnx.Param)
    by_name = rlx_xla.trace(forward, state, x, params=lambda name: name in wanted)
    for traced in (by_class, by_name):
        assert [v.name for v in traced.graph.params] == wanted
        assert {v.name for v in traced.graph.inputs} == {*fed, "x"}
        assert traced.signature.outputs == ("output/0", "output/1/norm/mean", "output/1/norm/var")
    compiled = rlx.Session("cpu").compile(by_class)
    found, expected = compiled(state, x), jax.jit(forward)(state, x)
    chex.assert_trees_all_close(_plain(found), _plain(expected), rtol=1e-5, atol=1e-6)
    compiled.set_param("state/norm/bias", np.ones(6, np.float32))
    assert not np.allclose(compiled(state, x)[0], found[0])


def test_nnx_module_and_graphdef_as_arguments(rng: np.random.Generator) -> None:
    model = NnxNet(nnx.Rngs(0))
    model.eval()
    x = jnp.asarray(rng.standard_normal((5, 6)), jnp.float32)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def apply(graphdef: Any, params: Any, rest: Any, x: Any) -> Any:
        return nnx.merge(graphdef, params, rest)(x)

    wanted = jax.jit(apply)(graphdef, params, rest, x)
    traced = rlx_xla.trace(apply, graphdef, params, rest, x, params=(1, 2))
    assert [v.name for v in traced.graph.inputs] == ["x"]
    found = rlx.Session("cpu").compile(traced)(graphdef, x)
    chex.assert_trees_all_close(found, wanted, rtol=1e-5, atol=1e-6)
    whole = rlx_xla.trace(lambda model, x: model(x), model, x, params=0)
    assert "model/layers/0/kernel" in [v.name for v in whole.graph.params]
    chex.assert_trees_all_close(rlx.Session("cpu").compile(whole)(x), wanted, rtol=1e-5, atol=1e-6)


def test_equinox_mlp_partitioned(rng: np.random.Generator) -> None:
    model = eqx.nn.MLP(3, 2, width_size=8, depth=2, key=jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        arrays, moments = state

        def loss_of(arrays: Any) -> Any:
            return jnp.mean((jax.vmap(eqx.combine(arrays, static))(x) - y) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(arrays)
        updates, moments = optimizer.update(gradient, moments, arrays)
        return (eqx.apply_updates(arrays, updates), moments), loss

    batches = [
        tuple(jnp.asarray(rng.standard_normal((5, n)), jnp.float32) for n in (3, 2))
        for _ in range(STEPS)
    ]
    follow(step, (arrays, optimizer.init(arrays)), batches)
    forward = rlx_xla.trace(
        lambda arrays, x: jax.vmap(eqx.combine(arrays, static))(x), arrays, "f32[b, 3]", params=0
    )
    assert [v.name for v in forward.graph.params][:2] == [
        "arrays/layers/0/weight",
        "arrays/layers/0/bias",
    ]
    compiled = rlx.Session("cpu").compile(forward)
    for size in (1, 4):
        x = jnp.ones((size, 3))
        chex.assert_trees_all_close(compiled(x), jax.vmap(model)(x), rtol=1e-5, atol=1e-6)


def test_equinox_filters_inside_the_function(rng: np.random.Generator) -> None:
    model = eqx.nn.MLP(3, "scalar", width_size=8, depth=1, key=jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_array)

    @eqx.filter_value_and_grad
    def loss_of(model: Any, x: Any) -> Any:
        return jnp.mean(jax.vmap(model)(x) ** 2)

    def step(arrays: Any, x: Any) -> tuple[Any, Any]:
        loss, gradient = loss_of(eqx.combine(arrays, static), x)
        moved = jax.tree.map(lambda g: -0.1 * g, eqx.filter(gradient, eqx.is_array))
        return eqx.apply_updates(arrays, moved), loss

    x = jnp.asarray(rng.standard_normal((5, 3)), jnp.float32)
    follow(step, arrays, [(x,)] * STEPS)


def test_haiku_lstm(rng: np.random.Generator) -> None:
    def network(sequence: Any) -> Any:
        core = hk.LSTM(8)
        outputs, _ = hk.dynamic_unroll(core, sequence, core.initial_state(sequence.shape[1]))
        return hk.BatchApply(hk.Linear(3))(outputs)

    model = hk.without_apply_rng(hk.transform(network))
    optimizer = optax.chain(optax.clip(0.1), optax.adam(optax.exponential_decay(1e-2, 2, 0.9)))

    def step(state: Any, sequence: Any) -> tuple[Any, Any]:
        params, moments = state

        def loss_of(params: Any) -> Any:
            found = model.apply(params, sequence[:-1])
            return jnp.mean((found - sequence[1:]) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(params)
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(params, updates), moments), loss

    batches = [(jnp.asarray(rng.standard_normal((7, 2, 3)), jnp.float32),) for _ in range(STEPS)]
    params = model.init(jax.random.key(0), batches[0][0])
    traced = follow(step, (params, optimizer.init(params)), batches, atol=1e-4)
    assert "state/0/lstm/linear/w" in [v.name for v in traced.graph.inputs]


def test_equinox_loop_with_buffers_and_its_gradient() -> None:
    def loop(x: Any) -> Any:
        def body(state: Any) -> Any:
            count, grown, buffer = state
            return count + 1, grown * 1.5, buffer.at[count].set(grown**2)

        return eqx.internal.while_loop(
            lambda state: state[0] < 4,
            body,
            (jnp.array(0), x[0], x),
            max_steps=8,
            buffers=lambda state: state[2],
            kind="checkpointed",
        )[1:]

    def step(x: Any) -> tuple[Any, Any]:
        gradient = jax.grad(lambda x: loop(x)[0] + jnp.sum(loop(x)[1]))(x)
        return x - 0.1 * gradient, loop(x)

    follow(step, jnp.arange(1.0, 9.0), [()] * STEPS)


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (nnx.Param, 6),
        (nnx.OfType(nnx.Param), 6),
        (nnx.PathContains("kernel"), 2),
        (nnx.All(nnx.Param, nnx.PathContains("layers")), 4),
        (nnx.All(nnx.Param, nnx.Not(nnx.PathContains("bias"))), 3),
        (nnx.Any(nnx.PathContains("kernel"), nnx.BatchStat), 4),
        (lambda path, variable: path[-1] == "bias" and isinstance(variable, nnx.Param), 3),
        (nnx.PathContains(0), 2),
        (nnx.Not(nnx.Param), 4),
    ],
)
def test_params_by_a_filter_of_nnx(rng: np.random.Generator, chosen: Any, count: int) -> None:
    graphdef, state = nnx.split(NnxNet(nnx.Rngs(0)))
    x = jnp.asarray(rng.standard_normal((4, 6)), jnp.float32)

    def apply(state: Any, x: Any) -> Any:
        model = nnx.merge(graphdef, state, copy=True)
        model.eval()
        return model(x)

    traced = rlx_xla.trace(apply, state, x, params=chosen)
    assert len(traced.graph.params) == count, [p.name for p in traced.graph.params]
    found = rlx.Session("cpu").compile(traced)(state, x)
    chex.assert_trees_all_close(found, jax.jit(apply)(state, x), rtol=1e-5, atol=1e-5)
