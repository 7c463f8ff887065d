"""Recognition on graphs that are written out: before, expected, notes and linear time."""

from __future__ import annotations

import time

import numpy as np
import pytest

import rlx
from rlx.ir.graph import Graph, Value
from rlx.ir.text import parse
from rlx.options.fusion import FusionOptions
from rlx.passes import EliminateDeadCode, Recognize, mir_pipeline
from rlx.passes.base import PassContext


def _recognised(text: str, **options: object) -> tuple[Graph, list[str]]:
    ctx = PassContext(options=rlx.CompileOptions(**options))  # pyright: ignore[reportArgumentType]
    made = Recognize().run(parse(text), ctx)
    return made, ctx.notes


SOFTMAX = """
graph "softmax" {
  input %x "x": f32[4, 8]
  %0 = reduce_max(%x) {axes = (1,)}: f32[4]
  %1 = broadcast_in_dim(%0) {shape = (4, 8), broadcast_dimensions = (0,)}: f32[4, 8]
  %2 = sub(%x, %1): f32[4, 8]
  %3 = exp(%2): f32[4, 8]
  %4 = reduce_sum(%3) {axes = (1,)}: f32[4]
  %5 = broadcast_in_dim(%4) {shape = (4, 8), broadcast_dimensions = (0,)}: f32[4, 8]
  %6 = div(%3, %5): f32[4, 8]
  return %6
}
"""


def test_softmax() -> None:
    made, notes = _recognised(SOFTMAX)
    wanted = parse(
        'graph "softmax" {\n  input %x "x": f32[4, 8]\n'
        "  %0 = softmax(%x) {axis = 1}: f32[4, 8]\n  return %0\n}"
    )
    assert rlx.same(made, wanted)
    assert notes == ["softmax × 1"]


def test_what_is_no_pattern_comes_back_as_it_is() -> None:
    graph = parse(SOFTMAX.replace("reduce_max", "reduce_min"))
    ctx = PassContext()
    assert Recognize().run(graph, ctx) is graph
    assert ctx.notes == [
        "near miss: softmax: its exponentials are taken without subtracting a maximum, "
        "so they overflow"
    ]


def test_a_composite_stays() -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(b.input("x", "f32[4, 8]").softmax(axis=-1))
    assert Recognize().run(graph, PassContext()) is graph


def test_symbolic_sizes() -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[n, 8]")
    shifted = (x - x.max(1, keepdims=True)).exp()
    made = Recognize().run(b.build(shifted / shifted.sum(1, keepdims=True)), PassContext())
    assert "softmax(%x) {axis = 1}: f32[n, 8]" in str(made)


@pytest.mark.parametrize("skip", [False, True])
def test_skip_fusion_turns_it_off(skip: bool) -> None:
    options = rlx.CompileOptions(fusion_opts=FusionOptions(skip_fusion=skip))
    made, records = mir_pipeline(options).run(parse(SOFTMAX), PassContext(options=options))
    assert ("softmax(" in str(made)) is not skip
    assert any(r.name == "recognize" for r in records) is not skip


def test_the_report_counts_and_names_near_misses() -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[4, 8]")
    good = (x - x.max(1, keepdims=True)).exp()
    bad = x.exp()
    graph = b.build(good / good.sum(1, keepdims=True), bad / bad.sum(1, keepdims=True))
    compiled = rlx.Session("numpy").compile(graph)
    (record,) = [r for r in compiled.report().passes if r.name == "recognize"]
    assert record.notes[0] == "softmax × 1"
    assert "near miss: softmax at test_recognize.py:" in record.notes[1]


def test_validation_passes() -> None:
    options = rlx.CompileOptions(validate=True)
    made, _ = mir_pipeline(options).run(parse(SOFTMAX), PassContext(options=options))
    data = np.random.default_rng().standard_normal((4, 8)).astype(np.float32)
    before, after = rlx.interpret(parse(SOFTMAX), {"x": data}), rlx.interpret(made, {"x": data})
    np.testing.assert_allclose(after[0], before[0], rtol=1e-6)


def _chain(length: int) -> Graph:
    b = rlx.GraphBuilder("chain")
    x: Value = b.input("x", "f32[2, 4]")
    for _ in range(length):
        shifted = (x - x.max(1, keepdims=True)).exp()
        x = shifted / shifted.sum(1, keepdims=True) * x
    return b.build(x)


def test_time_is_linear() -> None:
    def seconds(graph: Graph) -> float:
        graph.nodes()
        started = time.process_time()
        ctx = PassContext()
        EliminateDeadCode().run(Recognize().run(graph, ctx), ctx)
        return time.process_time() - started

    small, large = _chain(200), _chain(1600)
    ratio = min(seconds(large) for _ in range(3)) / min(seconds(small) for _ in range(3))
    assert ratio < 24  # 8 times as many nodes; a quadratic pass takes 64 times as long
