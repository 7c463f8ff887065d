"""A few models all the way through, for every supported jax: the oldest runs this alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import CompileError, RunError
from rlx_xla.kernels import ffi


def run_through(fn: Callable[..., Any], params: Any, *args: Any, folder: Path) -> rlx.CompiledGraph:
    """Trace, print, parse, save, load, interpret, compile, run: all agree with jax.jit."""
    wanted = jax.jit(fn)(params, *args)
    traced = rlx_xla.trace(fn, params, *args, params=0)
    assert traced.coverage().external == 0, str(traced.coverage())
    graph = traced.graph
    assert rlx.same(rlx.parse(str(graph)), graph)
    rlx.verify(graph)

    compiled = rlx.Session("cpu").compile(traced)
    found = compiled(*args)
    chex.assert_trees_all_equal_shapes_and_dtypes(found, wanted)
    chex.assert_trees_all_close(found, wanted, rtol=1e-5, atol=1e-6)

    arrays = {name: np.asarray(value) for name, value in traced.params.items()}
    fed = {v.name: np.asarray(a) for v, a in zip(graph.inputs, jax.tree.leaves(args), strict=True)}
    meaning = rlx.interpret(graph, fed, params=arrays)
    for mine, theirs in zip(meaning, jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)

    rlx.save(graph, folder / "model.rlx", params=arrays)
    again = rlx.Session("cpu").compile(rlx.load(folder / "model.rlx"))
    again.set_params(rlx.load_params(folder / "model.rlx"))
    for mine, theirs in zip(again.run(fed), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return compiled


class Cnn(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.silu(nn.Conv(4, (3, 3), feature_group_count=4)(x))
        return nn.Dense(3)(nn.avg_pool(x, (2, 2)).reshape(x.shape[0], -1))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.LayerNorm()(x)
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y, mask=mask)
        return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential([nn.Dense(16), nn.tanh, nn.Dense(4), nn.softmax]), (3, 8)),
    "cnn": (Cnn(), (2, 13, 13, 3)),
    "lstm": (nn.RNN(nn.LSTMCell(features=5)), (2, 7, 3)),
    "attention": (Block(), (2, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    model, shape = MODELS[name]
    x = jnp.asarray(rng.standard_normal(shape), jnp.float32)
    variables = model.init(jax.random.key(0), x)
    compiled = run_through(lambda v, x: model.apply(v, x), variables, x, folder=tmp_path)
    zeros = jax.tree.map(jnp.zeros_like, variables)
    compiled.set_params(dict(zip(compiled.params(), jax.tree.leaves(zeros), strict=True)))
    wanted = jax.jit(lambda v, x: model.apply(v, x))(zeros, x)
    chex.assert_trees_all_close(compiled(x), wanted, rtol=1e-5, atol=1e-6)


def test_gradient(rng: np.random.Generator, tmp_path: Path) -> None:
    model, shape = MODELS["attention"]
    x = jnp.asarray(rng.standard_normal(shape), jnp.float32)
    variables = model.init(jax.random.key(0), x)
    gradient = jax.grad(lambda v, x: (model.apply(v, x) ** 2).mean())
    run_through(gradient, variables, x, folder=tmp_path)


def test_symbolic_dims(rng: np.random.Generator) -> None:
    w = rng.standard_normal((4, 2)).astype(np.float32)
    compiled = rlx.Session("cpu").compile(
        rlx_xla.trace(lambda w, x: jax.nn.softmax(x @ w, axis=-1), w, "f32[b, 4]", params=0)
    )
    for batch in (1, 3):
        x = rng.standard_normal((batch, 4)).astype(np.float32)
        chex.assert_trees_all_close(compiled(x), jax.nn.softmax(x @ w, axis=-1), rtol=1e-5)
    assert len(compiled.specializations()) == 2


def test_keys_and_loops() -> None:
    def fn(key: jax.Array, x: jax.Array) -> Any:
        y = jax.lax.fori_loop(0, 3, lambda _, y: y * 2 + jax.random.normal(key, (4,)), x)
        return jax.lax.cond(y.sum() > 0, jnp.sin, jnp.cos, y), jax.random.split(key)[0]

    key, x = jax.random.key(1), jnp.ones(4)
    found = rlx.Session("cpu").compile(rlx_xla.trace(fn, key, x))(key, x)
    wanted = jax.jit(fn)(key, x)
    assert found[1].dtype == wanted[1].dtype
    chex.assert_trees_all_close(found[0], wanted[0], rtol=1e-5)
    chex.assert_trees_all_equal(jax.random.key_data(found[1]), jax.random.key_data(wanted[1]))


def test_a_kernel(rng: np.random.Generator) -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)
    x = rng.standard_normal((64, 513)).astype(np.float32)
    forced = rlx.KernelDispatch(forced=frozenset({"argmax.cpu.ffi"}))
    options = rlx.CompileOptions(kernel_dispatch=forced)
    traced = rlx_xla.trace(lambda x: jnp.argmax(x, axis=1), x)
    compiled = rlx.Session("cpu").compile(traced, options=options)
    (choice,) = compiled.report().kernels
    assert choice.implementation == "argmax.cpu.ffi"
    np.testing.assert_array_equal(compiled(x), x.argmax(axis=1))


def test_opaque_nodes() -> None:
    fn = lambda x: jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct((4,), jnp.float32), x) + 1  # noqa: E731
    x = np.arange(4, dtype=np.float32)
    traced = rlx_xla.trace(fn, x)
    assert traced.coverage().external == 1
    np.testing.assert_array_equal(rlx.Session("cpu").compile(traced)(x), np.cumsum(x) + 1)


def test_errors_leave_the_graph_usable() -> None:
    x = np.ones(4, np.float32)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(jnp.sin, x))
    for wrong in (np.ones(5, np.float32), np.ones(4, np.float64), np.ones(4, np.int32)):
        with pytest.raises(RunError, match=r"f32\[4\]"):
            compiled(wrong)
    result = jax.ShapeDtypeStruct((4,), jnp.float32)
    traced = rlx_xla.trace(lambda x: jax.ffi.ffi_call("no_such_target", result)(x), x)
    with pytest.raises(CompileError, match=r"no_such_target.*test_smoke\.py"):
        rlx.Session("cpu").compile(traced)
    np.testing.assert_allclose(compiled(x), np.sin(x), rtol=1e-6)
