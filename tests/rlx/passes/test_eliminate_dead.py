"""Dead results, carries and operands go; what is left means the same."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.passes.base import PassContext
from rlx.passes.eliminate_dead import DropUnusedParams, EliminateDeadCode


def _run(graph: rlx.Graph) -> rlx.Graph:
    made = EliminateDeadCode().run(graph, PassContext())
    rlx.verify(made)
    return made


def _same_meaning(before: rlx.Graph, after: rlx.Graph, rng: np.random.Generator) -> None:
    feeds = {
        v.name: rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy)  # type: ignore[arg-type]
        for v in before.inputs
    }
    assert [v.name for v in after.inputs] == [v.name for v in before.inputs]
    for got, want in zip(rlx.interpret(after, feeds), rlx.interpret(before, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def _node(graph: rlx.Graph, op: type) -> rlx.Node:
    (found,) = (n for n in graph.nodes() if isinstance(n.op, op))
    return found


def _scan() -> rlx.Graph:
    """Carries p (used), q (behind p), r (dead); ys: u (used), v (dead)."""
    b = rlx.GraphBuilder("body")
    k, p, q, r, a = (b.input(n, "f32[]") for n in "kpqra")
    body = b.build(p + q, q * 0.5, r + k, p * a, r)
    b = rlx.GraphBuilder("scan")
    k, p, q, r = (b.input(n, "f32[]") for n in "kpqr")
    xs = b.input("xs", "f32[4]")
    made = Scan(body=body, length=4, num_consts=1, num_carry=3)(k, p, q, r, xs)
    return b.build(made[0], made[3])


def test_dead_carries_of_a_scan(rng: np.random.Generator) -> None:
    before = _scan()
    after = _run(before)
    node = _node(after, Scan)
    assert isinstance(node.op, Scan)
    assert (node.op.num_consts, node.op.num_carry) == (0, 2)
    assert [len(node.inputs), len(node.types)] == [3, 3]
    assert [v.name for v in node.op.body.inputs] == ["p", "q", "a"]
    _same_meaning(before, after, rng)
    assert _run(after) is after


def test_dead_carries_of_a_while(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("cond")
    i, a, d = b.input("i", "i32[]"), b.input("a", "f32[]"), b.input("d", "f32[]")
    cond = b.build(i < 3)
    b = rlx.GraphBuilder("body")
    k, m = b.input("k", "f32[]"), b.input("m", "f32[]")
    i, a, d = b.input("i", "i32[]"), b.input("a", "f32[]"), b.input("d", "f32[]")
    body = b.build(i + 1, a + k, d * m)
    b = rlx.GraphBuilder("while")
    k, m, a, d = (b.input(n, "f32[]") for n in "kmad")
    made = While(cond=cond, body=body, body_consts=2)(k, m, rlx.constant(0), a, d)
    before = b.build(made[1])
    after = _run(before)
    node = _node(after, While)
    assert isinstance(node.op, While)
    assert node.op.body_consts == 1
    assert [str(t) for t in node.types] == ["i32[]", "f32[]"]  # the condition reads i
    _same_meaning(before, after, rng)


def test_unused_results_and_operands_of_a_choice(rng: np.random.Generator) -> None:
    branches: list[rlx.Graph] = []
    for factor in (2.0, 3.0):
        b = rlx.GraphBuilder("branch")
        u, v = b.input("u", "f32[2]"), b.input("v", "f32[2]")
        branches.append(b.build(u * factor, v * factor))
    b = rlx.GraphBuilder("choice")
    x, u, v = b.input("x", "f32[]"), b.input("u", "f32[2]"), b.input("v", "f32[2]")
    before = b.build(Cond(branches=tuple(branches))(x > 0.0, u, v)[1])
    after = _run(before)
    node = _node(after, Cond)
    assert [len(node.inputs), len(node.types)] == [2, 1]
    _same_meaning(before, after, rng)


def test_unused_operands_of_a_call(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("body")
    u, v = b.input("u", "f32[2]"), b.input("v", "f32[2]")
    body = b.build(u.exp(), v.exp())
    b = rlx.GraphBuilder("call")
    x, y = b.input("x", "f32[2]"), b.input("y", "f32[2]")
    first, second = Call(body=body, name="f")(x, y), Call(body=body, name="f")(y, x)
    before = b.build(first[0], second[0], second[1])
    after = _run(before)
    sizes = sorted(len(n.inputs) for n in after.nodes() if isinstance(n.op, Call))
    assert sizes == [1, 2]
    _same_meaning(before, after, rng)


def test_what_is_inside_is_pruned_too(rng: np.random.Generator) -> None:
    """A dead carry of an inner loop, seen only once the outer result is known to be dead."""
    inner = _scan()
    b = rlx.GraphBuilder("outer")
    leaves = [b.input(v.name, v.type) for v in inner.inputs]
    before = b.build(Call(body=inner, name="f")(*leaves)[0])
    after = _run(before)
    call = _node(after, Call)
    assert isinstance(call.op, Call)
    scan = _node(call.op.body, Scan)
    assert [len(scan.inputs), len(scan.types)] == [2, 2]
    _same_meaning(before, after, rng)


def test_a_graph_without_dead_code_is_itself() -> None:
    b = rlx.GraphBuilder("plain")
    graph = b.build(b.input("x", "f32[2]") + b.param("w", "f32[2]"))
    assert _run(graph) is graph
    assert DropUnusedParams().run(graph, PassContext()) is graph


@pytest.mark.parametrize("dce", [True, False])
def test_the_option_decides(dce: bool) -> None:
    options = rlx.CompileOptions(dce=dce, validate=True)
    lir = rlx.Session("interpret").lower(_scan(), options=options)
    assert len(_node(lir.graph, Scan).types) == (3 if dce else 5)
