"""Claims on nodes, policies and their precedence, and the report before and after a compile."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import devices
from rlx.dispatch import DispatchPath, policy_text
from rlx.errors import CompileError, KernelError, LoweringError
from rlx.ir import location, op
from rlx.ir.graph import Graph, Node
from rlx.ir.location import Location
from rlx.ir.plan import Implementation, Refusal, Refusals
from rlx.options import env
from rlx.options.dispatch import KernelDispatch, KernelPolicy, claim_of, dispatch_from_env
from rlx.passes.legalize import examine, legalize

PRIMITIVES = ("reduce_max", "reshape", "broadcast_in_dim", "sub", "exp", "reduce_sum", "div")


def _softmax() -> Graph:
    b = rlx.GraphBuilder("g")
    return b.build(b.input("x", "f32[2, 5]").softmax(axis=-1))


def _rule(node: Node) -> Implementation | Refusals:
    return Implementation("rule", node.op.op_name)


# Claims.


def test_supported_ops_by_name_restrict_what_stays() -> None:
    graph = _softmax()
    lir = legalize(graph, _rule, "cpu", claim=claim_of(PRIMITIVES))
    assert {n.op.op_name for n in lir.plan.implementations} == set(PRIMITIVES)
    assert lir.plan.decomposed == {"softmax": 1}
    assert lir.plan.decomposed_refusals == {
        "softmax": (Refusal("supported_ops", "'softmax' is not claimed"),)
    }
    kept = legalize(graph, _rule, "cpu", claim=claim_of(["softmax"]))
    assert kept.graph is graph


def test_an_empty_collection_accepts_everything_as_in_rlx() -> None:
    assert claim_of(()) is None
    assert claim_of(None) is None
    graph = _softmax()
    options = rlx.CompileOptions(supported_ops=())
    assert rlx.Session("interpret").lower(graph, options=options).graph.node_count() == 2


def test_a_claim_is_a_predicate_on_nodes() -> None:
    def last_axis_only(node: Node) -> bool:
        return node.op.op_name != "softmax" or node.op.attributes()["axis"] == 1

    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[2, 5]")
    graph = b.build(x.softmax(axis=1), x.softmax(axis=0))
    options = rlx.CompileOptions(supported_ops=last_axis_only)
    compiled = rlx.Session("interpret").compile(graph, options=options)
    softmax = [c for c in compiled.report().choices if c.op == "softmax"]
    assert {(c.path, c.count) for c in softmax} == {
        (DispatchPath.COMMON, 1),
        (DispatchPath.REWRITTEN, 1),
    }
    value = np.random.default_rng().normal(size=(2, 5)).astype(np.float32)
    for found, wanted in zip(
        compiled.run({"x": value}), rlx.interpret(graph, {"x": value}), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_constants_and_leaves_are_never_restricted() -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[3]")
    graph = b.build(x + rlx.constant(np.arange(3, dtype=np.float32)))
    lir = legalize(graph, _rule, "cpu", claim=claim_of({"add"}))
    assert {n.op.op_name for n in lir.plan.implementations} == {"add", "constant"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            ["softmx"],
            "CompileOptions.supported_ops: op 'softmx' is not registered. Did you mean 'softmax'?",
        ),
        (
            "softmax",
            "CompileOptions.supported_ops: a collection of op names or a predicate on nodes is "
            "required; got 'softmax'.",
        ),
        (
            3,
            "CompileOptions.supported_ops: a collection of op names or a predicate on nodes is "
            "required; got 3.",
        ),
    ],
)
def test_a_wrong_claim_is_refused(given: Any, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        claim_of(given)
    assert str(caught.value) == text


def test_an_unknown_name_is_refused_by_the_compile() -> None:
    with pytest.raises(CompileError, match="op 'softmx' is not registered"):
        rlx.Session("interpret").compile(
            _softmax(), options=rlx.CompileOptions(supported_ops={"softmx"})
        )


# Errors.


def test_everything_unsupported_is_in_one_error() -> None:
    with location.at(Location("model.py", 3)):
        b = rlx.GraphBuilder("g")
        x = b.input("x", "f32[2, 5]")
        graph = b.build(x.softmax(axis=-1), x.tanh(), (-x).tanh())
    claim = claim_of({"neg", *PRIMITIVES} - {"exp"})
    with pytest.raises(LoweringError) as caught:
        legalize(graph, _rule, "cpu", claim=claim)
    assert str(caught.value) == (
        'rlx-opt: backend "cpu" doesn\'t claim support for 2 op kind(s):\n'
        "  no lowering for op 'exp' on 'cpu' at model.py:3: (f32[2, 5]) -> f32[2, 5].\n"
        "    supported_ops: 'exp' is not claimed\n"
        "  no lowering for op 'tanh' on 'cpu' at model.py:3: (f32[2, 5]) -> f32[2, 5]. "
        "(2 nodes)\n"
        "    supported_ops: 'tanh' is not claimed\n"
        "CompileOptions.supported_ops restricts what is carried out as it is. Add these ops to "
        "it, or leave it None to allow everything that the backend has."
    )


def test_a_custom_op_gets_a_hint() -> None:
    @op.define_op("test_alien")
    class Alien(op.Op):
        """An op of somebody else's."""

        def infer(self, x: rlx.TensorType) -> rlx.TensorType:
            return x

        def evaluate(self, x: Any) -> Any:
            return x

    try:
        b = rlx.GraphBuilder("g")
        graph = b.build(Alien()(b.input("x", "f32[3]")))
        with pytest.raises(LoweringError) as caught:
            legalize(graph, lambda node: Refusals(()), "cpu")
    finally:
        del op._OPS["test_alien"]
    assert str(caught.value).endswith(
        "\nHint: 'test_alien' is a custom op (tests.rlx.test_dispatch."
        "test_a_custom_op_gets_a_hint.<locals>.Alien). Give it decompose, or register a rule with "
        "@lowers(Alien) or a kernel (rlx_xla.kernels.select.register_kernel)."
    )


