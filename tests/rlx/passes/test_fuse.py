"""Fusion: what is fused, what must stay, and that the results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType
from rlx.errors import CompileError
from rlx.fusion_report import FUSED, FusionReport
from rlx.ir.graph import Graph, Value, make_node
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify
from rlx.ops.activation import Silu
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.control_flow import Scan
from rlx.ops.convolution import Conv
from rlx.ops.dot import DotGeneral
from rlx.ops.io import Input
from rlx.ops.normalization import LayerNorm, RmsNorm
from rlx.ops.position import Rope
from rlx.ops.shape import BroadcastInDim, Narrow, Slice, Split
from rlx.ops.transcendental import Sin
from rlx.options.fusion import FusionOptions, FusionTarget
from rlx.passes import PassContext
from rlx.passes.fuse import Fuse, fuse
from rlx.tolerances import tolerance

ALL = FusionTarget.METAL
"""Claims everything but convolutions."""
KEEP = FusionOptions(unfuse_elementwise_regions=False)


def silu(x: Value) -> Value:
    made: Value = Silu()(x)
    return made


def names(graph: Graph) -> list[str]:
    return [n.op.op_name for n in graph.nodes() if n.op.op_name not in ("input", "param")]


def feeds(graph: Graph, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    def drawn(leaves: tuple[Value, ...]) -> dict[str, Any]:
        return {v.name: np.asarray(rng.standard_normal(v.type.shape), v.dtype.numpy)  # type: ignore[arg-type]
                for v in leaves}  # fmt: skip

    return drawn(graph.inputs), drawn(graph.params)


def check(
    graph: Graph,
    rng: np.random.Generator,
    target: FusionTarget = ALL,
    options: FusionOptions | None = None,
    *,
    staged: bool = False,
) -> tuple[Graph, FusionReport]:
    """Fuse, and hold the result to the source's on drawn data."""
    made, report = fuse(graph, target, options, staged=staged)
    verify(made)
    given = feeds(graph, rng)
    for found, wanted, out in zip(
        interpret(made, *given), interpret(graph, *given), graph.outputs, strict=True
    ):
        bound = tolerance(out.dtype)
        np.testing.assert_allclose(
            found.astype(np.float64), wanted.astype(np.float64),
            rtol=10 * bound.rtol, atol=10 * bound.atol,
        )  # fmt: skip
    return made, report


def linear(b: rlx.GraphBuilder) -> tuple[Value, Value, Value]:
    return b.input("x", "f32[2, 5, 3]"), b.param("w", "f32[3, 4]"), b.param("c", "f32[4]")


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "none": lambda v: v,
    "gelu": lambda v: v.gelu(),
    "gelu_approx": lambda v: v.gelu(approximate=True),
    "silu": silu,
    "relu": lambda v: v.relu(),
}


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("form", ["matmul", "dot_general"])
def test_matmul_bias_act(
    activation: str, swapped: bool, form: str, rng: np.random.Generator
) -> None:
    b = rlx.GraphBuilder("mm")
    x, w, c = linear(b)
    dot = DotGeneral(lhs_contracting=(2,), rhs_contracting=(0,))
    product = x @ w if form == "matmul" else dot(x, w)
    total = c + product if swapped else product + c
    made, report = check(b.build(ACTIVATIONS[activation](total)), rng)
    assert names(made) == ["fused_matmul_bias_act"]
    assert report.counts["fused_matmul_bias_act"] == 1
    assert report.matmuls == (1, 0)
    assert report.is_clean


