"""bisect: a wrong pass is named and its graph shrunk to what matters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast, final

import numpy as np
import pytest

import rlx
from rlx.debug import bisect
from rlx.errors import PassError, RunError
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.interpret import interpret
from rlx.ir.rewrite import rewrite
from rlx.ops.arithmetic import Add, Mul, Sub
from rlx.ops.reduction import ReduceSum
from rlx.ops.shape import Transpose
from rlx.ops.transcendental import Tanh
from rlx.passes import AbstractPass, PassContext, Pipeline


@final
@dataclass(frozen=True, kw_only=True)
class SubtractWrongly(AbstractPass):
    """Turns (a·b) − c round, as long as a product stands there."""

    name: ClassVar[str] = "subtract-wrongly"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        def wrong(node: Node) -> Value | None:
            if not isinstance(node.op, Sub) or not isinstance(node.inputs[0].node.op, Mul):
                return None
            made: Value = Add()(Sub()(node.inputs[1], node.inputs[0]), node.inputs[1])
            return made

        return rewrite(graph, wrong)


def deep(steps: int) -> Graph:
    b = rlx.GraphBuilder("deep")
    x, w = b.input("x", "f32[n, 4]"), b.param("w", "f32[4, 4]")
    for step in range(steps):
        x = (x @ w).tanh() + x * 0.5
        if step == steps // 2:
            x = x * x.tanh() - w.sum(axis=0)
    return b.build(x, x.softmax(axis=-1))


def arrays(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    x, w = rng.standard_normal((3, 4)), rng.standard_normal((4, 4))
    return {"x": x.astype(np.float32)}, {"w": w.astype(np.float32)}


def test_a_wrong_pass_is_shrunk_to_a_few_nodes(rng: np.random.Generator, tmp_path: Path) -> None:
    graph = deep(20)
    feeds = arrays(rng)
    path = tmp_path / "small.rlx"
    passes = [rlx.passes.Canonicalize(), SubtractWrongly()]
    found = bisect(graph, *feeds, passes=passes, path=path)
    assert [n.op.op_name for n in found.nodes] == ["mul", "sub"]
    assert len(found.nodes) <= 5
    assert found.reason.startswith("pass 'subtract-wrongly': output 0 differs by ")
    again = rlx.parse(path.read_text())
    assert rlx.same(again, found.graph)
    assert str(path) in str(found)
    loaded = dict(np.load(path.with_suffix(".npz")))
    before = interpret(again, {v.name: loaded[v.name] for v in again.inputs})
    wrong = SubtractWrongly().run(again, PassContext())
    after = interpret(wrong, {v.name: loaded[v.name] for v in again.inputs})
    assert not np.allclose(before[0], after[0])
    assert found.tests < 60


@final
@dataclass(frozen=True, kw_only=True)
class Rewrites(AbstractPass):
    """Wrong on purpose: a rule for one kind of op."""

    name: ClassVar[str] = "rewrites"
    kind: str = ""

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return rewrite(graph, {"tanh": _half, "reduce": _mean, "turn": _unturned}[self.kind])


def _half(node: Node) -> Value | None:
    if not isinstance(node.op, Tanh) or isinstance(node.inputs[0].node.op, Mul):
        return None
    made: Value = Tanh()(node.inputs[0] * 0.5)
    return made


def _mean(node: Node) -> Value | None:
    total = isinstance(node.op, ReduceSum) and not isinstance(node.inputs[0].node.op, Mul)
    return (node.inputs[0] * 0.5).sum(node.op.axes) if total else None  # pyright: ignore[reportAttributeAccessIssue]


def _unturned(node: Node) -> Value | None:
    return node.inputs[0] if isinstance(node.op, Transpose) else None


def drawn(rng: np.random.Generator, kind: str) -> Graph:
    """A long graph in which the op of a wrong rule stands once, at a place that is drawn."""
    b = rlx.GraphBuilder("drawn")
    values: list[Value] = [b.input("x", "f32[4, 4]"), b.param("w", "f32[4, 4]")]
    place = int(rng.integers(5, 25))
    for step in range(30):
        one, other = (values[int(i)] for i in rng.integers(0, len(values), 2))
        if step == place:
            made = {
                "tanh": lambda x: x.tanh(),
                "reduce": lambda x: x.sum(0, keepdims=True).broadcast_to((4, 4)),
                "turn": lambda x: x.transpose(1, 0),
            }[kind](one + other)
        else:
            choices = [one + other, one - other, one @ other * 0.1, -one]
            made = choices[int(rng.integers(4))]
        values.append(made)
    return b.build(values[place + 2] + values[-1], values[-1] + values[-2])


@pytest.mark.parametrize("kind", ["tanh", "reduce", "turn"])
def test_a_drawn_wrong_pass_is_named_and_shrunk(rng: np.random.Generator, kind: str) -> None:
    graph = drawn(rng, kind)
    x, w = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    passes = [rlx.passes.Canonicalize(), Rewrites(kind=kind)]
    options = rlx.CompileOptions(validate=True)
    name = f"pass 'rewrites{{kind={kind}}}'"
    with pytest.raises(PassError, match=re.escape(f"{name} is required to keep")):
        Pipeline(tuple(passes)).run(graph, PassContext(options))
    found = bisect(graph, {"x": x}, {"w": w}, passes=passes)
    assert len(found.nodes) <= 5
    assert found.reason.startswith(name)


def test_a_failure_of_ones_own(rng: np.random.Generator) -> None:
    def fails(graph: Graph, feeds: Any) -> bool:
        return any(n.op.op_name == "softmax" for n in graph.nodes())

    found = bisect(deep(5), *arrays(rng), fails=fails)
    assert [n.op.op_name for n in found.nodes] == ["softmax"]
    assert [v.name for v in found.graph.inputs] == ["cut_0"]
    assert found.reason == "the graph fails"
    (result,) = interpret(found.graph, found.feeds)
    np.testing.assert_allclose(result.sum(axis=-1), 1.0, rtol=1e-5)


def test_a_session_is_compared_with_the_interpreter(rng: np.random.Generator) -> None:
    with pytest.raises(PassError) as caught:
        bisect(deep(2), *arrays(rng), session=rlx.Session("interpret"))
    assert str(caught.value) == (
        "bisect: a graph that fails is required; nothing is wrong with this one on these inputs. "
        "Pass the inputs, passes or session with which it fails."
    )
    with pytest.raises(PassError) as caught:
        bisect(deep(2), {}, fails=lambda graph, feeds: True, session=rlx.Session("interpret"))
    assert str(caught.value) == (
        "bisect: one of fails, passes and session is required; got fails and session. "
        "Leave the others out."
    )


def test_arrays_are_required_by_name(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[2]") * b.param("w", "f32[2]"))
    one = rng.normal(size=2).astype(np.float32)
    with pytest.raises(PassError) as caught:
        bisect(graph, {"X": one, "w": one})
    assert str(caught.value) == (
        "bisect: an array for each input and param is required ('x': f32[2], 'w': f32[2]); "
        "missing 'x'. Did you mean 'X'?"
    )
    with pytest.raises(RunError, match=r"^bisect: a mapping .* got ndarray"):
        bisect(graph, cast("Any", one))


def test_the_pipeline_is_tried_by_default(rng: np.random.Generator) -> None:
    with pytest.raises(PassError, match="nothing is wrong"):
        bisect(deep(3), *arrays(rng))


def test_an_error_of_a_pass_is_a_failure(rng: np.random.Generator) -> None:
    @final
    @dataclass(frozen=True, kw_only=True)
    class Refuse(AbstractPass):
        name: ClassVar[str] = "refuse"

        def run(self, graph: Graph, ctx: PassContext) -> Graph:
            if any(n.op.op_name == "tanh" for n in graph.nodes()):
                raise PassError("no tanh", pass_name="refuse")
            return graph

    found = bisect(deep(4), *arrays(rng), passes=[Refuse()])
    assert [n.op.op_name for n in found.nodes] == ["tanh"]
    assert found.reason == "pass 'refuse': no tanh"
