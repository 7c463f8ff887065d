"""Every pass keeps what a graph computes, its boundary and the verifier's approval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rlx.dtypes import as_dtype
from rlx.errors import InconclusiveDimError
from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph, make_node, same
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify
from rlx.ops.io import Constant, Input
from rlx.options.compile import CompileOptions
from rlx.options.fusion import FusionOptions, FusionTarget
from rlx.options.precision import PrecisionPolicy
from rlx.passes import (
    AbstractPass,
    ApplyPrecision,
    Canonicalize,
    Decompose,
    EliminateCommonSubexpressions,
    EliminateDeadCode,
    FoldConstants,
    Fuse,
    HoistInvariants,
    InlineCalls,
    LintNumerics,
    PassContext,
    ProtectValues,
    RollBlocks,
    UnfuseElementwiseRegions,
    UnrollScans,
    mir_pipeline,
)
from rlx.types import as_type
from tests.conformance.runner import all_samples, all_symbolic_samples, mismatch
from tests.properties.graphs import Drawn, graphs

EXACT: tuple[AbstractPass, ...] = (
    Canonicalize(),
    EliminateCommonSubexpressions(),
    EliminateDeadCode(),
    FoldConstants(),
    LintNumerics(),
    InlineCalls(),
    InlineCalls(max_nodes=0),
    HoistInvariants(),
    ProtectValues(),
    RollBlocks(blocks=2),
    UnfuseElementwiseRegions(),
    UnrollScans(max_length=16),
)


def boundary(graph: Graph) -> list[tuple[str, str]]:
    return [
        (value.name, str(value.type)) for values in (graph.inputs, graph.params) for value in values
    ] + [("", str(value.type)) for value in (*graph.outputs, *graph.effects)]


def assert_same_bits(found: list[np.ndarray[Any, Any]], wanted: list[np.ndarray[Any, Any]]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        dtype = as_dtype(want.dtype)
        if dtype.is_complex:
            assert_same_bits([got.real, got.imag], [want.real, want.imag])
            continue
        np.testing.assert_array_equal(*(a.astype(dtype.compute.numpy) for a in (got, want)))
        if dtype.is_float:
            numbers = ~np.isnan(want.astype(np.float64))
            signs = [np.signbit(a.astype(np.float64))[numbers] for a in (got, want)]
            np.testing.assert_array_equal(*signs)


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


@pytest.mark.parametrize("target", [FusionTarget.CPU, FusionTarget.CUDA, FusionTarget.METAL])
@given(drawn=graphs())
def test_fusion_keeps_the_meaning(target: FusionTarget, drawn: Drawn) -> None:
    options = FusionOptions(unfuse_elementwise_regions=False, max_steps=4)
    result = Fuse(target=target, options=options, staged=True).run(drawn.graph, PassContext())
    assert boundary(result) == boundary(drawn.graph)
    verify(result)
    found, wanted = interpret(result, drawn.feeds), interpret(drawn.graph, drawn.feeds)
    for got, want in zip(found, wanted, strict=True):
        assert not mismatch(got, want)


@pytest.mark.parametrize(
    "policy", [PrecisionPolicy.ALWAYS_F16, PrecisionPolicy.AUTO_MIXED_BF16], ids=str
)
@given(drawn=graphs())
def test_precision_keeps_the_boundary(policy: PrecisionPolicy, drawn: Drawn) -> None:
    current = ApplyPrecision(policy=policy)
    result = current.run(drawn.graph, PassContext())
    assert boundary(result) == boundary(drawn.graph)
    verify(result)
    interpret(result, drawn.feeds)
    assert same(current.run(drawn.graph, PassContext()), result)


@given(drawn=graphs())
def test_the_pipeline_keeps_every_bit(drawn: Drawn) -> None:
    options = CompileOptions(validate=True)
    result, _ = mir_pipeline(options).run(drawn.graph, PassContext(options))
    verify(result)
    assert_same_bits(interpret(result, drawn.feeds), interpret(drawn.graph, drawn.feeds))


SIZE_DEPENDENT = {"qr", "block_fft", "sample"}
"""Ops whose decomposition depends on sizes, or on which of two is larger: they are bound first."""


@pytest.mark.parametrize("current", [*EXACT, Decompose()], ids=str)
def test_passes_take_every_op_with_symbolic_dims(current: AbstractPass) -> None:
    for sample in all_symbolic_samples():
        leaves = [
            Input(name=f"x{i}", dtype=type_.dtype, shape=type_.shape)()
            for i, type_ in enumerate(map(as_type, sample.types))
        ]
        graph = Graph(leaves, (), make_node(sample.op, leaves).results)
        if isinstance(current, Decompose) and sample.op.op_name in SIZE_DEPENDENT:
            with pytest.raises(InconclusiveDimError):
                current.run(graph, PassContext())
            continue
        result = current.run(graph, PassContext())
        assert boundary(result) == boundary(graph), sample.op
        assert current.run(result, PassContext()) is result, sample.op


def test_every_op_folds_to_its_meaning(rng: np.random.Generator) -> None:
    folded: set[str] = set()
    for name, samples in all_samples(rng).items():
        small = [s for s in samples if s.inputs and sum(a.nbytes for a in s.inputs) <= 4096]
        for sample in small[:12]:
            leaves = [Constant(value=Literal(array))() for array in sample.inputs]
            graph = Graph((), (), make_node(sample.op, leaves).results)
            result = FoldConstants().run(graph, PassContext())
            if result is graph:
                continue
            folded.add(name)
            assert_same_bits(interpret(result), interpret(graph))
            size = sum(n.types[0].nbytes for n in result.nodes())
            assert size <= 1024 * len(result.outputs), sample.op
    assert {"add", "convert", "dot_general", "reduce_sum", "sort"} <= folded
    assert not folded & {"external", "cond", "while", "scan", "call", "rng_bit_generator"}
