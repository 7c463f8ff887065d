"""Gradients of attention under a soft cap, however autodiff writes the slope, and of a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.ir.graph import Graph
from rlx.passes import Canonicalize, EliminateCommonSubexpressions, InlineCalls, Recognize
from rlx.passes.base import PassContext
from rlx.recognition_report import RecognitionReport
from rlx_xla.kernels import ffi

S, D = 192, 4
GRADIENTS = {f"attention_backward ({wrt})": 1 for wrt in ("key", "query", "value")}


def _capped(q: Any, k: Any, v: Any, seen: Any = None, *, fill: float = -1e30) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    scores = 5.0 * jnp.tanh(scores / 5.0)
    scores = scores if seen is None else jnp.where(seen, scores, fill)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def _grouped(q: Any, k: Any, v: Any) -> Any:
    q = q.reshape(1, S, 1, 2, D)
    scores = jnp.tanh(jnp.einsum("bqhgd,bkhd->bhgqk", q, k) / 7.0) * 7.0
    mixed = jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(1, S, 2, D)


def _causal(q: Any, k: Any, v: Any) -> Any:
    return _capped(q, k, v, jnp.tril(jnp.ones((S, S), bool)))


def _alibi(q: Any, k: Any, v: Any) -> Any:
    """A causal mask over a bias."""
    places = jnp.arange(S)
    apart = (places[None, :] - places[:, None])[None, None]
    bias = jnp.asarray([0.5, 0.25], q.dtype)[None, :, None, None] * apart.astype(q.dtype)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias
    scores = jnp.where(apart <= 0, scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def _without_rows(q: Any, k: Any, v: Any) -> Any:
    """Queries of which some see no key, and become NaN."""
    return _capped(q, k, v, jnp.arange(S)[:, None] % 5 > 0, fill=-jnp.inf)


def _forms(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The result with all gradients."""

    def both(q: Any, k: Any, v: Any, dy: Any) -> Any:
        y, back = jax.vjp(fn, q, k, v)
        return y, *back(dy)

    return both


def _draw(kv_heads: int = 2) -> list[Any]:
    rng = np.random.default_rng()
    shapes = [(1, S, n, D) for n in (2, kv_heads, kv_heads, 2)]
    return [(rng.standard_normal(s) * 3).astype(np.float32) for s in shapes]


def _graph(fn: Callable[..., Any], arguments: list[Any], *, x64: bool = False) -> Graph:
    with jax.enable_x64(x64):
        graph = rlx_xla.trace(fn, *map(jnp.asarray, arguments)).graph
    for step in (InlineCalls(), Canonicalize(), EliminateCommonSubexpressions()):
        graph = step.run(graph, PassContext())
    return graph


def _found(graph: Graph, **options: Any) -> tuple[Graph, RecognitionReport]:
    ctx = PassContext(platform="cpu", **options)
    made = Recognize().run(graph, ctx)
    assert isinstance(ctx.found, RecognitionReport)
    return made, ctx.found


def _run(graph: Graph, arguments: list[Any]) -> list[Any]:
    return rlx.interpret(graph, dict(zip([v.name for v in graph.inputs], arguments, strict=True)))


FUNCTIONS = {
    "soft cap": _capped,
    "causal": _causal,
    "alibi": _alibi,
    "groups": _grouped,
    "no keys": _without_rows,
    "checkpoint": jax.checkpoint(_causal),
}


DRAWS = 12
"""Of one function; their errors are added up."""


@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients(fn: Callable[..., Any]) -> None:
    arguments = _draw(1 if fn is _grouped else 2)
    graph = _graph(_forms(fn), arguments)
    made, report = _found(graph)
    assert {k: n for k, n in report.counts.items() if "backward" in k} == GRADIENTS
    assert report.of("attention") >= 1
    exact = _graph(_forms(fn), [a.astype(np.float64) for a in arguments], x64=True)
    # Of one draw, source may have an error that is small by chance.
    squares = np.zeros((4, 3))
    for _ in range(DRAWS):
        drawn = _draw(1 if fn is _grouped else 2)
        wide = [a.astype(np.float64) for a in drawn]
        results = zip(_run(graph, drawn), _run(made, drawn), _run(exact, wide), strict=True)
        for total, (source, found, truth) in zip(squares, results, strict=True):
            np.testing.assert_array_equal(np.isnan(found), np.isnan(source))
            known = ~np.isnan(source)
            for index, values in enumerate((source - truth, found - truth, truth)):
                total[index] += np.sum(values[known].astype(np.float64) ** 2)
    for by_source, by_found, size in np.sqrt(squares):
        assert by_found <= 1.2 * by_source + 2 * 2.0**-23 * size, squares


def _other_slope(q: Any, k: Any, v: Any, dy: Any) -> Any:
    """As autodiff has it, but for a slope of 1 − t in place of 1 − t²."""

    @jax.custom_jvp
    def curve(x: Any) -> Any:
        return jnp.tanh(x)

    curve.defjvp(lambda x, by: (curve(*x), by[0] * (1 - jnp.tanh(x[0]))))

    def fn(q: Any, k: Any, v: Any) -> Any:
        scores = 5.0 * curve(jnp.einsum("bqhd,bkhd->bhqk", q, k) * (D**-0.5 / 5.0))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    return _forms(fn)(q, k, v, dy)


def _uncapped_gradient(q: Any, k: Any, v: Any, dy: Any) -> Any:
    """A cap whose slope is taken to be 1."""

    @jax.custom_jvp
    def cap(x: Any) -> Any:
        return 5.0 * jnp.tanh(x / 5.0)

    cap.defjvp(lambda x, by: (cap(*x), by[0]))

    def fn(q: Any, k: Any, v: Any) -> Any:
        scores = cap(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    return _forms(fn)(q, k, v, dy)


@pytest.mark.parametrize("fn", [_other_slope, _uncapped_gradient])
def test_gradients_of_another_slope(fn: Callable[..., Any]) -> None:
    _, report = _found(_graph(fn, _draw()))
    assert not [name for name in report.counts if "attention" in name]


def test_strict_keeps_them() -> None:
    _, report = _found(_graph(_forms(_capped), _draw()), options=rlx.CompileOptions(strict=True))
    assert not [name for name in report.counts if "attention" in name]


def test_kernels_take_a_bias_that_is_causal() -> None:
    if isinstance(ffi.load(), ffi.Unavailable):
        pytest.skip("built without a C++ compiler")
    arguments = list(map(jnp.asarray, _draw()))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(_forms(_alibi), *arguments))
    used = {choice.implementation for choice in compiled.report().kernels}
    assert used == {"attention.cpu.ffi", "attention_backward_all.cpu.ffi"}
    wanted = jax.jit(_forms(_alibi))(*arguments)
    for got, want in zip(compiled(*arguments), wanted, strict=True):
        largest = float(jnp.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * largest)