def _demanding(node: Node) -> Implementation | Refusals:
    if node.op.op_name == "neg":
        return Refusals((Refusal("neg.cuda.ffi", "registered for cuda"),), demanded=True)
    if node.op.op_name == "tanh":
        return Refusals((Refusal("tanh.cpu.ffi", "x is small"),))
    return Implementation("rule", node.op.op_name)


def test_demanded_kernels_are_listed_together() -> None:
    with location.at(Location("model.py", 7)):
        b = rlx.GraphBuilder("g")
        x = b.input("x", "f32[3]")
        graph = b.build(-x, (-x) + x)
    with pytest.raises(KernelError) as caught:
        legalize(graph, _demanding, "cpu")
    assert str(caught.value) == (
        "kernel_dispatch: a kernel is required for 'neg' on 'cpu' at model.py:7; every one "
        "refuses: (2 nodes)\n  neg.cuda.ffi: registered for cuda\n"
        "Allow the lowering rule, or change what the reasons name."
    )


def test_demands_and_gaps_stand_in_one_error() -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[3]")
    with pytest.raises(LoweringError) as caught:
        legalize(b.build(-x, x.tanh()), _demanding, "cpu")
    text = str(caught.value)
    assert text.startswith('rlx-opt: backend "cpu" doesn\'t claim support for 1 op kind(s):')
    assert "no lowering for op 'tanh'" in text
    assert "a kernel is required for 'neg'" in text


# Policies.


def test_native_beats_common_beats_the_policy() -> None:
    both = KernelDispatch(
        policy=KernelPolicy.FORCE_COMMON,
        common_ops=frozenset({"sort", "argmax"}),
        native_ops=frozenset({"argmax"}),
    )
    assert both.policy_for("argmax") is KernelPolicy.FORCE_NATIVE
    assert both.policy_for("sort") is KernelPolicy.FORCE_COMMON
    native = KernelDispatch(policy=KernelPolicy.FORCE_NATIVE, common_ops=frozenset({"sort"}))
    assert native.policy_for("sort") is KernelPolicy.FORCE_COMMON
    assert native.policy_for("argmax") is KernelPolicy.FORCE_NATIVE


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("common", KernelPolicy.FORCE_COMMON),
        ("force_common", KernelPolicy.FORCE_COMMON),
        ("native", KernelPolicy.FORCE_NATIVE),
        ("Force-Native", KernelPolicy.FORCE_NATIVE),
        ("prefer_native", KernelPolicy.PREFER_NATIVE),
        ("", KernelPolicy.PREFER_NATIVE),
    ],
)
def test_the_environment_names_a_policy(text: str, policy: KernelPolicy) -> None:
    with env.overrides({"RLX_KERNEL_DISPATCH": text}):
        assert dispatch_from_env().policy is policy


def test_a_wrong_policy_in_the_environment() -> None:
    with env.overrides({"RLX_KERNEL_DISPATCH": "best"}), pytest.raises(CompileError) as caught:
        dispatch_from_env()
    assert str(caught.value) == (
        "RLX_KERNEL_DISPATCH: required one of prefer_native, force_common, force_native, common, "
        "native; got 'best'."
    )


