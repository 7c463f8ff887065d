"""Rewriting itself: sweeps, locations, errors, and graphs of 100,000 nodes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rlx.errors import PassError, ShapeError
from rlx.ir import location
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Node, Value, same
from rlx.ir.location import Location
from rlx.ir.rewrite import rewrite, rule, splice, substitute, sweep
from rlx.ops.arithmetic import Abs, Add, Mul, Neg, Sub
from rlx.ops.control_flow import Call
from rlx.passes import (
    AbstractPass,
    Canonicalize,
    Decompose,
    EliminateCommonSubexpressions,
    FoldConstants,
    InlineCalls,
    PassContext,
)


@rule(Abs)
def abs_to_neg(node: Node) -> Value:
    return Neg()(node.inputs[0])


@rule(Neg)
def neg_of_neg(node: Node) -> Value | None:
    inner = node.inputs[0].node
    return inner.inputs[0] if isinstance(inner.op, Neg) else None


@rule(Sub)
def sub_to_add(node: Node) -> Value:
    lhs, rhs = node.inputs
    return lhs + abs(rhs)


def unary_chain(*ops: type) -> Graph:
    b = GraphBuilder("g")
    value = b.input("x", "f32[]")
    for op in ops:
        value = op()(value)
    return b.build(value)


def names(graph: Graph) -> list[str]:
    return [node.op.op_name for node in graph.nodes()]


def test_unmatched_gives_the_same_object() -> None:
    graph = unary_chain(Neg, Abs)
    assert rewrite(graph, lambda node: None) is graph
    assert rewrite(graph) is graph


def test_a_rule_that_returns_what_is_there_changes_nothing() -> None:
    graph = unary_chain(Neg, Abs)
    assert rewrite(graph, lambda node: node.results) is graph


def test_what_a_rule_makes_is_offered_to_all_rules_before_its_users() -> None:
    assert names(rewrite(unary_chain(Abs, Abs), abs_to_neg, neg_of_neg)) == ["input"]


def test_nodes_below_the_last_one_are_offered_too() -> None:
    b = GraphBuilder("g")
    x, y = b.input("x", "f32[]"), b.input("y", "f32[]")
    assert names(rewrite(b.build(x - y), sub_to_add, abs_to_neg)) == [
        "input",
        "input",
        "neg",
        "add",
    ]


def test_a_rule_may_wrap_its_own_node() -> None:
    once: set[Node] = set()

    @rule(Neg)
    def wrap(node: Node) -> Value | None:
        if once:
            return None
        once.add(node)
        return Abs()(node.results[0])

    assert names(rewrite(unary_chain(Neg), wrap)) == ["input", "neg", "abs"]


def test_bodies_that_a_rule_makes_are_rewritten() -> None:
    body = unary_chain(Abs)

    @rule(Mul)
    def call(node: Node) -> Value:
        made = Call(body=body)(node.inputs[0])
        return made if isinstance(made, Value) else made[0]

    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    result = rewrite(b.build(x * x), call, abs_to_neg)
    assert [names(g) for g in result.all_graphs()] == [["input", "neg"], ["input", "call"]]


def test_bodies_are_left_alone_on_request() -> None:
    b = GraphBuilder("g")
    made = Call(body=unary_chain(Abs))(b.input("x", "f32[]"))
    graph = b.build([made] if isinstance(made, Value) else made)
    assert rewrite(graph, abs_to_neg, nested=False) is graph


def test_shared_bodies_stay_shared() -> None:
    call = Call(body=unary_chain(Abs))
    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    graph = b.build([call(x), call(x)])
    assert len(rewrite(graph, abs_to_neg).all_graphs()) == 2


def test_new_nodes_take_the_location() -> None:
    with location.at(Location("model.py", 3)):
        graph = unary_chain(Abs)
    assert rewrite(graph, abs_to_neg).outputs[0].node.location == Location("model.py", 3)


def test_a_rule_that_changes_the_type_is_named() -> None:
    def widen(node: Node) -> Value | None:
        return node.inputs[0].broadcast_to((2,)) if isinstance(node.op, Abs) else None

    with pytest.raises(PassError, match=r"rule 'widen' is required to keep the types \(f32\[\]\)"):
        rewrite(unary_chain(Abs), widen)


def test_rules_that_undo_each_other_are_an_error() -> None:
    @rule(Neg)
    def neg_to_abs(node: Node) -> Value:
        return Abs()(node.inputs[0])

    with pytest.raises(PassError, match="Two rules undo each other"):
        rewrite(unary_chain(Abs), abs_to_neg, neg_to_abs)


def test_an_error_inside_a_rule_tells_the_rule_and_the_node() -> None:
    @rule(Abs)
    def broken(node: Node) -> Value:
        return node.inputs[0].reshape(2, 2)

    with location.at(Location("model.py", 3)):
        graph = unary_chain(Abs)
    with pytest.raises(ShapeError) as caught:
        rewrite(graph, broken)
    assert "  in rule 'broken' on <abs: f32[] at model.py:3>" in caught.value.__notes__


def test_substitute_replaces_values_that_depend_on_each_other() -> None:
    b = GraphBuilder("g")
    x, y = b.input("x", "f32[]"), b.input("y", "f32[]")
    first = -x
    second = -first
    graph = b.build(second + first)
    replaced = substitute(graph, {first: y, second: abs(first)})
    assert names(replaced) == ["input", "input", "neg", "abs", "add"]
    assert replaced.outputs[0].node.inputs[1] is y
    assert substitute(graph, {}) is graph


def test_substitute_keeps_types() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "f32[]")
    with pytest.raises(PassError, match="required to have the type"):
        substitute(b.build(-x), {x: x.convert("f16")})


def test_splice_copies_a_graph_onto_other_values() -> None:
    b = GraphBuilder("inner")
    x, w = b.input("x", "f32[]"), b.param("w", "f32[]")
    inner = b.build(x * w, x, b.constant(1.0))
    b = GraphBuilder("g")
    y = b.input("y", "f32[]")
    product, same_value, one = splice(inner, [y, -y])
    assert product.node.op == Mul()
    assert same_value is y
    assert one is inner.outputs[2]


def test_sweep_offers_each_node_once() -> None:
    seen: list[str] = []

    def visit(node: Node) -> Value | None:
        seen.append(node.op.op_name)
        return Neg()(node.inputs[0]) if isinstance(node.op, Abs) else None

    result = sweep(unary_chain(Abs, Abs), lambda: visit)
    assert seen == ["input", "abs", "abs"]
    assert names(result) == ["input", "neg", "neg"]


SIZE = 100_000


def _chain(b: GraphBuilder) -> Graph:
    x = b.input("x", "f32[4]")
    value = x
    for _ in range(SIZE):
        value = Add()(value, x)
    return b.build(value)


def _branches(b: GraphBuilder) -> Graph:
    x = b.input("x", "f32[4]")
    return b.build([Neg()(x) for _ in range(SIZE)])


def _double_negations(b: GraphBuilder) -> Graph:
    x = b.input("x", "f32[4]")
    value = x
    for _ in range(SIZE // 3):
        value = Add()(Neg()(Neg()(value)), x)
    return b.build(value)


PASSES: tuple[AbstractPass, ...] = (
    InlineCalls(),
    Canonicalize(),
    EliminateCommonSubexpressions(),
    FoldConstants(),
    Decompose(),
)


@pytest.mark.slow
@pytest.mark.parametrize("build", [_chain, _branches, _double_negations])
def test_a_hundred_thousand_nodes_are_ordinary(build: Callable[[GraphBuilder], Graph]) -> None:
    graph = build(GraphBuilder("g"))
    for current in PASSES:
        started = time.perf_counter()
        result = current.run(graph, PassContext())
        seconds = time.perf_counter() - started
        print(f"{build.__name__} {current}: {graph.node_count()} nodes in {seconds:.2f} s")
        assert current.run(result, PassContext()) is result
    assert same(graph, graph)
