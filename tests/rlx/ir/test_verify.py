"""The verifier finds every kind of damage, names the node, and never crashes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import VerifyError
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value, make_node
from rlx.ir.location import Location, at
from rlx.ir.op import Op
from rlx.ir.text import parse
from rlx.ir.verify import verify
from rlx.ops.control_flow import Call
from rlx.ops.io import Input, Param
from rlx.types import TensorType

TEXT = """graph "m" {
  input %x "x": f32[4]
  param %w "w": f32[4]
  %0 = add(%x, %w): f32[4]
  %1:2 = external(%0) {name = "f", dtypes = (f32, token), shapes = ((4,), ())}: (f32[4], token)
  %2 = neg(%1#0): f32[4]
  return %2
  effects %1#1
}"""

PLAIN = """graph "m" {
  input %x "x": f32[4]
  param %w "w": f32[4]
  %0 = add(%x, %w): f32[4]
  %1 = reshape(%0) {shape = (2, 2)}: f32[2, 2]
  %2 = reduce_sum(%1) {axes = (0,)}: f32[2]
  return %2
}"""
"""Without tokens: one walk over it says that it is sound, and nothing else is asked."""

F32_5 = TensorType(DType.F32, (5,))


@contextmanager
def damaged(thing: object, field: str, value: object) -> Iterator[None]:
    """Put anything into a field of an immutable object, for a while."""
    old = getattr(thing, field)
    object.__setattr__(thing, field, value)
    try:
        yield
    finally:
        object.__setattr__(thing, field, old)


def findings(graph: Graph) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    return "\n".join(caught.value.findings)


def test_a_sound_graph() -> None:
    verify(parse(TEXT))


def test_cycle() -> None:
    graph = parse(TEXT)
    _, _, add, _, neg = graph.nodes()
    with damaged(add, "inputs", (add.results[0], neg.results[0])):
        assert "depends on itself" in findings(graph)


GARBAGE: list[Any] = [None, 7, "text", (), (None,), (7, 7), [1], object(), {}, Op(), float]


_MAY_HAVE_NO_INPUTS = ("input", "param", "external")


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("field", ["op", "inputs", "types", "location", "results"])
def test_garbage_in_a_node(field: str, garbage: Any) -> None:
    for graph in map(parse, (TEXT, PLAIN)):
        for node in graph.nodes():
            if field == "inputs" and garbage == () and node.op.op_name in _MAY_HAVE_NO_INPUTS:
                continue
            with damaged(node, field, garbage):
                assert findings(graph)


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("field", ["inputs", "params", "outputs", "effects", "name"])
def test_garbage_in_a_graph(field: str, garbage: Any) -> None:
    if (field == "outputs" and garbage == ()) or (field == "name" and garbage == "text"):
        return
    for graph in map(parse, (TEXT, PLAIN)):
        if field == "effects" and garbage == () and graph.name == "m" and not graph.effects:
            continue  # as they are
        with damaged(graph, field, garbage):
            assert findings(graph)


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_an_op(garbage: Any) -> None:
    graph = parse(TEXT)
    external = graph.nodes()[3].op
    for field in ("name", "dtypes", "shapes", "effect", "stablehlo", "live"):
        if (type(garbage) is str and field in ("name", "effect")) or garbage is None:
            continue
        if garbage == () and field == "stablehlo":
            continue
        with damaged(external, field, garbage):
            assert findings(graph)
    graph = parse(PLAIN)
    for op, field in ((graph.nodes()[3].op, "shape"), (graph.nodes()[4].op, "axes")):
        with damaged(op, field, garbage):
            assert findings(graph)


def test_damage_that_one_walk_sees() -> None:
    graph = parse(PLAIN)
    x, w, add, reshape, total = graph.nodes()
    with damaged(add, "inputs", (x.results[0], total.results[0])):
        assert "depends on itself" in findings(graph)
    with damaged(add, "types", (F32_5,)):
        assert "the inferred types (f32[4]) are required; got (f32[5])" in findings(graph)
    with damaged(reshape.results[0], "index", 1):
        assert "is required to be a result of reshape" in findings(graph)
    with damaged(w.op, "name", "x"):
        assert "names are unique" in findings(graph)
    with damaged(graph, "params", ()):
        assert "is used but not listed" in findings(graph)
    stranger = Input(name="y", dtype=DType.F32, shape=(4,))()
    with damaged(add, "inputs", (x.results[0], stranger)):
        assert "is used but not listed" in findings(graph)
    verify(graph)


def test_values_of_two_builders() -> None:
    one, other = GraphBuilder(), GraphBuilder()
    with pytest.raises(VerifyError) as caught:
        one.build(one.input("x", "f32[2]") + other.input("y", "f32[2]"))
    assert str(caught.value) == (
        "verify: 1 finding\n  input 'y' is used but not listed among the graph's inputs: x. Make "
        "all values of a graph with one builder, or list it."
    )


def test_types_are_inferred_again() -> None:
    graph = parse(TEXT)
    add = graph.nodes()[2]
    with damaged(add, "types", (F32_5,)):
        text = findings(graph)
    assert "add (f32[5]): the inferred types (f32[4]) are required; got (f32[5])." in text


def test_findings_name_the_location() -> None:
    with at(Location("model.py", 12, "encoder")):
        graph = parse(TEXT)
    add = graph.nodes()[2]
    with damaged(add, "location", Location("model.py", 12, "encoder")), damaged(add, "types", ()):
        assert "add () at encoder model.py:12" in findings(graph)


def test_inputs_that_are_no_results() -> None:
    graph = parse(TEXT)
    x, _, add, _, _ = graph.nodes()
    with damaged(add, "inputs", (Value(x, 0), Value(x, 7))):
        text = findings(graph)
    assert "input 0 is required to be a result of input 'x' (f32[4])" in text
    assert "got index 7" in text
    with damaged(add, "inputs", (3, None)):
        assert findings(graph).count("is required to be a Value") == 2


def test_leaves() -> None:
    graph = parse(TEXT)
    x, w = graph.inputs[0], graph.params[0]
    with damaged(graph, "inputs", ()):
        assert "input 'x' (f32[4]) is used but not listed" in findings(graph)
    with damaged(graph, "params", (x, w)):
        assert "which is no param" in findings(graph)
    with damaged(graph, "inputs", (x, x)):
        assert "listed twice" in findings(graph)
    with damaged(w.node.op, "name", "x"):
        assert "names are unique" in findings(graph)


def test_tokens() -> None:
    graph = parse(TEXT)
    external = graph.nodes()[3]
    value, token = external.results
    with damaged(graph, "effects", ()):
        assert "its token is dropped" in findings(graph)
    with damaged(graph, "effects", (token, token)):
        assert "to have one user; got 2" in findings(graph)
    with damaged(graph, "effects", (token, value)):
        assert "effects are tokens" in findings(graph)
    with damaged(graph, "outputs", (token,)):
        assert "outputs are no tokens" in findings(graph)


def test_inner_graphs() -> None:
    x = Input(name="x", dtype=DType.F32)()
    p = Param(name="p", dtype=DType.F32)()
    inner = Graph([x], (), [x], name="f")
    y = Input(name="y", dtype=DType.F32)()
    graph = Graph([y], (), make_node(Call(body=inner), [y]).results)
    verify(graph)
    with damaged(inner, "params", (p,)):
        text = findings(graph)
        assert "an inner graph has inputs only; got params param 'p'" in text
        assert "infer refuses it" in text
    with damaged(x.node, "types", (F32_5,)):
        assert "in graph 'f' of call" in findings(graph)


def test_symbols_have_one_declaration() -> None:
    x = Input(name="x", dtype=DType.F32, shape=(dims.symbol("b"),))()
    y = Input(name="y", dtype=DType.F32, shape=(dims.symbol("b", 2),))()
    assert "symbol 'b' is required to have one declaration" in findings(Graph([x, y], (), [x, y]))


def test_all_findings_at_once() -> None:
    graph = parse(TEXT)
    _, _, add, _, neg = graph.nodes()
    with damaged(add, "types", (F32_5,)), damaged(neg, "op", 3), damaged(graph, "inputs", ()):
        assert len(findings(graph).splitlines()) >= 3
