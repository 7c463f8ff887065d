"""Folding: what is computed ahead of time, and what is too large or may not be."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import dims
from rlx.dtypes import DType
from rlx.ir import location
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value
from rlx.ir.text_parse import parse
from rlx.ops.control_flow import Call, PlatformIndex, While
from rlx.ops.convert import Copy
from rlx.ops.external import External
from rlx.ops.random import RngBitGenerator
from rlx.ops.shape import BroadcastInDim, Concatenate, DimValue, Iota
from rlx.passes import FoldConstants, PassContext


def folded(graph: Graph, **options: int) -> Graph:
    result = FoldConstants(**options).run(graph, PassContext())
    assert FoldConstants(**options).run(result, PassContext()) is result
    return result


def literal_bytes(graph: Graph) -> int:
    return sum(node.types[0].nbytes for node in graph.nodes() if node.op.op_name == "constant")


def test_a_chain_of_constants_becomes_one() -> None:
    before = parse("""
    graph "g" {
      input %x "x": f32[2]
      %0 = constant [1.0, -0.0]: f32[2]
      %1 = constant 2.0: f32[]
      %2 = broadcast_in_dim(%1) {shape = (2,), broadcast_dimensions = ()}: f32[2]
      %3 = mul(%0, %2): f32[2]
      %4 = neg(%3): f32[2]
      %5 = add(%x, %4): f32[2]
      return %5
    }
    """)
    expected = parse("""
    graph "g" {
      input %x "x": f32[2]
      %0 = constant [-2.0, 0.0]: f32[2]
      %1 = add(%x, %0): f32[2]
      return %1
    }
    """)
    assert str(folded(before)) == str(expected)


def test_the_location_is_kept() -> None:
    b = GraphBuilder("g")
    with location.at(location.Location("model.py", 7)):
        value = b.constant(2.0) + b.constant(3.0)
    (output,) = folded(b.build(value)).outputs
    assert output.node.op.op_name == "constant"
    assert str(output.node.location) == "model.py:7"


def test_integers_fold_as_xla_wraps_them() -> None:
    b = GraphBuilder("g")
    most = b.constant(np.int32(2**31 - 1))
    (output,) = folded(b.build(most + b.constant(np.int32(1)))).outputs
    assert output.node.op.evaluate() == -(2**31)


def test_a_size_becomes_a_number_once_it_is_bound() -> None:
    b = GraphBuilder("g")
    bound = DimValue(dim=3)() + DimValue(dim=4)()
    free = DimValue(dim=dims.symbol("n"))()
    b.input("x", "f32[n]")
    result = folded(b.build(bound, free))
    assert result.outputs[0].node.op.evaluate() == 7
    assert result.outputs[1].node.op == DimValue(dim=dims.symbol("n"))


def _wide_update(b: GraphBuilder) -> Value:
    ones = BroadcastInDim(shape=(500, 500, 500), broadcast_dimensions=())(b.constant(1.0))
    return ones + ones


def _iota(b: GraphBuilder) -> Value:
    return Iota(dtype=DType.I32, shape=(4,))()


def _large_join(b: GraphBuilder) -> Value:
    half = b.constant(np.zeros(129, np.float32))
    return Concatenate(axis=0)(half, half)


def _growing(b: GraphBuilder) -> Value:
    return b.constant(1.0).broadcast_to((64,))


def _external(b: GraphBuilder) -> Value:
    made = External(name="foreign", dtypes=(DType.F32,), shapes=((),))(b.constant(1.0))
    return made if isinstance(made, Value) else made[0]


def _random(b: GraphBuilder) -> Value:
    return RngBitGenerator(shape=(2,))(b.constant(np.zeros(4, np.uint32)))[1]


def _platform(b: GraphBuilder) -> Value:
    return PlatformIndex(platforms=(("cuda",), ()))()


def _endless_loop(b: GraphBuilder) -> Value:
    inner = GraphBuilder("cond")
    inner.input("x", "f32[]")
    always = inner.build(inner.constant(True))
    inner = GraphBuilder("body")
    body = inner.build(inner.input("x", "f32[]"))
    made = While(cond=always, body=body)(b.constant(1.0))
    return made if isinstance(made, Value) else made[0]


@pytest.mark.parametrize(
    "build",
    [_wide_update, _iota, _large_join, _growing, _external, _random, _platform, _endless_loop],
)
def test_what_is_too_large_or_not_constant_stays(build) -> None:
    b = GraphBuilder("g")
    graph = b.build(build(b))
    assert folded(graph) is graph


def test_ones_at_index_stay_small() -> None:
    b = GraphBuilder("ones")
    result = folded(b.build(_wide_update(b)))
    assert literal_bytes(result) < 10_000


def test_the_budgets_are_options() -> None:
    b = GraphBuilder("g")
    graph = b.build(_large_join(b))
    assert folded(graph, max_bytes=2048).outputs[0].node.op.op_name == "constant"
    assert folded(graph, max_bytes=2048, max_input_bytes=1000) is graph


def test_bodies_are_folded_too() -> None:
    b = GraphBuilder("body")
    body = b.build(b.input("x", "f32[]") + (b.constant(1.0) + b.constant(2.0)))
    b = GraphBuilder("g")
    made = Call(body=body)(b.input("x", "f32[]"))
    result = folded(b.build([made] if isinstance(made, Value) else made))
    assert [g.node_count() for g in result.all_graphs()] == [3, 2]


def test_a_copy_of_a_constant_is_the_constant() -> None:
    b = GraphBuilder("g")
    assert folded(b.build(Copy()(b.constant([1.0, 2.0])))).node_count() == 1
