"""Kept inputs, stages, clones and options on XLA's CPU, for built graphs and traced functions."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import RunError

CAPACITIES = (1024, 4096)
STEPS = 100


def _decode(cache: jax.Array, row: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Write a row, read a few: the cost of the arithmetic does not depend on the capacity."""
    cache = jax.lax.dynamic_update_slice(cache, row, (0, place, 0))
    return jax.lax.dynamic_slice(cache, (0, place, 0), row.shape) * 2.0, cache


def _traced(capacity: int) -> Any:
    return rlx_xla.trace(_decode, f"f32[8, {capacity}, 64]", "f32[8, 1, 64]", "i32[]")


def test_j5_a_kept_cache_is_updated_in_place(rng: np.random.Generator) -> None:
    """Field case J5: 100 steps into f32[8, n, 64]; the time is printed, not asserted."""
    for capacity in CAPACITIES:
        compiled = rlx.Session("cpu").compile(_traced(capacity))
        compiled.keep("cache", from_output=1)
        size = 8 * capacity * 64 * 4
        assert compiled.memory()["alias"] == size
        assert compiled.memory()["temp"] < size // 8
        start = np.zeros((8, capacity, 64), np.float32)
        rows = jnp.asarray(rng.standard_normal((STEPS, 8, 1, 64)).astype(np.float32))
        _, cache = compiled(start, rows[0], 0)
        address = cache.unsafe_buffer_pointer()
        best = float("inf")
        for place in range(1, STEPS):
            row, index = rows[place], jnp.int32(place)
            began = time.perf_counter()
            out, cache = compiled(row, index)
            jax.block_until_ready(out)
            best = min(best, time.perf_counter() - began)
            assert cache.unsafe_buffer_pointer() == address
        print(f"cache of {capacity} rows: {best * 1e6:.0f} µs per step")
        wanted = np.zeros_like(start)
        wanted[:, :STEPS] = np.moveaxis(np.asarray(rows)[:, :, 0], 0, 1)
        np.testing.assert_array_equal(compiled.kept("cache"), wanted)


def test_j5_a_list_of_caches_and_a_stacked_one(rng: np.random.Generator) -> None:
    def step(caches: list[jax.Array], rows: jax.Array, place: jax.Array) -> Any:
        made = [_decode(c, r, place)[1] for c, r in zip(caches, rows, strict=True)]
        return sum(c.sum() for c in made), made

    traced = rlx_xla.trace(step, ["f32[8, 32, 4]"] * 3, "f32[3, 8, 1, 4]", "i32[]")
    names = [n for n in traced.signature.inputs if n.startswith("caches")]
    options = rlx.CompileOptions(resident={n: i + 1 for i, n in enumerate(names)})
    compiled = rlx.Session("cpu").compile(traced, options=options)
    caches = [rng.standard_normal((8, 32, 4)).astype(np.float32) for _ in range(3)]
    rows = rng.standard_normal((4, 3, 8, 1, 4)).astype(np.float32)
    compiled(caches, rows[0], 0)
    for place in (1, 2, 3):
        total, made = compiled(rows[place], place)
    for cache, name, index in zip(caches, names, range(3), strict=True):
        cache[:, :4] = np.moveaxis(rows[:, index, :, 0], 0, 1)
        np.testing.assert_array_equal(compiled.kept(name), cache)
        np.testing.assert_array_equal(made[index], cache)
    np.testing.assert_allclose(total, sum(c.sum() for c in caches), rtol=1e-3)