def test_a_bias_through_a_row_is_found(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("row")
    x, w, c = linear(b)
    row = BroadcastInDim(shape=(1, 4), broadcast_dimensions=(1,))(c)
    wide = BroadcastInDim(shape=(2, 5, 4), broadcast_dimensions=(1, 2))(row)
    made, _ = check(b.build((x @ w) + wide), rng)
    assert names(made) == ["fused_matmul_bias_act"]


def _kept(build: Callable[[rlx.GraphBuilder, Value, Value, Value], list[Value]]) -> Graph:
    b = rlx.GraphBuilder("kept")
    return b.build(*build(b, *linear(b)))


def test_what_is_read_elsewhere_stays(rng: np.random.Generator) -> None:
    def product_twice(b: Any, x: Value, w: Value, c: Value) -> list[Value]:
        product = x @ w
        return [product + c, product * product]

    def product_is_output(b: Any, x: Value, w: Value, c: Value) -> list[Value]:
        product = x @ w
        return [product + c, product]

    def sum_is_output(b: Any, x: Value, w: Value, c: Value) -> list[Value]:
        total = x @ w + c
        return [total.gelu(), total]

    for build in (product_twice, product_is_output):
        made, report = check(_kept(build), rng)
        assert "fused_matmul_bias_act" not in names(made)
        (miss,) = report.missed
        assert miss.pattern == "matmul_bias_act"
        assert str(miss.reason) == "more than one node reads the value, or it is an output"
    made, report = check(_kept(sum_is_output), rng)
    assert sorted(names(made)) == ["fused_matmul_bias_act", "gelu"]
    assert [str(m.reason) for m in report.missed] == [
        "more than one node reads the value, or it is an output"
    ]


def test_a_bias_that_is_no_bias_stays(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("bias")
    x, w = b.input("x", "f32[5, 4]"), b.param("w", "f32[4, 5]")
    column = b.param("c", "f32[5]")
    made, _ = check(
        b.build(x @ w + BroadcastInDim(shape=(5, 5), broadcast_dimensions=(0,))(column)), rng,
        FusionTarget.CPU,
    )  # fmt: skip
    assert "fused_matmul_bias_act" not in names(made)
    b = rlx.GraphBuilder("full")
    x, w = b.input("x", "f32[5, 4]"), b.param("w", "f32[4, 5]")
    _, report = check(b.build(x @ w + b.param("r", "f32[5, 5]")), rng, FusionTarget.CPU)
    (miss,) = report.missed
    assert str(miss.reason) == "the bias has rank 2"
    assert miss.hint == "use a bias of rank 1"


def test_precision_that_is_asked_for_stays(rng: np.random.Generator) -> None:
    from rlx.ops.dot.general import DotPrecision

    b = rlx.GraphBuilder("high")
    x, w, c = linear(b)
    dot = DotGeneral(
        lhs_contracting=(2,), rhs_contracting=(0,), precision=(DotPrecision.HIGHEST,) * 2
    )
    made, _ = check(b.build(dot(x, w) + c), rng)
    assert "fused_matmul_bias_act" not in names(made)


@pytest.mark.parametrize("kind", ["ln", "rms"])
@pytest.mark.parametrize("bias", [False, True])
def test_residual_norms(kind: str, bias: bool, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("norm")
    x, r = b.input("x", "f32[2, 5, 8]"), b.input("r", "f32[2, 5, 8]")
    g, o = b.param("g", "f32[8]"), b.param("o", "f32[8]")
    total = x + r + b.param("c", "f32[8]") if bias else x + r
    norm = LayerNorm(axis=2, eps=1e-4) if kind == "ln" else RmsNorm(axis=-1, eps=1e-4)
    made, report = check(b.build(norm(total, g, o)), rng, FusionTarget.CPU)
    fused = f"fused_residual_{'ln' if kind == 'ln' else 'rms_norm'}"
    assert names(made) == [fused]
    assert made.nodes()[-1].op.attributes() == {"eps": 1e-4}
    assert report.counts[fused] == 1


def test_a_norm_over_another_axis_or_of_a_broadcast_sum_stays(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("norm")
    x, r = b.input("x", "f32[8, 8]"), b.input("r", "f32[8, 8]")
    g, o = b.param("g", "f32[8]"), b.param("o", "f32[8]")
    made, _ = check(b.build(LayerNorm(axis=0)(x + r, g, o)), rng, FusionTarget.CPU)
    assert "fused_residual_ln" not in names(made)
    total = x + r
    made, _ = check(b.build(LayerNorm(axis=1)(total, g, o), total), rng, FusionTarget.CPU)
    assert "fused_residual_ln" not in names(made)


def test_a_reshape_goes_before_the_norm(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("reshape")
    x, g, o = b.input("x", "f32[2, 5, 8]"), b.param("g", "f32[8]"), b.param("o", "f32[8]")
    made, _ = check(b.build(RmsNorm(axis=2)(x, g, o).reshape(10, 8)), rng, FusionTarget.CPU)
    assert names(made) == ["reshape", "rms_norm"]
    made, _ = check(b.build(RmsNorm(axis=2)(x, g, o).reshape(2, 40)), rng, FusionTarget.CPU)
    assert names(made) == ["rms_norm", "reshape"]


def _halves(x: Value, how: str) -> tuple[Value, Value]:
    if how == "narrow":
        return Narrow(axis=1, start=0, length=4)(x), Narrow(axis=1, start=4, length=4)(x)
    if how == "split":
        return Split(axis=1, sizes=(4, 4))(x)
    ones = (1, 1)
    return (
        Slice(start_indices=(0, 0), limit_indices=(3, 4), strides=ones)(x),
        Slice(start_indices=(0, 4), limit_indices=(3, 8), strides=ones)(x),
    )


@pytest.mark.parametrize("how", ["narrow", "split", "slice"])
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_swiglu(how: str, gate_first: bool, swapped: bool, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("gate")
    first, second = _halves(b.input("x", "f32[3, 8]"), how)
    gate, up = (first, second) if gate_first else (second, first)
    graph = b.build(up * silu(gate) if swapped else silu(gate) * up)
    made, report = check(graph, rng, FusionTarget.CPU)
    assert names(made) == ["fused_swiglu"]
    assert made.nodes()[-1].op.attributes()["gate_first"] is gate_first
    assert report.counts["fused_swiglu"] == 1
    (miss,) = FusionReport.scan(graph).missed
    text = "the gate stands before up" if gate_first else "it was not fused"
    assert (miss.pattern, str(miss.reason)) == ("swiglu", text)


def test_swiglu_of_other_parts_stays(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("gate")
    x, y = b.input("x", "f32[3, 8]"), b.input("y", "f32[3, 8]")
    first, second = _halves(x, "narrow")
    other = _halves(y, "narrow")[1]
    overlap = Narrow(axis=1, start=2, length=4)(x)
    for graph in (b.build(silu(second) * other), b.build(silu(first) * overlap)):
        made, report = check(graph, rng, FusionTarget.CPU)
        assert "fused_swiglu" not in names(made)
        assert str(report.missed[0].reason) == "gate and up are not halves of one value"
    made, _ = check(b.build(silu(first) * first), rng, FusionTarget.CPU)
    assert "fused_swiglu" not in names(made)


def _gated(b: rlx.GraphBuilder) -> Graph:
    x, up, gate = (
        b.input("x", "f32[3, 8]"),
        b.param("up", "f32[8, 6]"),
        b.param("gate", "f32[8, 6]"),
    )
    return b.build(silu(x @ gate) * (x @ up))


def test_weights_are_joined_only_where_that_happens_once(rng: np.random.Generator) -> None:
    graph = _gated(rlx.GraphBuilder("dual"))
    made, report = check(graph, rng, FusionTarget.CPU)
    assert "concatenate" not in names(made)
    assert "shared_input_matmul" in {m.pattern for m in report.missed}
    assert "2 products read one input" in str(report)
    made, report = check(graph, rng, FusionTarget.CPU, staged=True)
    assert names(made) == ["concatenate", "matmul", "fused_swiglu"]
    assert report.counts["fused_swiglu"] == 1
    options = rlx.CompileOptions(fusion_target=FusionTarget.CPU, cache_param_invariant=True)
    compiled = rlx.Session("interpret").compile(graph, options=options)
    assert "concatenate" not in names(compiled.report().lir.graph)
    given = feeds(graph, rng)
    compiled.set_params(given[1])
    np.testing.assert_allclose(
        compiled.run(given[0])[0], interpret(graph, *given)[0], rtol=1e-5, atol=1e-5
    )


def test_products_of_one_input_are_joined(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("qkv")
    x = b.input("x", "f32[2, 3, 8]")
    weights = [b.param(f"w{i}", f"f32[8, {n}]") for i, n in enumerate((6, 2, 2))]
    graph = b.build(*(x @ w for w in weights))
    made, report = check(graph, rng, FusionTarget.TPU, staged=True)
    assert names(made) == ["concatenate", "matmul", "narrow", "narrow", "narrow"]
    assert report.matmuls == (3, 1)
    assert rlx.same(made, fuse(graph, FusionTarget.TPU, staged=True)[0])
    constants = [rlx.constant(rng.standard_normal((8, n)).astype(np.float32)) for n in (3, 4)]
    made, _ = check(b.build(*(x @ w for w in constants)), rng, FusionTarget.TPU)
    assert names(made).count("matmul") == 1


def test_matmul_residual(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("residual")
    x, w = b.input("x", "f32[5, 4]"), b.param("w", "f32[4, 3]")
    graph = b.build(b.input("r", "f32[5, 3]") + x @ w)
    assert names(check(graph, rng)[0]) == ["fused_matmul_residual"]
    assert "fused_matmul_residual" not in names(check(graph, rng, FusionTarget.CPU)[0])


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("general", [False, True])
def test_conv_bias_act(activation: str, general: bool, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("conv")
    x, w, c = (
        b.input("x", "f32[2, 3, 6, 6]"),
        b.param("w", "f32[4, 3, 3, 3]"),
        b.param("c", "f32[4]"),
    )
    conv = Conv(stride=(1, 1), padding=(1, 1), dilation=(1, 1))(x, w)
    if general:
        conv = conv.node.op.decompose(x, w)
    bias = BroadcastInDim(shape=(2, 4, 6, 6), broadcast_dimensions=(1,))(c)
    graph = b.build(ACTIVATIONS[activation](conv + bias))
    assert names(check(graph, rng, FusionTarget.CUDA)[0]) == ["fused_conv_bias_act"]
    assert "fused_conv_bias_act" not in names(check(graph, rng, FusionTarget.CPU)[0])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rope", [False, True])
def test_attention_block(bias: bool, rope: bool, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("attention")
    hidden, mask = b.input("h", "f32[2, 5, 6]"), b.input("m", "f32[2, 5]")
    joined = hidden @ b.param("qkv", "f32[6, 24]")
    if bias:
        joined = joined + b.param("qkv_b", "f32[24]")
    q, k, v = (Narrow(axis=2, start=8 * i, length=8)(joined) for i in range(3))
    if rope:
        tables = b.param("cos", "f32[7, 2]"), b.param("sin", "f32[7, 2]")
        q, k = (Rope(head_dim=4, n_rot=4)(part, *tables) for part in (q, k))
    attention = Attention(num_heads=2, head_dim=4, mask_kind=MaskKind.CUSTOM)(q, k, v, mask)
    out = attention @ b.param("out", "f32[8, 6]")
    if bias:
        out = out + b.param("out_b", "f32[6]")
    graph = b.build(out)
    made, report = check(graph, rng, FusionTarget.CPU)
    assert names(made) == ["fused_attention_block"]
    assert report.counts["fused_attention_block"] == 1
    assert (
        names(check(b.build(out, q), rng, FusionTarget.CPU)[0]).count("fused_attention_block") == 0
    )


def test_regions_are_marked_and_taken_apart(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("chain")
    x, y = b.input("x", "f32[4, 3]"), b.input("y", "f32[4, 3]")
    shared = x * y
    end = (shared.tanh() + x).exp() - shared
    graph = b.build(end, (end * 2.0).sum(axis=0))
    made, report = check(graph, rng, FusionTarget.CPU, KEEP)
    assert report.counts["elementwise_region"] == 1
    region = next(n for n in made.nodes() if n.op.op_name == "elementwise_region")
    assert region.inputs[0].node.op.op_name == "mul" or "mul" in names(made)
    plain, report = check(graph, rng, FusionTarget.CPU)
    assert report.counts["elementwise_region"] == 0
    assert "elementwise_region" not in names(plain)
    small, _ = check(graph, rng, FusionTarget.CPU, FusionOptions(
        unfuse_elementwise_regions=False, max_steps=2))  # fmt: skip
    sizes = [len(n.op.attributes()["body"].nodes()) - len(n.inputs) for n in small.nodes()
             if n.op.op_name == "elementwise_region"]  # fmt: skip
    assert sizes
    assert max(sizes) == 2
    few, _ = check(graph, rng, FusionTarget.CPU, FusionOptions(
        unfuse_elementwise_regions=False, max_inputs=2))  # fmt: skip
    assert all(len(n.inputs) <= 2 for n in few.nodes() if n.op.op_name == "elementwise_region")


def test_a_column_against_a_matrix_is_read_in_its_place(rng: np.random.Generator) -> None:
    """RLX's region reads a [N, 1] operand by a modulus, which gives other elements."""
    b = rlx.GraphBuilder("column")
    x, y = b.input("x", "f32[4, 1]"), b.input("y", "f32[4, 3]")
    graph = b.build((x + y).tanh() * y)
    made, report = check(graph, rng, FusionTarget.CPU, KEEP)
    assert report.counts["elementwise_region"] == 1
    assert "elementwise_region" in names(made)


def test_bodies_of_loops_are_fused(rng: np.random.Generator) -> None:
    leaves = [Input(name=n, dtype=DType.F32, shape=s)() for n, s in
              (("w", (4, 4)), ("c", (4,)), ("h", (3, 4)))]  # fmt: skip
    step = (leaves[2] @ leaves[0] + leaves[1]).relu()
    body = Graph(leaves, (), [step])
    b = rlx.GraphBuilder("loop")
    scan = Scan(body=body, length=3, num_consts=2, num_carry=1)
    given = [b.input("w", "f32[4, 4]"), b.input("c", "f32[4]"), b.input("h", "f32[3, 4]")]
    made, report = check(b.build(*make_node(scan, given).results), rng)
    assert report.counts["fused_matmul_bias_act"] == 1
    assert "fused_matmul_bias_act" in names(made.all_graphs()[0])


def test_chained_fusions_read_each_other(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("mlp")
    x, c = b.input("x", "f32[2, 4]"), b.param("c", "f32[4]")
    w = [b.param(f"w{i}", "f32[4, 4]") for i in range(3)]
    for weight in w:
        x = (x @ weight + c).relu()
    made, report = check(b.build(x), rng)
    assert names(made) == ["fused_matmul_bias_act"] * 3
    assert report.summary_line() == (
        f"nodes={len(b.build(x).nodes())}→8 matmul=3→0 fused_mm_act=3 fused_swiglu=0 "
        "elementwise_region=0 missed_mm_act=0"
    )


def test_the_report_of_a_compile(capsys: pytest.CaptureFixture[str]) -> None:
    b = rlx.GraphBuilder("report")
    x, w, c = linear(b)
    graph = b.build(Sin()((x @ w + c).tanh()))
    session = rlx.Session("interpret")
    plain = session.compile(graph, options=rlx.CompileOptions(fusion_report=True))
    assert set(plain.report().fusion.counts) == set(FUSED)
    assert plain.report().fusion.counts["fused_matmul_bias_act"] == 0
    assert capsys.readouterr().out.startswith("nodes=8→8 matmul=1→1 fused_mm_act=0 ")
    assert "fusion" not in str(plain.report())
    options = rlx.CompileOptions(fusion_target=FusionTarget.CPU)
    report = session.compile(graph, options=options).report()
    assert report.fusion.counts["fused_matmul_bias_act"] == 1
    (miss,) = report.fusion.missed
    assert str(miss).startswith("matmul_bias_act @ fused_matmul_bias_act at test_fuse.py:")
    assert str(miss).endswith(
        " (f32[2, 5, 3], f32[3, 4], f32[4]) — the activation tanh is no epilogue → "
        "use gelu, silu or relu, or leave it apart"
    )
    text = str(report)
    assert "  fusion:\n" in text
    assert "      missed patterns:\n" in text
    assert report.to_dict()["fusion"]["missed"][0]["pattern"] == "matmul_bias_act"


def test_the_contract() -> None:
    b = rlx.GraphBuilder("contract")
    x, w, c = linear(b)
    clean, product = b.build((x @ w + c).relu()), x @ w
    session = rlx.Session("interpret")
    options = rlx.CompileOptions(assert_fusion_clean=True)
    assert session.compile(clean, options=options).report().fusion.is_clean
    with pytest.raises(CompileError) as caught:
        session.compile(b.build(product.tanh()), options=options)
    first, second, *_ = str(caught.value).split("\n")
    assert first == "fusion contract violated: 1 missed patterns"
    assert second == (
        "nodes=5→5 matmul=1→1 fused_mm_act=0 fused_swiglu=0 elementwise_region=0 missed_mm_act=1"
    )


def test_options_of_fusion() -> None:
    b = rlx.GraphBuilder("options")
    x, w, c = linear(b)
    graph = b.build((x @ w + c).relu())
    session = rlx.Session("interpret")

    def fused(**options: Any) -> bool:
        chosen = rlx.CompileOptions(fusion_target=FusionTarget.CPU, **options)
        found = session.compile(graph, options=chosen).report().fusion
        return found.counts["fused_matmul_bias_act"] == 1

    assert fused()
    assert not fused(fusion_opts=FusionOptions(skip_fusion=True))
    assert fused(supported_ops={"fused_matmul_bias_act", "add"})
    assert not fused(supported_ops={"add", "matmul", "broadcast_in_dim", "relu"})


def test_strict_leaves_roundings_where_they_are() -> None:
    b = rlx.GraphBuilder("strict")
    x, w, c = b.input("x", "bf16[2, 3]"), b.param("w", "bf16[3, 4]"), b.param("c", "bf16[4]")
    graph = b.build((x @ w + c).relu())
    session = rlx.Session("interpret")
    for strict in (False, True):
        options = rlx.CompileOptions(fusion_target=FusionTarget.CPU, strict=strict)
        counts = session.compile(graph, options=options).report().fusion.counts
        assert counts["fused_matmul_bias_act"] == (not strict)


def test_without_a_target_only_what_has_a_kernel_is_fused() -> None:
    b = rlx.GraphBuilder("kernels")
    x, w, c = linear(b)
    graph = b.build((x @ w + c).relu())

    def has(name: str) -> PassContext:
        return PassContext(has_kernel=lambda node: node.op.op_name == name)

    assert Fuse().run(graph, PassContext()) is graph
    assert Fuse().run(graph, has("dot_general")) is graph
    assert names(Fuse().run(graph, has("fused_matmul_bias_act"))) == ["fused_matmul_bias_act"]


def test_scalars_are_left_alone() -> None:
    b = rlx.GraphBuilder("scalars")
    graph = b.build(b.input("x", "f32[]") + b.input("y", "f32[]"))
    for target in (None, *FusionTarget):
        assert Fuse(target=target).run(graph, PassContext()) is graph


def test_sums_of_scalars_are_left_alone(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("scalars")
    x, y = b.input("x", "f32[]"), b.input("y", "f32[]")
    graph = b.build((x + y).relu())
    assert names(check(graph, rng)[0]) == ["add", "relu"]


def test_strict_joins_no_weights() -> None:
    graph = _gated(rlx.GraphBuilder("dual"))
    for strict in (False, True):
        ctx = PassContext(rlx.CompileOptions(strict=strict))
        made = Fuse(target=FusionTarget.CPU, staged=True).run(graph, ctx)
        assert ("concatenate" in names(made)) is not strict