def test_a_policy_is_told_in_words() -> None:
    dispatch = KernelDispatch(
        policy=KernelPolicy.FORCE_COMMON,
        native_ops=frozenset({"sort"}),
        common_ops=frozenset({"add"}),
        forced=frozenset({"sort.cpu.ffi"}),
        forbidden=frozenset({"argmax.cpu.ffi"}),
    )
    assert policy_text(dispatch) == (
        "force_common; native: sort; common: add; forced: sort.cpu.ffi; forbidden: argmax.cpu.ffi"
    )


# The report.


def test_the_report_before_is_the_report_after() -> None:
    graph = _softmax()
    options = rlx.CompileOptions(supported_ops=PRIMITIVES)
    before = devices.analyze_dispatch(graph, "interpret", options)
    after = rlx.Session("interpret").compile(graph, options=options).report().dispatch
    assert before == after
    assert before.compile_ready
    assert before.count(DispatchPath.COMMON) == 9
    assert before.count(DispatchPath.REWRITTEN) == 1
    assert before.count(DispatchPath.NATIVE) == before.count(DispatchPath.UNSUPPORTED) == 0
    assert devices.dispatch_report_for_device("interpret", graph).common_lowered_kinds == []


def test_the_report_prints_totals_and_reasons() -> None:
    b = rlx.GraphBuilder("g")
    with location.at(Location("model.py", 5)):
        graph = b.build(b.input("x", "f32[2, 5]").softmax(axis=-1))
    options = rlx.CompileOptions(supported_ops=set(PRIMITIVES) - {"exp"})
    report = devices.analyze_dispatch(graph, "interpret", options)
    assert not report.compile_ready
    assert report.still_unsupported == (("exp at model.py:5", "exp"),)
    assert report.supported_claim_count == 6
    lines = str(report).split("\n")
    assert lines[0] == (
        "dispatch on interpret (prefer_native): 0 native, 8 common, 1 rewritten, "
        "1 unsupported; not ready to compile"
    )
    assert lines[1] == "  supported_ops: 6 ops"
    assert "       2 × broadcast_in_dim         common      rule broadcast_in_dim" in lines
    assert "       1 × exp                      unsupported" in lines
    assert "           refused supported_ops: 'exp' is not claimed" in lines
    assert lines[-1] == "  unsupported: exp at model.py:5"
    again = json.loads(json.dumps(report.to_dict()))
    assert again["counts"] == {"native": 0, "common": 8, "rewritten": 1, "unsupported": 1}
    assert again["still_unsupported"] == [{"node": "exp at model.py:5", "op": "exp"}]


@pytest.mark.parametrize("variable", ["RLX_DISPATCH_REPORT", "RLX_VERBOSE"])
def test_the_report_is_printed_on_request(
    variable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with env.overrides({"RLX_DISPATCH_REPORT": None, "RLX_VERBOSE": None}):
        rlx.Session("interpret").compile(_softmax())
        assert "dispatch on" not in capsys.readouterr().out
    with env.overrides({variable: "1"}):
        rlx.Session("interpret").compile(_softmax())
    assert "dispatch on interpret (prefer_native): 0 native" in capsys.readouterr().out


def test_the_report_is_printed_even_when_the_compile_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = rlx.CompileOptions(supported_ops={"exp"}, dispatch_report=True)
    with pytest.raises(LoweringError):
        rlx.Session("interpret").compile(_softmax(), options=options)
    assert "not ready to compile" in capsys.readouterr().out


def test_analysis_takes_symbolic_dims() -> None:
    @op.define_op("test_sized")
    class Sized(op.Op):
        """An op whose decomposition depends on sizes."""

        def infer(self, x: rlx.TensorType) -> rlx.TensorType:
            return x

        def decompose(self, x: rlx.Value) -> rlx.Value:
            size = rlx.dims.evaluate(x.type.shape[0], {})
            return x * rlx.constant(np.float32(size))

    try:
        b = rlx.GraphBuilder("g")
        graph = b.build(Sized()(b.input("x", "f32[n]")))
        legal = examine(graph, lambda node: Implementation("decomposition", node.op.op_name), "cpu")
        assert [n.op.op_name for n in legal.plan.implementations] == ["test_sized"]
        assert legal.unsupported == ()
        static = rlx.bind(graph, {"n": 4})
        legal = examine(
            static,
            lambda node: Implementation(
                "decomposition" if node.op.op_name == "test_sized" else "rule", node.op.op_name
            ),
            "cpu",
        )
        assert legal.plan.decomposed == {"test_sized": 1}
    finally:
        del op._OPS["test_sized"]
