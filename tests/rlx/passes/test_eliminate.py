"""Common subexpressions: what is merged, and what stands for itself."""

from __future__ import annotations

from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph
from rlx.ir.text_parse import parse
from rlx.ops.control_flow import Call, CallKind
from rlx.ops.convert import OptimizationBarrier
from rlx.ops.effect import CreateToken
from rlx.ops.external import External
from rlx.passes import EliminateCommonSubexpressions, PassContext
from rlx.types import TOKEN


def eliminated(graph: Graph) -> Graph:
    result = EliminateCommonSubexpressions().run(graph, PassContext())
    assert EliminateCommonSubexpressions().run(result, PassContext()) is result
    return result


def test_equal_nodes_are_merged_and_so_are_their_users() -> None:
    before = parse("""
    graph "g" {
      input %x "x": f32[2]
      %0 = exp(%x): f32[2]
      %1 = exp(%x): f32[2]
      %2 = neg(%0): f32[2]
      %3 = neg(%1): f32[2]
      %4 = add(%2, %3): f32[2]
      return %4, %1
    }
    """)
    expected = parse("""
    graph "g" {
      input %x "x": f32[2]
      %0 = exp(%x): f32[2]
      %1 = neg(%0): f32[2]
      %2 = add(%1, %1): f32[2]
      return %2, %0
    }
    """)
    assert str(eliminated(before)) == str(expected)


def test_zeros_of_two_signs_and_swapped_operands_stay_apart() -> None:
    b = GraphBuilder("g")
    x, y = b.input("x", "f32[]"), b.input("y", "f32[]")
    graph = b.build(x + y, y + x, b.constant(0.0), b.constant(-0.0))
    assert eliminated(graph) is graph


def test_opaque_nodes_barriers_and_remat_calls_stay_apart() -> None:
    b = GraphBuilder("body")
    body = b.build(-b.input("x", "f32[]"))
    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    opaque = External(name="foreign", dtypes=(x.dtype,), shapes=((),))
    remat = Call(body=body, kind=CallKind.REMAT)
    barrier = OptimizationBarrier()
    graph = b.build([op(x) for op in (opaque, remat, barrier) for _ in range(2)])
    assert eliminated(graph) is graph


def test_effects_stay_apart_also_inside_calls() -> None:
    b = GraphBuilder("body")
    token = b.input("token", TOKEN)
    made = External(name="print", dtypes=(TOKEN.dtype,), shapes=((),), effect="debug")(token)
    body = b.build((), effects=[made])
    b = GraphBuilder("g")
    first, second = CreateToken()(), CreateToken()()
    call = Call(body=body)
    graph = b.build((), effects=[call(first), call(second)])
    assert eliminated(graph) is graph


def test_calls_of_equal_bodies_are_merged_and_the_bodies_shared() -> None:
    def call(name: str) -> Call:
        b = GraphBuilder("body")
        return Call(body=b.build(-b.input("x", "f32[]")), name=name)

    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    result = eliminated(b.build([call("f")(x), call("f")(x), call("h")(x)]))
    assert result.outputs[0] is result.outputs[1]
    assert len({id(g) for g in result.all_graphs()}) == 2
    assert [n.op.op_name for n in result.nodes()] == ["input", "call", "call"]


def test_nodes_inside_bodies_are_merged() -> None:
    b = GraphBuilder("body")
    x = b.input("x", "f32[]")
    body = b.build((-x) + (-x))
    b = GraphBuilder("g")
    result = eliminated(b.build([Call(body=body)(b.input("x", "f32[]"))]))
    assert [g.node_count() for g in result.all_graphs()] == [3, 2]


def test_constants_of_different_graphs_are_not_merged_across_them() -> None:
    b = GraphBuilder("body")
    body = b.build(b.input("x", "f32[]") + 2.0)
    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    graph = b.build([Call(body=body)(x + 2.0)])
    assert eliminated(graph) is graph
