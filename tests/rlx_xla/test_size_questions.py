"""What a function asked of sizes: who refuses sizes, who traces anew, and what is the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import DimError, RunError, TraceError


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng().random(shape, np.float32)


def _asks(x: Any) -> Any:
    n = x.shape[0]
    return x * 2 if n == 5 else x * 3 if n % 3 else x


@pytest.mark.parametrize("n", [2, 4, 5, 6])
def test_graphs_that_are_not_compiled_refuse_the_same_sizes(n: int) -> None:
    traced = rlx_xla.trace(_asks, "f32[n]")
    graph, x = traced.graph, draw(n)
    runs = {
        "to_jax": lambda: rlx_xla.to_jax(graph)(x),
        "to_jax under jit": lambda: jax.jit(rlx_xla.to_jax(graph))(x),
        "interpret": lambda: rlx.interpret(graph, {"x": x})[0],
    }
    if n in (2, 4):
        for run in runs.values():
            np.testing.assert_allclose(run(), _asks(x), rtol=1e-6)
    else:
        runs["bisect"] = lambda: rlx.debug.bisect(graph, {"x": x})
        runs["session"] = lambda: rlx.Session("cpu").compile(graph).run({"x": x})[0]
        texts: set[str] = set()
        for run in runs.values():
            with pytest.raises(DimError) as caught:
                run()
            assert isinstance(caught.value, RunError)
            assert caught.value.label == "asked"
            texts.add(str(caught.value))
        asked = "n - 5" if n == 5 else "n%3"
        assert texts == {
            "DimError [asked]: sizes are required for which the graph is what the traced function "
            f"does; the function was told that {asked} is not 0; got n = {n}. Trace it for these "
            "sizes, or bind them (rlx.bind) to take the graph as it is."
        }
    # A trace is made anew instead.
    again = rlx_xla.to_jax(traced)
    np.testing.assert_allclose(again(x), _asks(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(again)(x), _asks(x), rtol=1e-6)
    slopes = jax.grad(lambda x: again(x).sum())(x)
    np.testing.assert_allclose(slopes, np.full(n, {2: 3, 4: 3, 5: 2, 6: 1}[n]), rtol=1e-6)


def test_to_jax_traces_anew_what_has_no_one_graph() -> None:
    def steps(w: Any, x: Any) -> Any:
        for i in range(x.shape[0]):
            w = w + i * x[i]
        return w

    w = draw(3)
    back = rlx_xla.to_jax(rlx_xla.trace(steps, jnp.asarray(w), "f32[n, 3]", params=0))
    for n in (0, 1, 4):
        x = draw(n, 3)
        np.testing.assert_allclose(jax.jit(back)(w, x), steps(w, x), rtol=1e-6)
    (symbol,) = jax.export.symbolic_shape("n")
    with pytest.raises(TraceError) as caught:
        jax.eval_shape(back, w, jax.ShapeDtypeStruct((symbol, 3), np.float32))
    assert str(caught.value) == (
        "to_jax: one graph for all sizes is required where JAX's sizes are symbols; 'steps' is "
        "traced anew for every size. Call it with numbers."
    )


def test_the_simulation_of_a_trace_that_asks_is_one_at_every_size() -> None:
    def asks(x: Any, w: Any) -> Any:
        return (x @ w) * 2 if x.shape[0] == 5 else x @ w

    simulated = rlx_xla.simulate(rlx_xla.trace(asks, "f32[n, 64]", "f32[64, 8]"), "tpu-default")
    compiled, w = rlx.Session("cpu").compile(simulated), draw(64, 8)
    for n in (3, 5):
        x = draw(n, 64)
        wanted = np.asarray(rlx_xla.simulate(asks, "tpu-default")(x, w))
        np.testing.assert_allclose(compiled(x, w), wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(rlx_xla.to_jax(simulated)(x, w), wanted, rtol=1e-5, atol=1e-5)
        assert np.abs(wanted - asks(x, w)).max() > 1e-3


def test_graphs_that_differ_in_questions_are_not_the_same() -> None:
    graph = rlx_xla.trace(_asks, "f32[n]").graph
    keyed = graph.with_questions(graph.asked, graph.asked[:1])
    turned = graph.with_questions(reversed(graph.asked), ())
    assert rlx.same(graph, turned)
    for other in (graph.with_questions((), ()), graph.with_questions(graph.asked[:1], ()), keyed):
        assert not rlx.same(graph, other)
    assert rlx.same(keyed, rlx.parse(str(keyed)))


def _asks_of_two(x: Any, w: Any = None) -> Any:
    n, m = x.shape
    y = x if w is None else x @ w
    return y * 2 if n == 5 else y * 3 if m == 7 else y * 4 if n * m == 12 else y


@pytest.mark.parametrize("n", [1, 3, 4, 5])
def test_a_function_is_traced_for_the_sizes_that_are_bound(n: int) -> None:
    traced = rlx_xla.trace(_asks_of_two, "f32[n, m]", constraints=["n <= 5", "n + m <= 12"])
    options = rlx.CompileOptions(dim_binding={"n": n})
    compiled = rlx.Session("cpu").compile(traced, options=options)
    for m in (1, 3, 4, 7):
        x = draw(n, m)
        np.testing.assert_allclose(compiled(x), _asks_of_two(x), rtol=1e-6)
        both = rlx.CompileOptions(dim_binding={"n": n, "m": m})
        lir = rlx.Session("cpu").lower(traced, options=both)
        np.testing.assert_allclose(
            rlx.interpret(lir.graph, {"x": x})[0], _asks_of_two(x), rtol=1e-6
        )
    with pytest.raises(DimError, match="keep what was promised"):
        compiled(draw(n, 13))
    with pytest.raises(DimError, match="n <= 5 with n = 6"):
        rlx.Session("cpu").compile(traced, options=rlx.CompileOptions(dim_binding={"n": 6}))


def test_a_function_without_one_graph_is_bound_too() -> None:
    def steps(x: Any) -> Any:
        for i in range(x.shape[0]):
            x = x + i
        return x

    options = rlx.CompileOptions(dim_binding={"n": 3})
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(steps, "f32[n, m]"), options=options)
    for m in (1, 2, 4):
        x = draw(3, m)
        np.testing.assert_allclose(compiled(x), steps(x), rtol=1e-6)


def test_packed_weights_are_packed_in_what_is_traced_anew() -> None:
    w = np.random.default_rng().standard_normal((64, 32), np.float32)
    traced = rlx_xla.trace(_asks_of_two, "f32[n, 64]", w, params=1)
    quantized = rlx_xla.quantize(traced, "q8_0")
    assert [str(dim) for dim in quantized.graph.asked] == [str(dim) for dim in traced.graph.asked]
    back = {
        "quantize": rlx.Session("cpu").compile(quantized),
        "option": rlx.Session("cpu").compile(traced, options=rlx.CompileOptions(weights="packed")),
    }
    alone = rlx.Session("cpu").compile(quantized.graph)
    alone.set_params(quantized.params)
    for n in (3, 5, 1):
        x = draw(n, 64)
        for compiled in back.values():
            np.testing.assert_allclose(compiled(x), _asks_of_two(x, w), rtol=0.05, atol=0.5)
            assert [v.name for v in compiled.graph.params] == ["w/codes"]
    with pytest.raises(DimError, match="told that n - 5 is not 0; got n = 5"):
        alone.run({"x": draw(5, 64)})


def test_shardings_keep_the_questions() -> None:
    graph = rlx_xla.trace(_asks, "f32[n]").graph
    spread = graph.with_shardings({"x": ("d",)}, mesh={"d": 1}, outputs=[("d",)])
    assert (spread.asked, spread.keyed) == (graph.asked, graph.keyed)
