"""Splitting any graph by any choice of params keeps every bit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite import splice
from rlx.ir.verify import verify
from rlx.ops.io import Param
from rlx.passes import split_param_invariant
from tests.properties.graphs import Drawn, graphs
from tests.properties.test_passes import assert_same_bits


@given(drawn=graphs(), choice=st.integers(0, 255), growth=st.sampled_from([0.5, 16.0, 1e9]))
def test_the_two_graphs_are_the_one(drawn: Drawn, choice: int, growth: float) -> None:
    leaves = [*drawn.graph.inputs, *drawn.graph.params]
    chosen = {v for i, v in enumerate(leaves) if choice >> i % 8 & 1}
    made = [
        Param(name=v.name, dtype=v.type.dtype, shape=v.type.shape)() if v in chosen else v
        for v in leaves
    ]
    inputs = [v for v in made if v.node.op.op_name == "input"]
    params = [v for v in made if v.node.op.op_name == "param"]
    count = len(drawn.graph.outputs)
    results = splice(drawn.graph, made)
    graph = Graph(inputs, params, results[:count], results[count:])
    split = split_param_invariant(graph, max_growth=growth, small_bytes=8)
    if split is None:
        return
    verify(split.prepare)
    verify(split.main)
    joined = split.joined()
    verify(joined)
    assert sorted(v.name for v in joined.inputs) == sorted(v.name for v in graph.inputs)
    feeds = drawn.feeds
    first = interpret(split.prepare, {}, {v.name: feeds[v.name] for v in split.prepare.params})
    handed = {v.name: a for v, a in zip(split.prepared, first, strict=True)}
    own = {v.name: feeds[v.name] for v in split.main.params if v.name not in handed}
    fed = {v.name: feeds[v.name] for v in graph.inputs}
    found = interpret(split.main, fed, {**own, **handed})
    wanted = interpret(drawn.graph, drawn.feeds)
    assert_same_bits(found, wanted)
    bound = {v.name: feeds[v.name] for v in joined.params}
    assert_same_bits(interpret(joined, fed, bound), wanted)
