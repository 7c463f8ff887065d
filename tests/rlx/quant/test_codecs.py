"""Codecs: round trips, refused sizes, and the gguf package's own, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.quant import QuantScheme, all_schemes, decode, encode, pack, unpack

Array = np.ndarray[Any, Any]

GGUF = [s for s in all_schemes() if s.is_gguf]
ENCODED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]

# Root mean square errors of normal numbers, in units of their deviation: a little above what the
# width of the codes allows, so that a wrong bit is seen.
ERRORS = {
    "Q4_0": 0.1, "Q4_1": 0.09, "Q5_0": 0.05, "Q5_1": 0.045, "Q8_0": 0.007, "Q4_K": 0.08,
    "Q5_K": 0.04, "Q6_K": 0.02, "int8/32": 0.007, "int8a/32": 0.007, "int4/32": 0.1,
    "fp8e4m3": 0.03, "fp8e5m2": 0.06, "nvfp4/16": 0.11, "mlx_affine/4/64": 0.11,
    "mlx_mxfp4/32": 0.14, "mlx_mxfp8/32": 0.03, "mxfp4x2/32": 0.02, "mlx_affine/3/64": 0.23,
    "mlx_affine/6/32": 0.03,
}  # fmt: skip


@pytest.mark.parametrize("scheme", GGUF, ids=str)
def test_decoders_are_those_of_the_gguf_package(
    scheme: QuantScheme, rng: np.random.Generator
) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    kind = gguf.GGMLQuantizationType[scheme.gguf_type]
    assert int(kind) == scheme.gguf_number
    assert gguf.GGML_QUANT_SIZES[kind] == (scheme.block_size, scheme.block_bytes)
    if scheme.gguf_type == "Q8_K":
        pytest.skip("the package does not decode Q8_K")
    packed = rng.integers(0, 256, (9, 30 * scheme.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random scales overflow and are NaN
        wanted = gguf.quants.dequantize(packed, kind)
    found = decode(scheme, packed)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


@pytest.mark.parametrize("name", ENCODED[:5])
def test_encoders_err_no_more_than_the_gguf_package(name: str, rng: np.random.Generator) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    scheme, kind = QuantScheme.gguf(name), gguf.GGMLQuantizationType[name]
    for x in (rng.normal(size=(9, 256)), rng.normal(size=(9, 256)) ** 3 + 1, np.zeros((1, 32))):
        wide = x.astype(np.float32)
        theirs = gguf.quants.dequantize(gguf.quants.quantize(wide, kind), kind)
        ours = decode(scheme, encode(scheme, wide))
        # For one scale, nearest codes are best for each element.
        assert (np.abs(ours - wide) <= np.abs(theirs - wide) * (1 + 1e-6)).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_reads_and_writes_the_same_words(bits: int, rng: np.random.Generator) -> None:
    mlx = pytest.importorskip("mlx.core", reason="mlx is not installed")
    mlx.set_default_device(mlx.cpu)
    scheme, sizes = QuantScheme.mlx_affine(bits, 64), {"group_size": 64, "bits": bits}
    x = rng.normal(size=(6, 256)).astype(np.float32)
    theirs = mlx.quantize(mlx.array(x), **sizes)
    wanted = np.array(mlx.dequantize(*theirs, **sizes))
    np.testing.assert_array_equal(unpack(scheme, *map(np.array, theirs)), wanted)
    ours = pack(scheme, x)
    found = np.array(mlx.dequantize(*map(mlx.array, ours), **sizes))
    np.testing.assert_array_equal(found, unpack(scheme, *ours))
    assert np.linalg.norm(found - x) < 1.01 * np.linalg.norm(wanted - x)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_mlx_reads_the_same_small_floats(name: str, rng: np.random.Generator) -> None:
    mlx = pytest.importorskip("mlx.core", reason="mlx is not installed")
    mlx.set_default_device(mlx.cpu)
    x = rng.normal(size=(6, 256)).astype(np.float32)
    theirs = mlx.quantize(mlx.array(x), mode=name)
    wanted = np.array(mlx.dequantize(*theirs, mode=name).astype(mlx.float32))
    scheme = QuantScheme.parse(f"mlx_{name}/32")
    np.testing.assert_array_equal(unpack(scheme, *map(np.array, theirs)), wanted)


@pytest.mark.parametrize("name", ENCODED)
def test_gguf_encoders(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.gguf(name)
    x = rng.normal(size=(33, 512)).astype(np.float32)
    packed = encode(scheme, x)
    assert packed.shape == (33, 512 // scheme.block_size * scheme.block_bytes)
    assert np.sqrt(np.mean((decode(scheme, packed) - x) ** 2)) < ERRORS[name]
    zeros = np.zeros((2, 256), np.float32)
    assert not decode(scheme, encode(scheme, zeros)).any()


@pytest.mark.parametrize("name", [n for n in ERRORS if n not in ENCODED])
def test_packing(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    x = rng.normal(size=(64, 256) if scheme.is_rows else (256, 64)).astype(np.float32)
    back = unpack(scheme, *pack(scheme, x))
    assert back.shape == x.shape
    assert np.sqrt(np.mean((back - x) ** 2)) < ERRORS[name]


@pytest.mark.parametrize("name", ["int8/32", "int8a/7", "int4/5", "nvfp4/16"])
def test_packing_blocks_that_are_not_full(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    x = rng.normal(size=(51, 3)).astype(np.float32)
    back = unpack(scheme, *pack(scheme, x), size=51)
    assert back.shape == x.shape
    assert np.abs(back - x).max() < 0.8


def test_formulas_of_flat_nibbles() -> None:
    """[K, N] = [3, 3] in five bytes: even places low, (q − z) · s by block of two rows."""
    codes = np.arange(9, dtype=np.uint8)
    weight = np.array([0x10, 0x32, 0x54, 0x76, 0x08], np.uint8)
    scale = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    zero = np.array([[0, 1, 0], [2, 0, 0]], np.float32)
    rows = np.array([0, 0, 1])
    wanted = (codes.reshape(3, 3) - zero[rows]) * scale[rows]
    found = unpack(QuantScheme.int4_block(2), weight, scale, zero, size=3)
    np.testing.assert_array_equal(found, wanted)


def test_formula_of_nvfp4() -> None:
    """E2M1 with a sign bit, low nibble first; E4M3 scales, NaN as 0; one scale for all."""
    weight = np.array([0x21, 0x9F], np.uint8)  # 0.5, 1 | −6, −0.5
    scale = np.array([[0x38, 0x7F]], np.uint8)  # 1, NaN
    found = unpack(QuantScheme.nvfp4_block(), weight, scale, np.float32([3]), size=2)
    np.testing.assert_array_equal(found, [[1.5, 0], [-18, -0.0]])


def test_fp8_e4m3_is_ocp() -> None:
    """Exponent 15 holds numbers up to 448; only all ones is NaN."""
    weight = np.array([[0x78, 0x7E, 0x7F]], np.uint8)
    found = unpack(QuantScheme.fp8_e4m3(), weight)
    np.testing.assert_array_equal(found, [[256, 448, np.nan]])
    scaled = unpack(QuantScheme.fp8_e4m3(), weight, np.float32([2, 1, 1]))
    assert scaled[0, 0] == 512


def test_q8_k_has_292_bytes() -> None:
    """Two blocks of 256 are 584 bytes; the sums at the end are ignored."""
    scheme = QuantScheme.gguf("Q8_K")
    block = np.zeros(584, np.uint8)
    block[:4] = np.array([0.5], np.float32).view(np.uint8)
    block[4:260] = np.arange(256, dtype=np.uint8)
    block[260:292] = 77
    found = decode(scheme, block)
    np.testing.assert_array_equal(found[:256], np.arange(256, dtype=np.uint8).view(np.int8) * 0.5)
    assert not found[256:].any()


def test_wide_rows_are_decoded_in_parts(rng: np.random.Generator) -> None:
    scheme = QuantScheme.gguf("Q4_0")
    packed = rng.integers(0, 60, (3, 40_000 * 18), dtype=np.uint8)
    parts = [decode(scheme, packed[:, i : i + 18]) for i in (0, 18 * 20_000, 18 * 39_999)]
    found = decode(scheme, packed)
    for at, part in zip((0, 20_000, 39_999), parts, strict=True):
        np.testing.assert_array_equal(found[:, at * 32 : at * 32 + 32], part)


@pytest.mark.parametrize("scheme", [s for s in all_schemes() if not s.is_gguf], ids=str)
def test_work_in_parts_gives_the_same(
    scheme: QuantScheme, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rng.normal(size=(7, 128) if scheme.is_rows else (99, 7)).astype(np.float32)
    size = 99 if scheme.kind.value in ("int4", "nvfp4") else 0
    whole = pack(scheme, x)
    numbers = unpack(scheme, *whole, size=size)
    for module in ("packed", "encoding", "scaled", "minifloat"):
        monkeypatch.setattr(f"rlx.quant.{module}._CHUNK_ELEMENTS", 300)
    for found, wanted in zip(pack(scheme, x), whole, strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(unpack(scheme, *whole, size=size), numbers)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: decode(QuantScheme.gguf("Q4_K"), np.zeros(143, np.uint8)),
            ShapeError,
            "decode gguf_q4k: the last axis is required to hold whole blocks of 144 bytes; got "
            "u8[143]. Check the type and that nothing is cut off.",
        ),
        (
            lambda: decode(QuantScheme.gguf("Q4_K"), np.zeros(144, np.int8)),
            DTypeError,
            "decode gguf_q4k: packed is required to be u8; got int8.",
        ),
        (
            lambda: decode(QuantScheme.int8_block(), np.zeros(144, np.uint8)),
            RlxError,
            "decode: a GGUF scheme is required; got int8/32. Use unpack.",
        ),
        (
            lambda: encode(QuantScheme.gguf("Q4_0"), np.zeros((2, 33), np.float32)),
            ShapeError,
            "encode gguf_q4_0: the last axis is required to be a multiple of 32; got [2, 33]. "
            "Pad it, or choose a scheme with smaller blocks.",
        ),
        (
            lambda: encode(QuantScheme.gguf("Q4_0"), np.full(32, np.nan, np.float32)),
            RlxError,
            "encode gguf_q4_0: x is required to be finite; it holds NaN or infinity. "
            "Look for what made it so.",
        ),
        (
            lambda: encode(QuantScheme.gguf("Q4_0"), np.zeros(32, np.int32)),
            DTypeError,
            "encode gguf_q4_0: x is required to be floating; got int32.",
        ),
        (
            lambda: encode(QuantScheme.gguf("IQ2_S"), np.zeros(256, np.float32)),
            RlxError,
            "encode: one of gguf_q4_0, gguf_q4_1, gguf_q5_0, gguf_q5_1, gguf_q8_0, gguf_q4k, "
            "gguf_q5k, gguf_q6k is required; got gguf_iq2s. Use pack for others.",
        ),
        (
            lambda: pack(QuantScheme.mlx_affine(), np.zeros((2, 65), np.float32)),
            ShapeError,
            "pack mlx_affine/4/64: K is required to be a multiple of 64; got [N, K] = [2, 65]. "
            "Pad it, or choose a smaller group.",
        ),
        (
            lambda: pack(QuantScheme.int8_block(), np.zeros(64, np.float32)),
            ShapeError,
            "pack int8/32: a matrix is required; got [64]. Reshape it.",
        ),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
