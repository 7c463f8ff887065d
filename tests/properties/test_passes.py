"""Every pass keeps what a graph computes, its boundary and the verifier's approval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rlx.ir.graph import Graph, same
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify
from rlx.options.compile import CompileOptions
from rlx.passes import (
    AbstractPass,
    Canonicalize,
    Decompose,
    EliminateCommonSubexpressions,
    FoldConstants,
    InlineCalls,
    PassContext,
    mir_pipeline,
)
from tests.conformance.runner import mismatch
from tests.properties.graphs import Drawn, graphs

EXACT: tuple[AbstractPass, ...] = (
    Canonicalize(),
    EliminateCommonSubexpressions(),
    FoldConstants(),
    InlineCalls(),
    InlineCalls(max_nodes=0),
)


def boundary(graph: Graph) -> list[tuple[str, str]]:
    return [
        (value.name, str(value.type)) for values in (graph.inputs, graph.params) for value in values
    ] + [("", str(value.type)) for value in (*graph.outputs, *graph.effects)]


def assert_same_bits(found: list[np.ndarray[Any, Any]], wanted: list[np.ndarray[Any, Any]]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "fcV" or want.dtype.name.startswith(("bfloat", "float")):
            wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
            np.testing.assert_array_equal(wide_got, wide_want)
            numbers = ~np.isnan(wide_want)
            np.testing.assert_array_equal(
                np.signbit(wide_got)[numbers], np.signbit(wide_want)[numbers]
            )
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("current", EXACT, ids=str)
@given(drawn=graphs())
def test_an_exact_pass_keeps_every_bit(current: AbstractPass, drawn: Drawn) -> None:
    graph = drawn.graph
    result = current.run(graph, PassContext())
    assert boundary(result) == boundary(graph)
    verify(result)
    assert_same_bits(interpret(result, drawn.feeds), interpret(graph, drawn.feeds))
    assert current.run(result, PassContext()) is result
    assert same(current.run(graph, PassContext()), result)


@given(drawn=graphs())
def test_decompose_keeps_the_meaning(drawn: Drawn) -> None:
    result = Decompose().run(drawn.graph, PassContext())
    assert boundary(result) == boundary(drawn.graph)
    verify(result)
    found, wanted = interpret(result, drawn.feeds), interpret(drawn.graph, drawn.feeds)
    for got, want in zip(found, wanted, strict=True):
        assert not mismatch(got, want)
    assert Decompose().run(result, PassContext()) is result


@given(drawn=graphs())
def test_the_pipeline_keeps_every_bit(drawn: Drawn) -> None:
    options = CompileOptions(validate=True)
    result, _ = mir_pipeline(options).run(drawn.graph, PassContext(options))
    verify(result)
    assert_same_bits(interpret(result, drawn.feeds), interpret(drawn.graph, drawn.feeds))
