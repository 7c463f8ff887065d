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
from rlx.ir.rewrite import splice
from rlx.ir.verify import verify
from rlx.ops.io import Constant, Input, Param
from rlx.options.compile import CompileOptions
from rlx.options.fusion import FusionOptions, FusionTarget
from rlx.options.precision import PrecisionPolicy
from rlx.passes import (
    AbstractPass,
    ApplyPrecision,
    BindRng,
    Canonicalize,
    Decompose,
    EliminateCommonSubexpressions,
    EliminateDeadCode,
    Fixpoint,
    FoldConstants,
    Fuse,
    HoistInvariants,
    InlineCalls,
    LintNumerics,
    PassContext,
    ProtectValues,
    RaiseMatmulPrecision,
    Recognize,
    RollBlocks,
    Specialize,
    UnfuseElementwiseRegions,
    UnrollScans,
    mir_pipeline,
)
from rlx.passes.bind_params import BindParams, KnownValues, LiftBoundParams
from rlx.passes.eliminate_dead import DropUnusedParams
from rlx.passes.pipelines import binding_pipeline, closing_pipeline, symbolic_pipeline
from rlx.passes.quantize import InsertScaledMatmul, PropagateQuantization
from rlx.passes.stream_loops import StreamLoops
from rlx.quant import ScaledQuantConfig
from rlx.types import as_type
from tests.conformance.runner import all_samples, all_symbolic_samples, mismatch
from tests.policy.passes import registered_passes
from tests.properties.graphs import Drawn, graphs

EXACT: tuple[AbstractPass, ...] = (
    BindRng(hidden=False),
    DropUnusedParams(),
    LiftBoundParams(),
    PropagateQuantization(),
    RaiseMatmulPrecision(),
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
    StreamLoops(),
    UnrollScans(max_length=16),
)


CLOSE: tuple[tuple[AbstractPass, str], ...] = (
    (Recognize(), "cpu"),
    (Recognize(), "cuda"),
    (Specialize(), "cpu"),
    (Specialize(), "cuda"),
    (Fixpoint(passes=(Canonicalize(), Recognize(), EliminateCommonSubexpressions())), "cpu"),
)
"""Passes that may sum in another order or keep more digits, and the platform they run for."""

TESTED_BY_THEMSELVES = {
    "apply-precision": "it rounds on purpose: test_precision_keeps_the_boundary",
    "bind-params": "it changes the boundary: test_known_params_become_constants",
    "decompose": "test_decompose_keeps_the_meaning",
    "fuse": "test_fusion_keeps_the_meaning",
    "insert-qdq": "it rounds on purpose, with a calibration: tests/rlx/passes/test_quantize.py",
    "insert-scaled-matmul": "it rounds on purpose: test_scaled_products_keep_the_boundary",
}


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
    if not isinstance(current, RollBlocks):  # what stacks its blocks may be equal blocks, too
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


@pytest.mark.parametrize(("current", "platform"), CLOSE, ids=str)
@given(drawn=graphs())
def test_a_close_pass_keeps_the_meaning(current: AbstractPass, platform: str, drawn: Drawn) -> None:
    result = current.run(drawn.graph, PassContext(platform=platform))
    assert boundary(result) == boundary(drawn.graph)
    verify(result)
    found, wanted = interpret(result, drawn.feeds), interpret(drawn.graph, drawn.feeds)
    for got, want in zip(found, wanted, strict=True):
        assert not mismatch(got, want)


@given(drawn=graphs())
def test_known_params_become_constants(drawn: Drawn) -> None:
    graph = drawn.graph
    leaves = [Param(name=v.name, dtype=v.dtype, shape=v.shape)() for v in graph.inputs]
    params = Graph((), leaves, splice(graph, leaves), name=graph.name)
    known = KnownValues(arrays=drawn.feeds)
    result = BindParams(values=known).run(params, PassContext())
    verify(result)
    assert not result.params
    assert_same_bits(interpret(result, {}), interpret(graph, drawn.feeds))


@given(drawn=graphs())
def test_scaled_products_keep_the_boundary(drawn: Drawn) -> None:
    current = InsertScaledMatmul(config=ScaledQuantConfig())
    result = current.run(drawn.graph, PassContext())
    assert boundary(result) == boundary(drawn.graph)
    verify(result)
    interpret(result, drawn.feeds)


def test_every_pass_is_drawn_for() -> None:
    tables = {p.name for p in EXACT} | {p.name for p, _ in CLOSE}
    assert {p.name for p in registered_passes()} == tables | set(TESTED_BY_THEMSELVES)


@given(drawn=graphs())
def test_the_pipeline_keeps_every_bit(drawn: Drawn) -> None:
    options = CompileOptions(validate=True)
    result, _ = mir_pipeline(options).run(drawn.graph, PassContext(options))
    verify(result)
    assert_same_bits(interpret(result, drawn.feeds), interpret(drawn.graph, drawn.feeds))


@pytest.mark.parametrize(
    ("platform", "options"),
    [
        ("cpu", CompileOptions(strict=True, lint_numerics=True, matmul_precision="highest")),
        ("cpu", CompileOptions(roll_blocks=2, scan_unroll_max_length=16)),
        ("cuda", CompileOptions(fusion_target=FusionTarget.CUDA)),
    ],
    ids=["strict", "rolled", "fused"],
)
@given(drawn=graphs())
def test_every_pipeline_keeps_the_meaning(
    platform: str, options: CompileOptions, drawn: Drawn
) -> None:
    ctx = PassContext(options, platform=platform)
    graph = drawn.graph
    for pipeline in (
        binding_pipeline(options, hidden_seed=False),
        symbolic_pipeline(options),
        mir_pipeline(options),
        closing_pipeline(options),
    ):
        graph, _ = pipeline.run(graph, ctx)
        assert boundary(graph) == boundary(drawn.graph)
        verify(graph)
    found, wanted = interpret(graph, drawn.feeds), interpret(drawn.graph, drawn.feeds)
    for got, want in zip(found, wanted, strict=True):
        assert not mismatch(got, want)


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
        if isinstance(current, BindRng | RaiseMatmulPrecision) and (
            sample.op.op_name in SIZE_DEPENDENT
        ):
            continue  # they write some of these out, too
        result = current.run(graph, PassContext())
        assert boundary(result) == boundary(graph), sample.op
        assert current.run(result, PassContext()) is result, sample.op


def test_every_op_folds_to_its_meaning(rng: np.random.Generator) -> None:
    folded: set[str] = set()
    for name, samples in all_samples(rng).items():
        small = [s for s in samples if s.inputs and sum(a.nbytes for a in s.inputs) <= 4096]
        for sample in small[:4]:
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
