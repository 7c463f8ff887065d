"""Loops of cells and trees of products keep what they mean, and are found where they are ours."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from rlx.ir.interpret import interpret
from rlx.ir.verify import verify
from rlx.options.compile import CompileOptions
from rlx.options.fusion import FusionOptions
from rlx.passes import (
    Canonicalize,
    EliminateCommonSubexpressions,
    EliminateDeadCode,
    Recognize,
    mir_pipeline,
)
from rlx.passes.base import PassContext
from rlx.passes.stream_loops import StreamLoops
from rlx.recognition_report import RecognitionReport
from tests.conformance.runner import mismatch
from tests.properties.loops import Loop, loops, trees
from tests.properties.test_passes import boundary

STEPS = (
    Canonicalize(),
    EliminateCommonSubexpressions(),
    StreamLoops(),
    EliminateDeadCode(),
    Recognize(),
)


def _assert_kept(drawn: Loop) -> RecognitionReport:
    """Each step keeps results and types; what the last one found."""
    graph = drawn.graph
    ctx = PassContext(options=CompileOptions(fusion_opts=FusionOptions(scan_trees=True)))
    wanted = interpret(graph, drawn.feeds)
    for step in STEPS:
        graph = step.run(graph, ctx)
        assert boundary(graph) == boundary(drawn.graph)
        verify(graph)
    for got, want in zip(interpret(graph, drawn.feeds), wanted, strict=True):
        assert not mismatch(got, want)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert isinstance(ctx.found, RecognitionReport)
    return ctx.found


@settings(max_examples=80)
@given(drawn=loops())
def test_loops_of_cells(drawn: Loop) -> None:
    report = _assert_kept(drawn)
    if drawn.found:
        assert report.counts == {drawn.found: 1}


@settings(max_examples=40)
@given(drawn=trees())
def test_trees_of_products(drawn: Loop) -> None:
    report = _assert_kept(drawn)
    if drawn.found:
        assert report.counts == {drawn.found: 1}


@settings(max_examples=15)
@given(drawn=loops())
def test_the_pipeline_keeps_loops(drawn: Loop) -> None:
    options = CompileOptions()
    result, _ = mir_pipeline(options).run(drawn.graph, PassContext(options))
    verify(result)
    assert boundary(result) == boundary(drawn.graph)
    pairs = zip(interpret(result, drawn.feeds), interpret(drawn.graph, drawn.feeds), strict=True)
    assert not any(mismatch(got, want) for got, want in pairs)
