"""RLX's builder names for quantised compute: each makes its op, and means its formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import RegistryError
from rlx.quant import QuantScheme, ScaledFormat, ScaleLayout, pack, unpack

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Any], *arrays: Array) -> list[Array]:
    """Interpret what a builder method makes of arrays."""
    b = rlx.GraphBuilder()
    leaves = [b.input(f"x{i}", rlx.constant(a).type) for i, a in enumerate(arrays)]
    made = build(b, *leaves)
    graph = b.build(*(made if isinstance(made, tuple) else (made,)))
    return rlx.interpret(graph, {f"x{i}": a for i, a in enumerate(arrays)})


def test_quantize_and_back() -> None:
    x = np.float32([0, 34, 100, -500])
    codes = run(lambda b, v: b.quantize(v, 34.0, 16), x)[0]
    assert codes.tolist() == [16, 17, 19, 1]
    back = run(lambda b, v: b.dequantize(v, 34.0, 16), codes)[0]
    assert back.tolist() == [0, 34, 102, -510]


def test_by_channel(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 3)).astype(np.float32)
    scales, zeros = (0.01, 0.1, 1.0), (1, 2, 3)
    codes = run(lambda b, v: b.quantize_per_channel(v, 1, scales, zeros), x)[0]
    wanted = np.clip(np.rint(x / np.float32(scales)) + zeros, -128, 127)
    np.testing.assert_array_equal(codes, wanted)
    back = run(lambda b, v: b.dequantize_per_channel(v, 1, scales, zeros), codes)[0]
    np.testing.assert_allclose(back, (wanted - zeros) * scales, rtol=1e-6)


def test_fake_quantize_keeps_its_state_outside() -> None:
    x = np.float32([0.1, -0.7, 0.36])
    assert run(lambda b, v: b.fake_quantize(v, 4), x)[0] == pytest.approx([0.1, -0.7, 0.4])
    found = run(
        lambda b, v, s: b.fake_quantize(v, 4, state=s, scale_mode="ema", decay=0.5, ste="tanh"),
        x,
        np.float32([0.3]),
    )
    assert found[1] == pytest.approx([0.2])  # 0.5 · 0.3 + 0.5 · 0.1
    assert found[0] == pytest.approx([0.0, -0.8, 0.4])
    seeded = run(
        lambda b, v, s: b.fake_quantize(v, 4, state=s, scale_mode="ema"), x, np.float32([0])
    )
    assert seeded[1] == pytest.approx([0.1])
    fixed = run(
        lambda b, v, s: b.fake_quantize(v, 2, state=s, scale_mode="fixed"), x, np.float32([0.5])
    )
    assert fixed[0] == pytest.approx([0.0, -0.5, 0.5])
    with pytest.raises(RegistryError) as caught:
        run(lambda b, v: b.fake_quantize(v, ste="tan"), x)
    assert str(caught.value) == (
        "fake_quantize: ste: one of identity, clipped_identity, tanh, hard_tanh is required; "
        "got 'tan'. Did you mean 'tanh'?"
    )


def test_integer_products(rng: np.random.Generator) -> None:
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in ((2, 5), (5, 3)))
    bias = rng.integers(-99, 99, 3, dtype=np.int32)
    found = run(lambda b, *v: b.q_matmul(*v, x_zp=3, w_zp=-4, out_zp=5, mult=0.01), x, w, bias)[0]
    total = bias + (x.astype(int) - 3) @ (w.astype(int) + 4)
    np.testing.assert_array_equal(found, np.clip(np.rint(total * 0.01) + 5, -128, 127))
    image, kernel = rng.integers(-9, 9, (1, 2, 4, 4)), rng.integers(-9, 9, (3, 2, 1, 1))
    found = run(
        lambda b, *v: b.q_conv2d(*v, stride=(2, 2), mult=0.5),
        image.astype(np.int8), kernel.astype(np.int8), bias,
    )[0]  # fmt: skip
    total = np.einsum("nchw,oc->nohw", image[:, :, ::2, ::2], kernel[:, :, 0, 0])
    total = total + bias[:, None, None]
    np.testing.assert_array_equal(found, np.clip(np.rint(total * 0.5), -128, 127))


@pytest.mark.parametrize("name", ["gguf_q8_0", "int8a/32", "nvfp4/16", "mlx_affine/4/64"])
def test_packed_products(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    shape = (5, 128) if scheme.is_rows else (128, 5)
    tensors = [a for a in pack(scheme, rng.normal(size=shape).astype("f")) if a is not None]
    x = rng.normal(size=(3, 128)).astype(np.float32)
    numbers = unpack(scheme, *tensors)
    wanted = x @ (numbers.T if scheme.is_rows else numbers)
    found = run(lambda b, *v: b.dequant_matmul(*v, scheme=scheme), x, *tensors)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    if name == "gguf_q8_0":
        again = run(lambda b, *v: b.dequant_matmul_packed(*v, scheme), x, *tensors)[0]
        np.testing.assert_array_equal(again, found)
        rows = run(lambda b, *v: b.dequant_gather(*v, scheme=name), *tensors, np.int32([4, 0, 4]))[
            0
        ]
        np.testing.assert_array_equal(rows, numbers[[4, 0, 4]])
    if name == "nvfp4/16":
        again = run(lambda b, *v: b.dequant_matmul_nvfp4(*v), x, *tensors)[0]
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("layout", ["per_tensor", "mx/16"])
def test_scaled_products(layout: str, rng: np.random.Generator) -> None:
    form, way = ScaledFormat.F6E2M3, ScaleLayout.parse(layout)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((3, 32), (5, 32)))
    bias = rng.normal(size=5).astype(np.float32)

    def build(b: Any, x: Any, w: Any, bias: Any) -> tuple[Any, ...]:
        left, left_scale = b.scaled_quantize(x, form, way)
        right, right_scale = b.scaled_quantize(w, form, way)
        pair = (left, right, left_scale, right_scale)
        names = {"lhs_format": form, "rhs_format": form, "layout": way}
        return (
            b.scaled_dequantize(left, left_scale, form, way),
            b.scaled_dequantize(right, right_scale, form, way),
            b.scaled_matmul(*pair, **names),
            b.scaled_matmul_bias(*pair, bias, **names),
        )

    left, right, product, shifted = run(build, x, w, bias)
    assert 0 < np.abs(left - x).max() < 0.3
    np.testing.assert_allclose(product, left @ right.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(shifted, left @ right.T + bias, rtol=1e-5, atol=1e-5)


def test_learned_weights(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 6)).astype(np.float32)
    idx = rng.integers(0, 9, (4, 3), dtype=np.uint8)
    codebook = rng.normal(size=(9, 2)).astype(np.float32)
    weight = codebook[idx].reshape(4, 6)
    found = run(lambda b, *v: b.synth_matmul(*v), x, idx, codebook)[0]
    np.testing.assert_allclose(found, x @ weight.T, rtol=1e-5, atol=1e-5)
    codes = rng.integers(-128, 128, (9, 2)).astype(np.int8)
    scale = np.float32([0.1, 0.2])
    found = run(lambda b, *v: b.synth_matmul_qcodebook(*v), x, idx, codes, scale)[0]
    weight = (codes * scale)[idx].reshape(4, 6)
    np.testing.assert_allclose(found, x @ weight.T, rtol=1e-4, atol=1e-4)
    heights = rng.normal(size=(6, 5)).astype(np.float32)
    found = run(lambda b, *v: b.spline_activation(*v, -2.0, 2.0), x, heights)[0]
    centres = np.linspace(-2, 2, 5)
    wanted = (heights * np.exp(-((x[..., None] - centres) ** 2))).sum(-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
