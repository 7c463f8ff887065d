"""Inlining: bodies that are tiny or called once, and no others."""

from __future__ import annotations

import time

import pytest

from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value
from rlx.ir.text_parse import parse
from rlx.ops.control_flow import Call, CallKind, Scan
from rlx.passes import InlineCalls, PassContext


def inlined(graph: Graph, **options: int) -> Graph:
    result = InlineCalls(**options).run(graph, PassContext())
    assert InlineCalls(**options).run(result, PassContext()) is result
    return result


def function(name: str, steps: int, callee: Call | None = None) -> Call:
    """A call of a body that negates ``steps`` times, then calls another."""
    b = GraphBuilder(name)
    value = b.input("x", "f32[]")
    for _ in range(steps):
        value = -value
    return Call(body=b.build(value if callee is None else callee(value)), name=name)


def repeated(call: Call, times: int) -> Graph:
    b = GraphBuilder("g")
    value = b.input("x", "f32[]")
    for _ in range(times):
        value = call(value)
        value = value if isinstance(value, Value) else value[0]
    return b.build(value)


def calls(graph: Graph) -> list[int]:
    """Calls in each distinct graph, inner graphs first."""
    return [sum(isinstance(n.op, Call) for n in g.nodes()) for g in graph.all_graphs()]


def test_a_nested_call_prints_once_and_is_inlined_when_called_once() -> None:
    before = parse("""
    graph @f "f" {
      input %x "x": f32[]
      %0 = exp(%x): f32[]
      %1 = neg(%0): f32[]
      %2 = neg(%1): f32[]
      %3 = neg(%2): f32[]
      %4 = neg(%3): f32[]
      return %4, %x
    }
    graph "g" {
      input %x "x": f32[]
      %0:2 = call(%x) {body = @f, name = "f"}: (f32[], f32[])
      %1 = add(%0#0, %0#1): f32[]
      return %1
    }
    """)
    expected = parse("""
    graph "g" {
      input %x "x": f32[]
      %0 = exp(%x): f32[]
      %1 = neg(%0): f32[]
      %2 = neg(%1): f32[]
      %3 = neg(%2): f32[]
      %4 = neg(%3): f32[]
      %5 = add(%4, %x): f32[]
      return %5
    }
    """)
    assert str(inlined(before)) == str(expected)


@pytest.mark.parametrize(("steps", "left"), [(32, 0), (33, 3)])
def test_a_body_that_is_called_often_is_inlined_when_small(steps: int, left: int) -> None:
    assert calls(inlined(repeated(function("f", steps), 3)))[-1] == left


@pytest.mark.parametrize(("growth", "left"), [(60, 0), (59, 3)])
def test_all_calls_of_a_body_together_may_not_grow_the_graph_much(growth: int, left: int) -> None:
    assert calls(inlined(repeated(function("f", 20), 3), max_growth=growth))[-1] == left


def test_sizes_count_what_was_inlined_inside() -> None:
    # f is called once, by g; g is called three times, and is large once it holds f.
    graph = repeated(function("g", 1, function("f", 40)), 3)
    assert calls(inlined(graph)) == [0, 3]


def test_equal_bodies_count_as_one_that_is_called_often() -> None:
    b = GraphBuilder("g")
    value = b.input("x", "f32[]")
    for _ in range(3):
        value = function("f", 40)(value)
        value = value if isinstance(value, Value) else value[0]
    assert calls(inlined(b.build(value)))[-1] == 3


def test_rematerialised_calls_stay() -> None:
    call = function("f", 1).replace(kind=CallKind.REMAT)
    assert isinstance(call, Call)
    graph = repeated(call, 1)
    assert inlined(graph) is graph


def test_nested_calls_are_inlined_to_the_bottom() -> None:
    call = function("f", 1)
    for level in range(150):
        call = function(f"g{level}", 1, call)
    result = inlined(repeated(call, 1))
    assert calls(result) == [0]
    assert result.node_count() == 152


def test_time_is_linear_in_depth() -> None:
    def seconds(depth: int) -> float:
        call = function("f", 1)
        for level in range(depth):
            call = function(f"g{level}", 1, call)
        graph = repeated(call, 1)
        graph.all_graphs()
        started = time.process_time()
        InlineCalls().run(graph, PassContext())
        return time.process_time() - started

    ratio = min(seconds(1600) for _ in range(3)) / min(seconds(200) for _ in range(3))
    assert ratio < 24  # 8 times as deep; copying each body at every level takes 64 times as long


def test_a_body_that_a_loop_holds_too_stays_one_graph() -> None:
    call = function("f", 40)
    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    turned = Scan(body=call.body, num_consts=0, num_carry=1, length=3)(x)
    assert isinstance(turned, Value)
    called = call(x)
    assert isinstance(called, Value)
    result = InlineCalls().run(b.build(turned, called), PassContext())
    bodies = [n.op.body for n in result.nodes() if isinstance(n.op, Scan | Call)]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]


def test_a_graph_without_calls_is_unchanged() -> None:
    b = GraphBuilder("g")
    graph = b.build(-b.input("x", "f32[]"))
    assert inlined(graph) is graph
