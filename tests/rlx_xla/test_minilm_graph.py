"""The main job: MiniLM in flax → trace → text, file, interpreter, passes, XLA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx_xla.models import minilm

IDS = np.array([[101, 7592, 2088, 102]], np.int32)
MASK = np.ones((1, 4), np.int32)
FIRST = [-0.034477, 0.031023, 0.006735, 0.026109, -0.039362, -0.160303]


@pytest.fixture(scope="module")
def params() -> Any:
    return minilm.load_params()


@pytest.fixture(scope="module")
def traced(params: Any) -> rlx_xla.Traced:
    return rlx_xla.trace(minilm.embed, params, IDS, MASK, params=0)


@pytest.fixture(scope="module")
def compiled(traced: rlx_xla.Traced) -> rlx.CompiledGraph:
    return rlx.Session("cpu").compile(traced)


def test_every_equation_is_modelled(traced: rlx_xla.Traced) -> None:
    coverage = traced.coverage()
    assert coverage.external == 0, str(coverage)
    assert coverage.modelled > 300
    kinds = {n.op.op_name for g in traced.graph.all_graphs() for n in g.nodes()}
    assert "external" not in kinds


def test_published_values(compiled: rlx.CompiledGraph) -> None:
    found = np.asarray(compiled(IDS, MASK))[0]
    np.testing.assert_allclose(found[:6], FIRST, atol=1e-5)
    assert float(found.sum()) == pytest.approx(0.815045, abs=1e-5)


def test_agrees_with_jit(compiled: rlx.CompiledGraph, params: Any) -> None:
    wanted = jax.jit(minilm.embed)(params, IDS, MASK)
    chex.assert_trees_all_close(compiled(IDS, MASK), wanted, atol=1e-6)


def test_text_round_trip(traced: rlx_xla.Traced) -> None:
    text = str(traced.graph)
    parsed = rlx.parse(text)
    assert rlx.same(parsed, traced.graph)
    assert str(parsed) == text


def test_saved_and_loaded_graph_is_bit_equal(
    traced: rlx_xla.Traced, compiled: rlx.CompiledGraph, tmp_path: Path
) -> None:
    path = tmp_path / "minilm.rlx"
    rlx.save(traced.graph, path, params=traced.params)
    graph = rlx.load(path)
    assert rlx.same(graph, traced.graph)
    again = rlx.Session("cpu").compile(graph)
    again.set_params(rlx.load_params(path))
    inputs = dict(zip((v.name for v in graph.inputs), (IDS, MASK), strict=True))
    (found,), (wanted,) = again.run(inputs), compiled.run(inputs)
    assert found.tobytes() == wanted.tobytes()


def test_interpreter_agrees(traced: rlx_xla.Traced, compiled: rlx.CompiledGraph) -> None:
    inputs = dict(zip((v.name for v in traced.graph.inputs), (IDS, MASK), strict=True))
    (found,) = rlx.interpret(traced.graph, inputs, params=traced.params)
    np.testing.assert_allclose(found, compiled.run(inputs)[0], atol=1e-4)


def test_params_are_bound_once(compiled: rlx.CompiledGraph, traced: rlx_xla.Traced) -> None:
    bound = compiled.params()
    assert set(bound) == {v.name for v in traced.graph.params}
    assert "params/layer_0/query/kernel" in bound
    before = {name: id(value) for name, value in bound.items()}
    compiled(IDS, MASK)
    assert {name: id(value) for name, value in compiled.params().items()} == before


def test_symbolic_batch_and_length(params: Any) -> None:
    traced = rlx_xla.trace(minilm.embed, params, "i32[b, s]", "i32[b, s]", params=0)
    assert traced.coverage().external == 0, str(traced.coverage())
    compiled = rlx.Session("cpu").compile(traced)
    fn = jax.jit(minilm.embed)
    for shape in ((1, 4), (2, 7), (1, 1)):
        ids = np.full(shape, 2088, np.int32)
        mask = np.ones(shape, np.int32)
        chex.assert_trees_all_close(compiled(ids, mask), fn(params, ids, mask), atol=2e-6)
    assert compiled.specializations().misses == 3


def test_passes_keep_the_meaning(traced: rlx_xla.Traced) -> None:
    options = rlx.CompileOptions(validate=True)
    lir = rlx.Session("cpu").lower(traced.graph, options=options)
    assert lir.graph.node_count(nested=True) > 0
