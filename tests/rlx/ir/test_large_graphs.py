"""Graphs of 100,000 nodes are ordinary: nothing recurses and nothing is quadratic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value, make_node, same
from rlx.ir.location import Location
from rlx.ir.op import Op
from rlx.ir.serialize import load, save
from rlx.ir.text import parse, print_graph
from rlx.ir.verify import verify
from rlx.ops.arithmetic import Add, Neg
from rlx.ops.control_flow import Call
from rlx.ops.io import Input

COUNT = 100_000
PLACE = Location("model.py", 7, "encoder")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Tell linear from quadratic, which takes many minutes here; speed is for benchmarks."""
    start = time.process_time()
    yield
    assert time.process_time() - start < seconds


def _apply(op: Op, *inputs: Value) -> Value:
    return make_node(op, inputs, PLACE).results[0]


def chain() -> Graph:
    x = value = Input(name="x", dtype=DType.F32, shape=(4,))()
    add = Add()
    for _ in range(COUNT):
        value = _apply(add, value, x)
    return Graph([x], (), [value], name="chain")


def branches() -> Graph:
    x = Input(name="x", dtype=DType.F32, shape=(4,))()
    neg = Neg()
    return Graph([x], (), [_apply(neg, x) for _ in range(COUNT)], name="branches")


@pytest.mark.parametrize("build", [chain, branches])
def test_100_000_nodes(build: object, tmp_path: Path) -> None:
    graph: Graph = build()  # type: ignore[operator]
    with within(60):
        verify(graph)
    with within(60):
        text = print_graph(graph)
    with within(60):
        read = parse(text)
    assert same(read, graph)
    with within(60):
        save(graph, tmp_path / "g.rlx")
        loaded = load(tmp_path / "g.rlx")
    assert same(loaded, graph)
    assert loaded.outputs[0].node.location == PLACE
    assert f"{COUNT + 1:,}" in graph.summary()


def test_graphs_within_graphs() -> None:
    depth = 2_000
    x = Input(name="x", dtype=DType.F32)()
    graph = Graph([x], (), [Neg()(x)], name="inner")
    for _ in range(depth):
        x = Input(name="x", dtype=DType.F32)()
        graph = Graph([x], (), make_node(Call(body=graph), [x], PLACE).results, name="outer")
    verify(graph)
    read = parse(str(graph))
    assert same(read, graph)
    assert len(read.all_graphs()) == depth + 1