def test_j5_a_stacked_cache_in_a_scan_over_layers(rng: np.random.Generator) -> None:
    layers, capacity = 3, 64

    def step(cache: jax.Array, rows: jax.Array, place: jax.Array) -> Any:
        def layer(cache: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
            row = jax.lax.dynamic_slice(rows, (index, 0, 0, 0), (1, 8, 1, 16))
            cache = jax.lax.dynamic_update_slice(cache, row, (index, 0, place, 0))
            return cache, row.sum()

        cache, sums = jax.lax.scan(layer, cache, jnp.arange(layers))
        return sums.sum(), cache

    spec = f"f32[{layers}, 8, {capacity}, 16]"
    traced = rlx_xla.trace(step, spec, f"f32[{layers}, 8, 1, 16]", "i32[]")
    compiled = rlx.Session("cpu").compile(traced, options=rlx.CompileOptions(resident={"cache": 1}))
    wanted = np.zeros((layers, 8, capacity, 16), np.float32)
    compiled.set_kept("cache", wanted)
    assert compiled.memory()["alias"] == wanted.nbytes
    assert compiled.memory()["temp"] < wanted.nbytes // 2
    for place in range(5):
        rows = rng.standard_normal((layers, 8, 1, 16)).astype(np.float32)
        wanted[:, :, place] = rows[:, :, 0]
        total, _ = compiled(rows, place)
        np.testing.assert_allclose(total, rows.sum(), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(compiled.kept("cache"), wanted)


def test_part_of_an_argument_is_kept(rng: np.random.Generator) -> None:
    def step(state: dict[str, jax.Array], x: jax.Array) -> Any:
        return {"m": state["m"] + x, "scale": state["scale"]}, state["m"] * state["scale"]

    traced = rlx_xla.trace(step, {"m": "f32[3]", "scale": "f32[]"}, "f32[3]")
    compiled = rlx.Session("cpu").compile(traced)
    compiled.keep("state/m", from_output=0, value=[0.0] * 3)
    x = rng.standard_normal(3).astype(np.float32)
    for k in range(3):
        state, out = compiled({"m": 0, "scale": 2.0}, x)
        np.testing.assert_allclose(out, 2 * k * x, rtol=1e-5)
    np.testing.assert_allclose(state["m"], 3 * x, rtol=1e-5)


def test_an_optimiser_keeps_its_state(rng: np.random.Generator) -> None:
    def step(w: jax.Array, m: jax.Array, x: jax.Array) -> Any:
        loss, grad = jax.value_and_grad(lambda w: jnp.sum((w - x) ** 2))(w)
        m = 0.9 * m + grad
        return w - 0.05 * m, m, loss

    traced = rlx_xla.trace(step, "f32[5]", "f32[5]", "f32[5]")
    compiled = rlx.Session("cpu").compile(
        traced, options=rlx.CompileOptions(resident={"w": 0, "m": 1})
    )
    w = rng.standard_normal(5).astype(np.float32)
    m = np.zeros(5, np.float32)
    compiled.set_kept("w", w)
    compiled.set_kept("m", m)
    x = jnp.asarray(rng.standard_normal(5).astype(np.float32))
    wanted = (jnp.asarray(w), jnp.asarray(m), jnp.float32(0))
    for _ in range(10):
        wanted = jax.jit(step)(wanted[0], wanted[1], x)
        found = compiled(x)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-4)
    np.testing.assert_allclose(compiled.kept("w"), wanted[0], rtol=1e-4, atol=1e-6)


def test_concurrent_calls_are_refused_or_whole() -> None:
    b = rlx.GraphBuilder("count")
    x, s = b.input("x", "f32[256, 256]"), b.input("s", "f32[]")
    compiled = rlx.Session("cpu").compile(b.build((x @ x).sum() + s, s + 1.0))
    compiled.keep("s", from_output=1, value=0.0)
    value = jnp.ones((256, 256))
    done: list[int] = []
    refused: list[str] = []

    def call() -> None:
        for _ in range(30):
            try:
                compiled(value)
                done.append(1)
            except RunError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled.kept("s") == len(done)
    assert len(done) + len(refused) == 90
    assert all("'s' is in use by a concurrent call" in text for text in refused)


def test_a_clone_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx_xla._jax_compat import client

    b = rlx.GraphBuilder("g")
    compiled = rlx.Session("cpu").compile(b.build(b.input("x", "f32[n]") + b.param("w", "f32[]")))
    compiled.set_param("w", 1.0)
    compiled.warm([{"n": 2}, {"n": 3}])

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a clone compiles nothing")

    monkeypatch.setattr(client, "compile_module", never)
    twin = compiled.clone()
    twin.set_param("w", 5.0)
    assert twin(np.zeros(3, np.float32)).tolist() == [5.0] * 3
    assert compiled(np.zeros(3, np.float32)).tolist() == [1.0] * 3
    # Threads warm up, so either may be the first.
    assert sorted(r.binding["n"] for r in twin.specializations()) == [2, 3]


def test_traced_functions_are_staged(rng: np.random.Generator) -> None:
    def layer(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return x @ (w["k"].T * 2.0) + w["b"][None]

    params = {
        "k": rng.standard_normal((4, 4)).astype(np.float32),
        "b": rng.standard_normal(4).astype(np.float32),
    }
    traced = rlx_xla.trace(layer, params, "f32[n, 4]", params=0)
    options = rlx.CompileOptions(cache_param_invariant=True)
    compiled = rlx.Session("cpu").compile(traced, options=options)
    for n in (1, 3):
        x = rng.standard_normal((n, 4)).astype(np.float32)
        np.testing.assert_allclose(compiled(x), layer(params, x), rtol=1e-4, atol=1e-5)
    assert "prepare:" in compiled.report().staging[0]


def test_a_staged_graph_runs_under_jax(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("staged")
    graph = b.build(b.input("x", "f32[3]") * b.param("w", "f32[3]").exp())
    options = rlx.CompileOptions(cache_param_invariant=True)
    compiled = rlx.Session("cpu").compile(graph, options=options)
    w, x = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
    compiled.set_param("w", w)
    np.testing.assert_allclose(jax.jit(compiled)(x), x * np.exp(w), rtol=1e-5)


def test_strict_keeps_every_rounding(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("chain")
    x, y = b.input("x", "bf16[4096]"), b.input("y", "bf16[4096]")
    graph = b.build((x * y + x) * y - x)
    values = rng.standard_normal((2, 4096)).astype(ml_dtypes.bfloat16)
    (wanted,) = rlx.interpret(graph, dict(zip("xy", values, strict=True)))
    strict = rlx.Session("cpu").compile(graph, options=rlx.CompileOptions(strict=True))
    np.testing.assert_array_equal(np.asarray(strict(*values)), wanted)
    loose = rlx.Session("cpu").compile(graph)
    assert (np.asarray(loose(*values)) != wanted).any()


def test_precision_reaches_the_module() -> None:
    b = rlx.GraphBuilder("dot")
    graph = b.build(b.input("x", "f32[2, 3]") @ b.param("w", "f32[3, 4]"))
    options = rlx.CompileOptions(matmul_precision="highest")
    text = rlx.Session("cpu").compile(graph, options=options).stablehlo()
    assert "precision = [HIGHEST, HIGHEST]" in text
    assert "HIGHEST" not in rlx.Session("cpu").compile(graph).stablehlo()


def test_calling_costs_no_frame() -> None:
    """The slot ``__call__`` holds the specialised function, with and without kept inputs."""
    b = rlx.GraphBuilder("g")
    x, s = b.input("x", "f32[2]"), b.input("s", "f32[2]")
    compiled = rlx.Session("cpu").compile(b.build(x * s, s + x))
    assert compiled.__call__.__code__.co_filename == "<rlx fast call>"
    compiled.keep("s", from_output=1, value=[1.0, 1.0])
    assert compiled.__call__.__code__.co_filename == "<rlx fast call>"


def test_an_output_that_was_consumed_is_explained() -> None:
    b = rlx.GraphBuilder("g")
    x, s = b.input("x", "f32[2]"), b.input("s", "f32[2]")
    compiled = rlx.Session("cpu").compile(b.build(x * s, s + x))
    compiled.keep("s", from_output=1, value=[1.0, 1.0])
    handle = compiled.run_async({"x": np.ones(2, np.float32)})
    compiled(np.ones(2, np.float32))
    assert handle.done()  # nothing is to be waited for
    with pytest.raises(RunError, match=r"donated to a later call. Read it before that call"):
        handle.result()


def test_a_key_is_kept() -> None:
    """The state of a generator lives on the device; calls return keys as the function does."""

    def draw(key: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, now = jax.random.split(key)
        return key, jax.random.normal(now, (3,)) * scale

    key = jax.random.key(7)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(draw, key, "f32[]"))
    compiled.keep("key", from_output=0)
    with pytest.raises(RunError, match=r"'key': u32\[2\] has none.*use set_kept"):
        compiled(key, 2.0)
    compiled.set_kept("key", jax.random.key_data(key))
    for _ in range(3):
        key, wanted = jax.jit(draw)(key, 2.0)
        found_key, found = compiled(2.0)
        assert (jax.random.key_data(found_key) == jax.random.key_data(key)).all()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
