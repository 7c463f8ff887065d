"""Quantised ops against formulas that are written out in NumPy, apart from the ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.ops.quantized import (
    DequantGather,
    DequantGroupedMatmul,
    DequantGroupedMatmulMlx,
    DequantMatmul,
    DequantMoeWeights,
    FakeQuantize,
    FakeQuantizeBackward,
    QConv2d,
    ScaledGroupedMatmul,
    ScaledMatmul,
    SteKind,
    SynthMatmulBackward,
    SynthWrt,
)
from rlx.quant import (
    QuantScheme,
    ScaledFormat,
    ScaleLayout,
    all_schemes,
    dequantize_scaled,
    pack,
    quantize_scaled,
    unpack,
)

Array = np.ndarray[Any, Any]


def packed(scheme: QuantScheme, rng: np.random.Generator, inner: int, outer: int) -> list[Array]:
    """Tensors of a packed matrix; random blocks where there is no encoder."""
    if scheme.is_gguf:
        shape = (outer, inner // scheme.block_size * scheme.block_bytes)
        return [rng.integers(0, 50, shape, dtype=np.uint8)]  # f16 scales below 0.001
    shape = (outer, inner) if scheme.is_rows else (inner, outer)
    made = pack(scheme, rng.normal(size=shape).astype(np.float32))
    return [a for a in made if a is not None]


def outputs_first(scheme: QuantScheme, tensors: list[Array], size: int) -> Array:
    flat = scheme.kind.value in ("int4", "nvfp4")
    numbers = unpack(scheme, *tensors, size=size if flat else 0)
    return numbers if scheme.is_rows else numbers.T


@pytest.mark.parametrize("scheme", all_schemes(), ids=str)
def test_packed_rows_and_products(scheme: QuantScheme, rng: np.random.Generator) -> None:
    tensors = packed(scheme, rng, 512, 5)
    wanted = outputs_first(scheme, tensors, 512)
    assert wanted.shape == (5, 512)
    indices = rng.integers(0, 5, (2, 3), dtype=np.int32)
    weight, *others = tensors
    rows = DequantGather(scheme=str(scheme)).evaluate(weight, indices, *others)
    np.testing.assert_array_equal(rows, wanted[indices])
    x = rng.normal(size=(2, 3, 512)).astype(np.float32)
    found = DequantMatmul(scheme=str(scheme)).evaluate(x, *tensors)
    exact = x.astype(np.float64) @ wanted.T.astype(np.float64)
    bound = 1e-6 * (np.abs(x).astype(np.float64) @ np.abs(wanted.T).astype(np.float64))
    assert (np.abs(found - exact) <= bound + 1e-12).all()


@pytest.mark.parametrize("name", ["int4/32", "nvfp4/16", "int8a/32"])
def test_odd_tables(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    weight, *others = packed(scheme, rng, 51, 7)
    numbers = unpack(scheme, weight, *others, size=51).T
    indices = np.array([6, 0, 3, -4, 99], np.int32)
    rows = DequantGather(scheme=name, size=51).evaluate(weight, indices, *others)
    np.testing.assert_array_equal(rows, numbers[[6, 0, 3, 0, 6]])


@pytest.mark.parametrize("rows", [2, 9])
def test_experts(rows: int, rng: np.random.Generator) -> None:
    scheme = QuantScheme.gguf("Q5_K")
    experts = [packed(scheme, rng, 256, 4)[0] for _ in range(3)]
    numbers = np.stack([unpack(scheme, e) for e in experts])
    slabs = np.stack(experts)
    moe = DequantMoeWeights(scheme=str(scheme)).evaluate(slabs)
    np.testing.assert_array_equal(moe, numbers.transpose(0, 2, 1))
    x = rng.normal(size=(rows, 256)).astype(np.float32)
    ids = rng.integers(0, 3, rows, dtype=np.int32)
    found = DequantGroupedMatmul(scheme=str(scheme)).evaluate(x, slabs, ids)
    wanted = np.einsum("mk,mnk->mn", x.astype(np.float64), numbers[ids].astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    mlx = QuantScheme.mlx_affine(5, 32)
    parts = [packed(mlx, rng, 64, 4) for _ in range(3)]
    stacked = [np.stack(t) for t in zip(*parts, strict=True)]
    numbers = np.stack([unpack(mlx, *p) for p in parts])
    x = x[:, :64]
    found = DequantGroupedMatmulMlx(scheme=str(mlx)).evaluate(x, *stacked, ids)
    wanted = np.einsum("mk,mnk->mn", x.astype(np.float64), numbers[ids].astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [((1, 1), (0, 0), (1, 1), 1), ((2, 1), (1, 2), (1, 2), 2), ((3, 2), (2, 0), (2, 1), 4)],
)
def test_q_conv2d(
    stride: Any, padding: Any, dilation: Any, groups: int, rng: np.random.Generator
) -> None:
    x = rng.integers(-128, 128, (2, 4, 9, 8)).astype(np.int8)
    w = rng.integers(-128, 128, (8, 4 // groups, 3, 2)).astype(np.int8)
    bias = rng.integers(-5000, 5000, 8, dtype=np.int32)
    x_zp, w_zp, out_zp, mult = 7, -3, 11, 0.0015
    op = QConv2d(
        stride=stride, padding=padding, dilation=dilation, groups=groups,
        x_zp=x_zp, w_zp=w_zp, out_zp=out_zp, mult=mult,
    )  # fmt: skip
    found = op.evaluate(x, w, bias)
    wide = np.pad(x.astype(int) - x_zp, [(0, 0), (0, 0), *((p, p) for p in padding)])
    kernel = w.astype(int) - w_zp
    total = np.zeros(found.shape, int)
    for n, o, i, j in np.ndindex(*found.shape):
        first = o // (8 // groups) * (4 // groups)
        for c, a, b in np.ndindex(*w.shape[1:]):
            place = (i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1])
            total[n, o, i, j] += wide[n, first + c, *place] * kernel[o, c, a, b]
    total += bias[:, None, None]
    scaled = total.astype(np.float32) * np.float32(mult)
    np.testing.assert_array_equal(found, np.clip(np.rint(scaled) + out_zp, -128, 127))


@pytest.mark.parametrize("layout", ["per_tensor", "per_row", "mx/32", "nvfp4"])
def test_scaled_products(layout: str, rng: np.random.Generator) -> None:
    lhs_format, rhs_format, way = ScaledFormat.F8E4M3, ScaledFormat.parse("f4e3m0"), layout
    made = ScaleLayout.parse(layout)
    names = {"lhs_format": str(lhs_format), "rhs_format": str(rhs_format), "layout": way}
    x, w = rng.normal(size=(5, 70)).astype("f"), rng.normal(size=(3, 4, 70)).astype("f")
    lhs, lhs_scale = quantize_scaled(x, lhs_format, made)
    rhs, rhs_scale = quantize_scaled(w, rhs_format, made)
    left = dequantize_scaled(lhs, lhs_scale, lhs_format, made).astype(np.float64)
    right = dequantize_scaled(rhs, rhs_scale, rhs_format, made).astype(np.float64)
    ids, bias = rng.integers(0, 3, 5, dtype=np.int32), rng.normal(size=(3, 4)).astype("f")
    found = ScaledGroupedMatmul(**names).evaluate(lhs, rhs, lhs_scale, rhs_scale, ids, bias)
    wanted = np.einsum("mk,mnk->mn", left, right[ids]) + bias[ids]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    one, one_scale = quantize_scaled(w[0], rhs_format, made)
    right = dequantize_scaled(one, one_scale, rhs_format, made).astype(np.float64)
    found = ScaledMatmul(**names).evaluate(lhs, one, lhs_scale, one_scale, bias[0])
    np.testing.assert_allclose(found, left @ right.T + bias[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bits", "most"), [(8, 127), (4, 7), (2, 1)])
def test_fake_quantize(bits: int, most: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 5, 3)).astype(np.float32)
    found = FakeQuantize(bits=bits, axis=1).evaluate(x)
    for channel in range(5):
        part = x[:, channel]
        scale = np.float32(np.abs(part).max()) / np.float32(most)
        steps = np.clip(np.rint(part / scale), -most, most)
        np.testing.assert_array_equal(found[:, channel], steps * scale)
    assert len(np.unique(FakeQuantize(bits=bits).evaluate(x))) <= 2 * most + 1
    zeros = FakeQuantize(bits=bits).evaluate(np.zeros((2, 2), np.float32))
    assert not zeros.any()


def test_estimators(rng: np.random.Generator) -> None:
    x, dy = (rng.normal(size=40).astype(np.float64) * 3 for _ in "xy")
    scale = np.array([0.4])
    reach = 7 * 0.4
    for ste, wanted in (
        (SteKind.IDENTITY, dy),
        (SteKind.CLIPPED_IDENTITY, dy * (np.abs(x) <= reach)),
        (SteKind.TANH, dy * (1 - np.tanh(x / 0.4) ** 2)),
        (SteKind.HARD_TANH, dy * np.maximum(0, 1 - np.abs(x / reach))),
    ):
        found = FakeQuantizeBackward(bits=4, ste=ste).evaluate(x, dy, scale)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_gradient_of_a_codebook(rng: np.random.Generator) -> None:
    x, dy = rng.normal(size=(5, 6)), rng.normal(size=(5, 4))
    idx = rng.integers(0, 12, (4, 3), dtype=np.uint8)  # some lie beyond the nine entries
    codebook = rng.normal(size=(9, 2))
    wanted = np.zeros((9, 2))
    weight = dy.T @ x
    for n, b in np.ndindex(4, 3):
        wanted[min(idx[n, b], 8)] += weight[n, 2 * b : 2 * b + 2]
    found = SynthMatmulBackward(wrt=SynthWrt.CODEBOOK).evaluate(x, idx, codebook, dy)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scheme", ["int8/999999999", "int4/999999999"])
def test_blocks_wider_than_what_there_is(scheme: str, rng: np.random.Generator) -> None:
    """A block size is only a claim: nothing of its size is made."""
    tensors = packed(QuantScheme.parse(scheme), rng, 4, 2)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    wanted = x @ unpack(QuantScheme.parse(scheme), *tensors, size=4)
    found = DequantMatmul(scheme=scheme).evaluate(x, *tensors)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    rows = DequantGather(scheme=scheme, size=4).evaluate(tensors[0], np.int64([1]), *tensors[1:])
    np.testing.assert_array_equal(rows, unpack(QuantScheme.parse(scheme), *tensors, size=4).T[[1]])
    layout = ScaleLayout.parse("mx/999999999")
    codes, scale = quantize_scaled(x, ScaledFormat.F8E4M3, layout)
    assert scale.shape == (3, 1)
    back = dequantize_scaled(codes, scale, ScaledFormat.F8E4M3, layout)
    np.testing.assert_allclose(back, x, atol=0.2)
