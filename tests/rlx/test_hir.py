"""HIR: blocks, fusion policies, labels, RLX's error texts, and modules from level to level."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import LoweringError, RegistryError, ShapeError, VerifyError
from rlx.ir.module import FusionPolicy, Stage
from rlx.ir.op import Level, Op, all_ops
from rlx.ops.activation_kinds import Activation
from rlx.ops.attention import MaskKind
from rlx.ops.blocks import (
    AttentionBlock,
    DepthwiseConv1dCausal,
    Linear,
    LinearFused,
    LlamaDecoderBlock,
    ResidualRmsNorm,
    SharedLinearPair,
    SwigluBlock,
)
from rlx.ops.blocks.forms import direct
from rlx.ops.position import RopeStyle
from tests.samples import blocks as samples

Array = np.ndarray[Any, Any]


def build(op: Op, *types: str, constants: tuple[Array, ...] = ()) -> rlx.Graph:
    b = rlx.GraphBuilder("block")
    leaves = [b.input(f"x{i}", t) for i, t in enumerate(types)]
    return b.build(op(*leaves, *map(rlx.constant, constants)))


def ops_of(graph: rlx.Graph) -> Counter[str]:
    return Counter(n.op.op_name for n in graph.nodes() if n.op.op_name not in ("input", "constant"))


def lowered(graph: rlx.Graph, policy: FusionPolicy) -> rlx.Graph:
    return rlx.Module.from_hir(graph, policy).into_mir().mir()


LINEAR = ("f32[2, 4]", "f32[4, 5]", "f32[5]")


def test_linear_by_policy() -> None:
    graph = build(Linear(has_bias=True, activation=Activation.GELU), *LINEAR)
    assert ops_of(lowered(graph, FusionPolicy.DIRECT)) == {"fused_matmul_bias_act": 1}
    plain = ops_of(lowered(graph, FusionPolicy.FUSABLE))
    assert plain == {"matmul": 1, "broadcast_in_dim": 1, "add": 1, "gelu": 1}
    graph = build(Linear(activation=Activation.RELU), *LINEAR[:2])
    for policy in FusionPolicy:
        assert ops_of(lowered(graph, policy)) == {"matmul": 1, "relu": 1}
    graph = build(LinearFused(), *LINEAR)
    for policy in FusionPolicy:
        assert ops_of(lowered(graph, policy)) == {"fused_matmul_bias_act": 1}


def test_swiglu_by_policy(rng: np.random.Generator) -> None:
    types = ("f32[2, 4]", "f32[4, 5]", "f32[4, 5]", "f32[5, 4]")
    graph = build(SwigluBlock(), *types)
    direct_ops = ops_of(lowered(graph, FusionPolicy.DIRECT))
    assert direct_ops == {"matmul": 3, "concatenate": 1, "fused_swiglu": 1}
    assert ops_of(lowered(graph, FusionPolicy.FUSABLE)) == {"matmul": 3, "silu": 1, "mul": 1}
    weights = [rng.uniform(-1, 1, s).astype(np.float32) for s in ((4, 5), (4, 5), (5, 4))]
    fixed = build(SwigluBlock(), types[0], constants=tuple(weights))
    joined = lowered(fixed, FusionPolicy.DIRECT)
    assert ops_of(joined) == {"matmul": 2, "concatenate": 1, "fused_swiglu": 1}
    concatenate = next(n for n in joined.nodes() if n.op.op_name == "concatenate")
    assert {v.node.op.op_name for v in concatenate.inputs} == {"constant"}


def test_shared_linear_pair_by_policy(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[2, 4]")
    w0, w1 = (rlx.constant(rng.uniform(-1, 1, (4, n)).astype(np.float32)) for n in (3, 5))
    pair = [SharedLinearPair(slot=slot)(x, w0, w1) for slot in (0, 1)]
    graph = b.build(*pair)
    mir = lowered(graph, FusionPolicy.DIRECT)
    merged = rlx.passes.run(mir, [rlx.passes.EliminateCommonSubexpressions()])
    assert ops_of(merged) == {"concatenate": 1, "matmul": 1, "split": 1}
    assert ops_of(lowered(graph, FusionPolicy.FUSABLE)) == {"matmul": 2}
    feed = {"x": rng.uniform(-1, 1, (2, 4)).astype(np.float32)}
    for found, wanted in zip(rlx.interpret(merged, feed), rlx.interpret(graph, feed), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_residual_norm_by_policy() -> None:
    graph = build(ResidualRmsNorm(), "f32[2, 4]", "f32[2, 4]", "f32[4]", "f32[4]")
    direct_ops = ops_of(lowered(graph, FusionPolicy.DIRECT))
    assert direct_ops == {"fused_residual_rms_norm": 1}
    assert ops_of(lowered(graph, FusionPolicy.FUSABLE)) == {"add": 1, "rms_norm": 1}


def test_attention_and_convolution() -> None:
    q = "f32[1, 3, 2, 4]"
    graph = build(AttentionBlock(num_heads=2, head_dim=4), q, q, q)
    conv = build(DepthwiseConv1dCausal(kernel_size=2), "f32[1, 3, 2]", "f32[2, 2]", "f32[1, 1, 2]")
    for policy in FusionPolicy:
        assert ops_of(lowered(graph, policy)) == {"attention": 1}
        assert ops_of(lowered(conv, policy))["conv"] == 1


def test_the_other_name_of_fusable() -> None:
    assert FusionPolicy.for_autodiff() is FusionPolicy.FUSABLE


def test_the_policies_mean_the_same(rng: np.random.Generator) -> None:
    seen: set[str] = set()
    for sample in samples.samples(rng):
        if sample.inputs[0].dtype != np.float64:
            continue
        seen.add(sample.op.op_name)
        b = rlx.GraphBuilder()
        leaves = [
            b.input(f"x{i}", rlx.TensorType(rlx.DType(_dtype(a)), a.shape))
            for i, a in enumerate(sample.inputs)
        ]
        graph = b.build(sample.op(*leaves))
        feeds = {f"x{i}": a for i, a in enumerate(sample.inputs)}
        one, two = (rlx.interpret(lowered(graph, p), feeds)[0] for p in FusionPolicy)
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12)
    blocks = {n for n, op in all_ops().items() if op.level is Level.HIR}
    assert seen == blocks - {"llama_decoder_block"}


def _dtype(array: Array) -> Any:
    from rlx.dtypes import as_dtype

    return as_dtype(array.dtype).value


@pytest.mark.parametrize(
    ("op", "types", "text"),
    [
        (Linear(has_bias=True), LINEAR[:2], "linear: bias input required"),
        (Linear(), LINEAR[:1], "linear: expected 2 inputs, got 1"),
        (Linear(), LINEAR, "linear: expected 2 inputs, got 3"),
        (Linear(has_bias=True), LINEAR[:1], "linear: expected 3 inputs, got 1"),
        (LinearFused(), LINEAR[:2], "linear_fused: bias input required"),
        (LinearFused(), LINEAR[:1], "linear_fused: expected 3 inputs, got 1"),
        (SharedLinearPair(slot=0), LINEAR[:2], "shared_linear_pair: expected 3 inputs, got 2"),
        (SwigluBlock(), LINEAR[:2], "swiglu_block: expected 4 inputs, got 2"),
        (ResidualRmsNorm(), LINEAR[:1], "residual_rms_norm: expected 4 inputs, got 1"),
        (
            AttentionBlock(num_heads=1, head_dim=4),
            ("f32[1, 2, 1, 4]",) * 4,
            "attention_block: expected 3 inputs, got 4",
        ),
        (
            AttentionBlock(num_heads=1, head_dim=4, mask_kind=MaskKind.CUSTOM),
            ("f32[1, 2, 1, 4]",) * 3,
            "attention_block: expected 4 inputs, got 3",
        ),
        (
            DepthwiseConv1dCausal(kernel_size=2),
            ("f32[1, 2, 4]",),
            "depthwise_conv1d_causal: expected 3 inputs, got 1",
        ),
        (
            LlamaDecoderBlock(num_heads=1, num_kv_heads=1, head_dim=4),
            ("f32[1, 2, 4]", "f32[4]"),
            "llama_decoder_block: expected 14 inputs, got 2",
        ),
        (
            LlamaDecoderBlock(num_heads=1, num_kv_heads=1, head_dim=4, mask_kind=MaskKind.CUSTOM),
            ("f32[1, 2, 4]",),
            "llama_decoder_block: expected 15 inputs, got 1",
        ),
    ],
)
def test_inputs_are_counted_when_a_block_is_lowered(
    op: Op, types: tuple[str, ...], text: str
) -> None:
    graph = build(op, *types)
    for policy in FusionPolicy:
        with pytest.raises(LoweringError) as caught:
            rlx.Module.from_hir(graph, policy).into_mir()
        assert str(caught.value) == text
    with pytest.raises(LoweringError, match=re.escape(text)):
        rlx.Session("interpret").compile_hir(graph)


def test_more_inputs_than_a_block_knows_are_refused_at_once() -> None:
    with pytest.raises(ShapeError, match="linear: required 1 to 3 inputs"):
        build(Linear(), *LINEAR, "f32[5]")


def llama(x: Array, w: list[Array], heads: int, groups: int, eps: float, seen: Array) -> Array:
    """One decoder layer, head by head, in float64; pairs (i, i + D / 2)."""
    g1, b1, to_q, to_k, to_v, to_out, g2, b2, gate, up, down, cos, sin = w

    def norm(a: Array, gamma: Array, beta: Array) -> Array:
        return a / np.sqrt((a * a).mean(-1, keepdims=True) + eps) * gamma + beta

    def turn(a: Array) -> Array:
        half = a.shape[-1] // 2
        z = (a[..., :half] + 1j * a[..., half:]) * (cos + 1j * sin)
        return np.concatenate([z.real, z.imag], axis=-1)

    n, width = norm(x, g1, b1), to_q.shape[1] // heads
    out = np.zeros((*x.shape[:2], heads * width))
    for h in range(heads):
        kv = h // (heads // groups)
        q, k, v = (
            n @ m[:, i * width : (i + 1) * width] for m, i in ((to_q, h), (to_k, kv), (to_v, kv))
        )
        scores = turn(q) @ turn(k).swapaxes(1, 2) / np.sqrt(width)
        weights = np.exp(np.where(seen, scores, -np.inf))
        out[..., h * width : (h + 1) * width] = weights / weights.sum(-1, keepdims=True) @ v
    middle = x + out @ to_out
    n = norm(middle, g2, b2)
    gated = n @ gate
    return middle + gated / (1 + np.exp(-gated)) * (n @ up) @ down


@pytest.mark.parametrize("policy", FusionPolicy)
@pytest.mark.parametrize("masked", [False, True])
def test_llama_decoder_block(rng: np.random.Generator, policy: FusionPolicy, masked: bool) -> None:
    op = LlamaDecoderBlock(
        num_heads=4, num_kv_heads=2, head_dim=6, eps=1e-4,
        mask_kind=MaskKind.CUSTOM if masked else MaskKind.CAUSAL,
    )  # fmt: skip
    arrays = samples.llama_arrays(rng, op, rlx.DType.F64, 2, 5, 7, 9)
    seen = np.tril(np.ones((5, 5), bool))
    if masked:
        seen = rng.integers(0, 2, (2, 5, 5)).astype(bool) | np.eye(5, dtype=bool)
        arrays.append(seen[:, None])
    names = [f"x{i}" for i in range(len(arrays))]
    types = [f"{'bool' if a.dtype == bool else 'f64'}{list(a.shape)}" for a in arrays]
    mir = lowered(build(op, *types), policy)
    found = rlx.interpret(mir, dict(zip(names, arrays, strict=True)))[0]
    wanted = llama(arrays[0], arrays[1:14], 4, 2, 1e-4, seen)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)
    assert ops_of(mir)["attention"] == 1
    assert ops_of(mir)["rope"] == 2


def test_a_decoder_block_with_other_pairs_and_a_part_turned(rng: np.random.Generator) -> None:
    op = LlamaDecoderBlock(
        num_heads=2, num_kv_heads=1, head_dim=6, n_rot=4, rope_style=RopeStyle.GPTJ
    )
    types = [f"f64{list(shape)}" for shape in samples.llama_shapes(op, 1, 3, 5, 4)]
    mir = lowered(build(op, *types), FusionPolicy.DIRECT)
    ropes = [n.op.attributes() for n in mir.nodes() if n.op.op_name == "rope"]
    assert [(r["n_rot"], r["style"]) for r in ropes] == [(4, RopeStyle.GPTJ)] * 2


def test_depthwise_convolution_looks_back_only(rng: np.random.Generator) -> None:
    x, w, past = (rng.uniform(-1, 1, s) for s in ((2, 5, 3), (3, 4), (2, 3, 3)))
    whole = np.concatenate([past, x], axis=1)
    wanted = sum(whole[:, k : k + 5] * w[:, k] for k in range(4))
    found = DepthwiseConv1dCausal(kernel_size=4).evaluate(x, w, past)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    flat = DepthwiseConv1dCausal(kernel_size=4).evaluate(x, w[:, None], past)
    np.testing.assert_array_equal(flat, found)


def test_nodes_carry_the_label_of_their_block() -> None:
    b = rlx.GraphBuilder()
    op = LlamaDecoderBlock(num_heads=1, num_kv_heads=1, head_dim=4)
    shapes = samples.llama_shapes(op, 1, 2, 4, 3)
    leaves = [b.input(f"x{i}", f"f32{list(s)}") for i, s in enumerate(shapes)]
    with b.scope("layers/0"):
        made = op(*leaves)
    mir = lowered(b.build(made), FusionPolicy.DIRECT)
    labels = {n.op.op_name: n.location.label for n in mir.nodes()}
    assert labels["attention"] == "layers/0/llama_decoder_block"
    assert labels["fused_swiglu"] == "layers/0/llama_decoder_block/swiglu_block"
    linear = {n.location.label for n in mir.nodes() if n.op.op_name == "matmul"}
    assert "layers/0/llama_decoder_block/linear" in linear
    files = {Path(n.location.file).name for n in mir.nodes() if n.op.op_name != "input"}
    assert files == {Path(__file__).name}


def test_blocks_in_a_loop_are_lowered(rng: np.random.Generator) -> None:
    w, bias = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((3, 3), (3,)))
    x = rlx.ops.Input(name="x", dtype=rlx.DType.F32, shape=(2, 3))()
    layer = Linear(has_bias=True)(x, rlx.constant(w), rlx.constant(bias))
    body = rlx.Graph((x,), (), (layer,), name="body")
    b = rlx.GraphBuilder()
    made = rlx.ops.Call(body=body)(b.input("x", "f32[2, 3]"))
    graph = b.build(made)
    mir = lowered(graph, FusionPolicy.DIRECT)
    names = {n.op.op_name for g in mir.all_graphs() for n in g.nodes()}
    assert "fused_matmul_bias_act" in names
    assert "linear" not in names


def test_levels() -> None:
    graph = build(Linear(), *LINEAR[:2])
    module = rlx.Module.from_hir(graph)
    assert (module.stage, module.fusion_policy) == (Stage.HIR, FusionPolicy.DIRECT)
    assert module.hir() is graph
    assert module.into_hir() is module
    with pytest.raises(
        LoweringError,
        match=r"^Module\.mir: a module at mir is required; this one is at hir\. "
        r"Call into_mir\(\) first\.$",
    ):
        module.mir()
    mir = module.lower()
    assert mir.stage is Stage.MIR
    assert mir.lower() is mir
    with pytest.raises(LoweringError, match=r"Module\.hir: .* this one is at mir"):
        mir.hir()
    assert mir.into_hir().hir() is mir.graph
    lir = module.into_lir(rlx.Session("interpret"))
    assert lir.stage is Stage.LIR
    assert lir.into_lir() is lir
    assert lir.lower() is lir
    assert lir.lir is not None
    assert lir.lir.plan.platform == "numpy"
    assert lir.into_mir().mir() is lir.graph


def test_the_policy_stays_from_level_to_level() -> None:
    module = rlx.Module.from_hir(build(Linear(has_bias=True), *LINEAR))
    fusable = module.with_fusion_policy(FusionPolicy.FUSABLE)
    assert fusable.hir() is module.hir()
    assert "add" in ops_of(fusable.into_mir().mir())
    for other in (fusable.into_mir(), fusable.into_lir(rlx.Session("interpret"))):
        assert other.fusion_policy is FusionPolicy.FUSABLE
        assert other.into_hir().fusion_policy is FusionPolicy.FUSABLE


def test_define_with_a_policy() -> None:
    def layer(b: rlx.GraphBuilder) -> rlx.Value:
        leaves = [b.input(f"x{i}", t) for i, t in enumerate(LINEAR)]
        return Linear(has_bias=True)(*leaves)

    module = rlx.Module.define("layer", layer, FusionPolicy.FUSABLE)
    assert ops_of(module.into_mir().mir())["matmul"] == 1
    assert ops_of(rlx.Module.define("layer", layer).into_mir().mir())["matmul"] == 0


def test_names_and_dtypes_at_the_boundary() -> None:
    b = rlx.GraphBuilder()
    x, w = b.input("x", "bf16[2, 4]"), b.param("w", "bf16[4, 5]")
    module = rlx.Module.from_hir(b.build(Linear()(x, w).convert("f32")))
    assert module.io_dtypes() == [("x", rlx.DType.BF16), ("w", rlx.DType.BF16)]
    assert module.into_mir().io_dtypes() == module.io_dtypes()


def test_inspect() -> None:
    module = rlx.Module.from_hir(build(Linear(has_bias=True), *LINEAR))
    text = module.inspect()
    assert text.splitlines()[0] == "module 'block' at hir, fusion policy direct"
    assert "linear ×1" in text.splitlines()[1]
    assert text.endswith(str(module.graph))
    lir = module.into_lir(rlx.Session("interpret")).inspect()
    assert "at lir" in lir
    assert "platform: numpy" in lir


def test_a_module_is_no_graph() -> None:
    module = rlx.Module.from_hir(build(Linear(), *LINEAR[:2]))
    with pytest.raises(
        VerifyError,
        match=r"a Graph is required; got Module\. For a traced function give traced\.graph\.",
    ):
        rlx.interpret(module, {})  # type: ignore[arg-type]
    with pytest.raises(
        VerifyError,
        match=r"a Graph is required; got Module\. For a traced function give traced\.graph\.",
    ):
        rlx.verify(module)  # type: ignore[arg-type]


def test_hir_prints_parses_and_saves(tmp_path: Path) -> None:
    graph = build(Linear(has_bias=True, activation=Activation.SILU), *LINEAR)
    assert rlx.same(rlx.parse(str(graph)), graph)
    rlx.save(graph, tmp_path / "block.rlx")
    assert rlx.same(rlx.load(tmp_path / "block.rlx"), graph)


def test_hir_compiles_with_symbolic_sizes(rng: np.random.Generator) -> None:
    graph = build(Linear(has_bias=True), "f32[b, 4]", *LINEAR[1:])
    compiled = rlx.Session("interpret").compile_hir(graph)
    for batch in (1, 3):
        arrays = [rng.uniform(-1, 1, s).astype(np.float32) for s in ((batch, 4), (4, 5), (5,))]
        found = compiled.run({f"x{i}": a for i, a in enumerate(arrays)})[0]
        np.testing.assert_allclose(found, arrays[0] @ arrays[1] + arrays[2], rtol=1e-5, atol=1e-6)


def test_a_graph_with_blocks_compiles_as_it_is(rng: np.random.Generator) -> None:
    graph = build(Linear(has_bias=True), *LINEAR)
    arrays = [rng.uniform(-1, 1, s).astype(np.float32) for s in ((2, 4), (4, 5), (5,))]
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    found = rlx.Session("interpret").compile(graph).run(feeds)[0]
    np.testing.assert_allclose(found, arrays[0] @ arrays[1] + arrays[2], rtol=1e-5, atol=1e-6)


HIR_OPS: dict[str, str] = {
    "Input": "Input",
    "Param": "Param",
    "Constant": "Constant",
    "Linear": "Linear",
    "LinearFused": "LinearFused",
    "SharedLinearPair": "SharedLinearPair",
    "SwiGLU": "SwigluBlock",
    "ResidualRmsNorm": "ResidualRmsNorm",
    "Attention": "AttentionBlock",
    "DepthwiseConv1dCausal": "DepthwiseConv1dCausal",
    "DequantMatMul": "DequantMatmul",
    "GatedDeltaNet": "GatedDeltaNet",
    "RoPE": "Rope",
    "RmsNorm": "RmsNorm",
    "LlamaDecoderBlock": "LlamaDecoderBlock",
}
"""RLX's HirOp → our op. Mir(Op) is any op; Qwen35MtpHead has 29 inputs that RLX names nowhere."""


def test_every_hir_op_has_an_op_here() -> None:
    assert set(HIR_OPS.values()) <= set(dir(rlx.ops))
    blocks = {op.__name__ for op in all_ops().values() if op.level is Level.HIR}
    assert blocks <= set(HIR_OPS.values())


def test_a_block_has_one_direct_form() -> None:
    with pytest.raises(RegistryError, match=r"direct: Linear has a form, rlx\.ops\.blocks\.linear"):
        direct(Linear)(lambda op, *inputs: inputs[0])
