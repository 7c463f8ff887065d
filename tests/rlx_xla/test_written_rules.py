"""Rules of traced functions written into the graph: derivatives outlive the process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import TraceError
from rlx.ops.custom import CustomFn


@jax.custom_vjp
def scaled(x: Any, n: Any) -> Any:
    return x * 2 + n


scaled.defvjp(lambda x, n: (x * 2 + n, (x, n)), lambda kept, d: (d * 5 * kept[0], None))


@jax.custom_jvp
def curved(x: Any) -> Any:
    return x**2


@curved.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return curved(*primals), tangents[0] * jnp.asarray(np.arange(3.0), jnp.float32)


def function(x: Any) -> Any:
    n = jnp.arange(3)
    looped = jax.lax.scan(lambda c, _: (curved(c) + 0.5, None), x, None, length=2)[0]
    return jax.nn.relu(x) + scaled(x, n) * 3 + looped


@pytest.fixture
def x() -> Any:
    return jnp.asarray([0.5, 0.0, -2.0], jnp.float32)


def grad(function: Any, x: Any) -> Any:
    return np.asarray(jax.grad(lambda x: function(x).sum())(x))


def test_rules_outlive_the_process(x: Any, tmp_path: Path) -> None:
    graph = rlx_xla.trace(function, x).graph
    written = rlx_xla.write_rules(graph)
    names = {n.op.name for g in written.all_graphs() for n in g.nodes() if type(n.op) is CustomFn}
    assert {"scaled", "curved", "relu"} <= names
    wanted = grad(function, x)
    np.testing.assert_allclose(grad(rlx_xla.to_jax(written), x), wanted, rtol=1e-6)
    rlx.save(graph, tmp_path / "lost.rlx")
    with pytest.raises(TraceError, match=r"write_rules\(graph\)"):
        grad(rlx_xla.to_jax(rlx.load(tmp_path / "lost.rlx")), x)
    rlx.save(written, tmp_path / "kept.rlx")
    loaded = rlx_xla.to_jax(rlx.load(tmp_path / "kept.rlx"))
    np.testing.assert_allclose(loaded(x), function(x), rtol=1e-6)
    np.testing.assert_allclose(grad(loaded, x), wanted, rtol=1e-6)
    ones = jnp.ones_like(x)
    moved = jax.jvp(
        rlx_xla.to_jax(rlx_xla.write_rules(rlx_xla.trace(curved, x).graph)), (x,), (ones,)
    )
    np.testing.assert_allclose(moved[1], np.arange(3.0))


def test_a_written_graph_computes_the_same(x: Any) -> None:
    written = rlx_xla.write_rules(rlx_xla.trace(function, x).graph)
    found = rlx.Session("cpu").compile(written).run({written.inputs[0].name: np.asarray(x)})[0]
    np.testing.assert_allclose(found, function(x), rtol=1e-6)


def test_nothing_to_write_is_the_same_graph(x: Any) -> None:
    graph = rlx_xla.trace(lambda x: x + 1, x).graph
    assert rlx_xla.write_rules(graph) is graph
    written = rlx_xla.write_rules(rlx_xla.trace(jax.nn.relu, x).graph)
    assert rlx_xla.write_rules(written) is written


def test_what_cannot_be_written_stays(x: Any) -> None:
    big = jnp.ones((3, 200))

    @jax.custom_vjp
    def captures(x: Any) -> Any:
        return (x[:, None] * big).sum(1)

    captures.defvjp(lambda x: (captures(x), None), lambda _, d: (d * 9,))
    graph = rlx_xla.trace(partial(captures), x).graph
    assert rlx_xla.write_rules(graph) is graph
    symbolic = rlx_xla.trace(jax.nn.relu, "f32[n]").graph
    assert rlx_xla.write_rules(symbolic) is symbolic
