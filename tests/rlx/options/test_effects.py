"""Every option changes what it says, or the report says that it changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CompileError
from rlx.options.compile import CompileOptions
from rlx.options.fusion import FusionOptions, FusionTarget
from rlx.options.precision import OpClass, Precision, PrecisionPolicy

WRONG: list[tuple[str, Any, str]] = [
    ("precision", "bf16", "required a Precision; got 'bf16'."),
    ("policy", "auto", "required a PrecisionPolicy, or None; got 'auto'."),
    ("scaled_quant", "fp8", "required an rlx.quant.ScaledQuantConfig, or None; got 'fp8'."),
    ("rng", 3, "required an RngOptions; got 3."),
    ("dce", 1, "required a bool; got 1."),
    ("fusion_target", "cpu", "required a FusionTarget, or None; got 'cpu'."),
    ("fusion_opts", {}, "required a FusionOptions; got dict."),
    ("supported_ops", "add",
     "required a set of op names, a predicate on nodes, or None; got 'add'."),
    ("quant_param_bindings", {"w": [1]}, "required a mapping (param → bytes), or None; got dict."),
    ("scan_unroll_max_length", -1, "required an int ≥ 0; got -1."),
    ("scan_unroll_max_length", True, "required an int ≥ 0; got True."),
    ("matmul_precision", "hihg", "required one of 'default', 'high', 'highest', or None; "
                                 "got 'hihg'. Did you mean 'high'?"),
    ("ir_dump", 3, "required the name of a folder, or None; got 3."),
    ("buckets", {"n": [4, 2]}, "required a mapping (symbol → ascending sizes, 'pow2' or 'auto'), "
                               "'pow2', 'auto', or None; got dict. Correct 'n': [4, 2]: a list of "
                               "ints ≥ 1, each above the last."),
    ("buckets", "pow3", "required a mapping (symbol → ascending sizes, 'pow2' or 'auto'), "
                        "'pow2', 'auto', or None; got 'pow3'."),
    ("resident", {"s": -1}, "required a mapping (input name → number of the output that feeds "
                            "it); got dict."),
    ("arena_alignment", 48, "required a power of two; got 48."),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "text"), WRONG)
def test_each_option_is_checked(field: str, value: Any, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        CompileOptions(**{field: value})
    assert str(caught.value) == f"CompileOptions.{field}: {text}"


@pytest.mark.parametrize("buckets", [None, "pow2", "auto", {"n": [2, 4]}, {"n": "pow2", "m": (1,)}])
def test_buckets_are_taken(buckets: Any) -> None:
    assert CompileOptions(buckets=buckets).buckets == buckets


def _graph() -> rlx.Graph:
    b = rlx.GraphBuilder("g")
    x, w = b.input("x", "f32[2, 3]"), b.param("w", "f32[3, 4]")
    b.param("unused", "f32[2]")
    return b.build(x @ w)


def test_unused_params_are_left_out_unless_asked() -> None:
    session = rlx.Session("interpret")
    compiled = session.compile(_graph())
    compiled.set_param("w", np.ones((3, 4), np.float32))
    compiled.finalize_params()
    assert compiled.run({"x": np.ones((2, 3), np.float32)})[0].tolist() == [[3.0] * 4] * 2
    assert any("not used: unused" in r.notes for r in compiled.report().passes)
    whole = session.compile(_graph(), options=CompileOptions(dce=False))
    assert [v.name for v in whole.report().lir.graph.params] == ["w", "unused"]


def test_constant_folding_is_an_option() -> None:
    b = rlx.GraphBuilder("c")
    graph = b.build(b.input("x", "f32[2]") + rlx.constant([1.0, 2.0]).exp())
    for folding in (True, False):
        options = CompileOptions(constant_folding=folding)
        nodes = rlx.Session("interpret").compile(graph, options=options).report().lir.graph.nodes()
        assert any(n.op.op_name == "exp" for n in nodes) is not folding


def test_matmul_precision_is_raised() -> None:
    from rlx.ops.dot.general import DotPrecision

    for asked, wanted in ((None, "default"), ("high", "high"), ("highest", "highest")):
        options = CompileOptions(matmul_precision=asked)
        graph = rlx.Session("interpret").lower(_graph(), options=options).graph
        found = [n.op.attributes().get("precision") for n in graph.nodes()]
        dots = [p for p in found if p is not None]
        if asked is None:
            assert dots in ([], [(DotPrecision(wanted),) * 2])
        else:
            assert dots == [(DotPrecision(wanted),) * 2]


def test_constants_that_are_not_finite_are_noted() -> None:
    b = rlx.GraphBuilder("lint")
    x = b.input("x", "f32[3]")
    graph = b.build(x + rlx.constant([0.0, -1.0, 1.0]).log())
    for lint in (True, False):
        options = CompileOptions(lint_numerics=lint)
        report = rlx.Session("interpret").compile(graph, options=options).report()
        notes = [n for r in report.passes if r.name == "lint-numerics" for n in r.notes]
        assert len(notes) == lint
        if lint:
            assert notes[0].startswith("constant f32[3] at ")
            assert notes[0].endswith("holds 1 NaN and 1 infinite elements")


def test_levels_are_written(tmp_path: Path) -> None:
    b = rlx.GraphBuilder("a graph/name")
    graph = b.build(b.input("x", "f32[n]") * 2.0 * 1.0)
    options = CompileOptions(ir_dump=str(tmp_path / "deep" / "er"))
    compiled = rlx.Session("interpret").compile(graph, options=options)
    compiled(np.ones(3, np.float32))
    names = sorted(p.name for p in (tmp_path / "deep" / "er").iterdir())
    assert names == [
        "a_graph_name.n=3.lir.txt", "a_graph_name.n=3.mir.optimised.txt",
        "a_graph_name.n=3.mir.txt",
    ]  # fmt: skip
    folder = tmp_path / "deep" / "er"
    assert rlx.same(rlx.parse((folder / names[2]).read_text()), rlx.bind(graph, {"n": 3}))
    assert "implementations on numpy:" in (folder / names[0]).read_text()
    (tmp_path / "file").write_text("")
    bad = CompileOptions(ir_dump=str(tmp_path / "file"))
    with pytest.raises(CompileError, match="ir_dump: a folder that can be written is required"):
        rlx.Session("interpret").compile(_graph(), options=bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arena_alignment", 128), ("disable_mpsgraph", True), ("no_io_peaks_output", True),
        ("disable_conv_bias_act_fusion", True),
    ],
)  # fmt: skip
def test_options_of_other_devices_are_reported(field: str, value: Any) -> None:
    plain = rlx.Session("interpret").compile(_graph(), options=CompileOptions.baseline())
    assert list(plain.report().ineffective) == []
    options = CompileOptions.baseline().replace(**{field: value})
    report = rlx.Session("interpret").compile(_graph(), options=options).report()
    (line,) = report.ineffective
    assert line.startswith(f"{field}={value!r} has no effect: ")
    assert line in str(report)


def test_a_session_has_a_policy() -> None:
    session = rlx.Session("interpret", policy=PrecisionPolicy.ALWAYS_F32)
    assert session.policy is PrecisionPolicy.ALWAYS_F32
    assert session.precision is Precision.F32
    assert str(PrecisionPolicy.AUTO_MIXED_BF16) == "auto_mixed_bf16"


def test_policies_say_what_they_lower() -> None:
    policy = PrecisionPolicy.custom({OpClass.COMPUTE: Precision.BF16})
    assert policy.precision_of(OpClass.COMPUTE) is Precision.BF16
    assert policy.precision_of(OpClass.REDUCTION) is Precision.F32
    assert str(policy) == "custom(compute=bf16)"
    assert PrecisionPolicy.custom({}).low == PrecisionPolicy.ALWAYS_F32.low == ()
    mixed = PrecisionPolicy.AUTO_MIXED
    assert mixed.precision_of(OpClass.COMPUTE) is Precision.F16
    assert mixed.precision_of(OpClass.REDUCTION) is Precision.F32
    for bad in ("x", {"compute": Precision.F16}, {OpClass.COMPUTE: "f16"}):
        with pytest.raises(CompileError, match=r"PrecisionPolicy.custom: a mapping \(OpClass"):
            PrecisionPolicy.custom(bad)  # type: ignore[arg-type]
    with pytest.raises(CompileError, match=r"keep their dtypes; got Precision.F16 for OpClass.B"):
        PrecisionPolicy.custom({OpClass.BOUNDARY: Precision.F16})


def test_fusion_options() -> None:
    assert FusionOptions.for_cpu() == FusionOptions()
    assert FusionOptions.for_target(FusionTarget.TPU).max_steps == 32
    with pytest.raises(CompileError) as caught:
        FusionOptions(max_inputs=0)
    assert str(caught.value) == "FusionOptions.max_inputs: required an int ≥ 1, or None; got 0."
    with pytest.raises(CompileError, match=r"FusionOptions.skip_fusion: required a bool; got 1"):
        FusionOptions(skip_fusion=1)  # type: ignore[arg-type]


def test_hir_is_written_too(tmp_path: Path) -> None:
    b = rlx.GraphBuilder("top")
    module = rlx.Module.from_hir(b.build(b.input("x", "f32[2]") * 2.0))
    options = CompileOptions(ir_dump=str(tmp_path))
    rlx.Session("interpret").compile(module, options=options)
    assert {p.name for p in tmp_path.iterdir()} == {
        "top.hir.txt", "top.mir.txt", "top.mir.optimised.txt", "top.lir.txt",
    }  # fmt: skip
