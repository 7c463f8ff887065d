"""The kernel of products with packed weights: refusals, hostile weights, memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import DType, as_dtype
from rlx.errors import RlxError, RunError, ShapeError
from rlx.ops.quantized import DequantMatmul, DequantMatmulInt8
from rlx.quant import QuantScheme, pack, unpack
from rlx.types import TensorType, as_type
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.select import kernels_for
from tests.samples.quantized_blocks import gguf_rows

NAMES = ("gguf_q8_0", "gguf_q4_0", "gguf_q4_1", "gguf_q5_0", "gguf_q5_1", "gguf_q4k", "gguf_q5k",
         "gguf_q6k", "int8/32", "int4/32", "fp8e4m3", "fp8e5m2", "nvfp4/16", "mlx_affine/3/32",
         "mlx_affine/4/64", "mlx_mxfp4/32", "mlx_mxfp8/64", "mxfp4x2/32")  # fmt: skip

GRIDS = ("gguf_iq1s", "gguf_iq1m", "gguf_iq2xxs", "gguf_iq2xs", "gguf_iq2s", "gguf_iq3xxs",
         "gguf_iq3s", "gguf_tq1_0")  # fmt: skip
"""Schemes that have no encoder here: their blocks are drawn."""

DRAWN = ("gguf_iq4nl", "gguf_mxfp4")
"""The same, of one scale for 32 numbers."""


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _graph(name: str, x: Any, tensors: tuple[Any, ...]) -> rlx.Graph:
    b = rlx.GraphBuilder("product")
    weights = [
        b.param(n, TensorType(as_dtype(t.dtype), t.shape))
        for n, t in zip(("weight", "scale", "zero"), tensors, strict=False)
    ]
    given = b.input("x", TensorType(as_dtype(x.dtype), x.shape))
    return b.build(DequantMatmul(scheme=name)(given, *weights))


@pytest.mark.parametrize("name", NAMES)
def test_a_quantised_matrix_stays_packed(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    w = rng.normal(size=(512, 1024) if scheme.is_rows else (1024, 512)).astype(np.float32)
    tensors = tuple(t for t in pack(scheme, w) if t is not None)
    numbers = unpack(scheme, *tensors, size=1024)
    x = rng.normal(size=(int(rng.choice([3, 40, 260])), 1024)).astype(np.float32)
    graph = _graph(name, x, tensors)
    compiled = rlx.Session("cpu").compile(graph)
    compiled.set_params(dict(zip(("weight", "scale", "zero"), tensors, strict=False)))
    (found,) = compiled.run({"x": x})
    wanted = x.astype(np.float64) @ (numbers.T if scheme.is_rows else numbers)
    np.testing.assert_allclose(found, wanted, atol=2e-4, rtol=2e-5)
    (choice,) = compiled.report().choices
    assert choice.implementation == "dequant_matmul.cpu.ffi"
    assert compiled.memory()["temp"] < 1 << 20


@pytest.mark.parametrize("name", GRIDS)
def test_blocks_of_grids_stay_packed(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    blocks = gguf_rows(rng, scheme, 37, 768)
    numbers = unpack(scheme, blocks).astype(np.float64)
    for rows in (1, int(rng.integers(2, 40))):  # in registers, and a tile at a time
        x = rng.normal(size=(rows, 768)).astype(np.float32)
        compiled = rlx.Session("cpu").compile(_graph(name, x, (blocks,)))
        compiled.set_params({"weight": blocks})
        (found,) = compiled.run({"x": x})
        (choice,) = compiled.report().choices
        assert choice.implementation == "dequant_matmul.cpu.ffi"
        assert compiled.memory()["temp"] < 1 << 20
        most = 1e-6 * (np.abs(x) @ np.abs(numbers.T))
        assert (np.abs(found - x @ numbers.T) <= most).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_rows_of_mlx(bits: int, rng: np.random.Generator) -> None:
    scheme = QuantScheme.mlx_affine(bits, int(rng.choice([32, 64, 128])))
    w = rng.normal(size=(37, 768)).astype(np.float32)
    codes, *others = (t for t in pack(scheme, w) if t is not None)
    for rows, dtype in ((1, "f32"), (int(rng.integers(2, 40)), str(rng.choice(["bf16", "f16"])))):
        tensors = (codes, *(t.astype(as_dtype(dtype).numpy) for t in others))
        numbers = unpack(scheme, *tensors).astype(np.float64)
        x = rng.normal(size=(rows, 768)).astype(np.float32)
        compiled = rlx.Session("cpu").compile(_graph(str(scheme), x, tensors))
        compiled.set_params(dict(zip(("weight", "scale", "zero"), tensors, strict=True)))
        (found,) = compiled.run({"x": x})
        (choice,) = compiled.report().choices
        assert choice.implementation == "dequant_matmul.cpu.ffi"
        most = np.abs(x) @ (np.abs(numbers.T) + 1)  # a code's product with its scale may be larger
        assert (np.abs(found - x @ numbers.T) <= 1e-6 * most).all()


@pytest.mark.parametrize("name", [*(n for n in NAMES if n.startswith(("gguf", "mlx"))), *DRAWN])
def test_rows_of_numbers_that_differ_widely(name: str, rng: np.random.Generator) -> None:
    """Numbers that dwarf their neighbours, tiny ones and zeros lose nothing; the rest is f32's."""
    scheme = QuantScheme.parse(name)
    w = rng.normal(size=(37, 2048)).astype(np.float32)
    w[:, 70] = 0.0  # where x is large
    if name in DRAWN:
        tensors = (gguf_rows(rng, scheme, 37, 2048),)
    else:
        tensors = tuple(t for t in pack(scheme, w) if t is not None)
    numbers = unpack(scheme, *tensors, size=2048).astype(np.float64)
    for rows in (1, int(rng.integers(2, 17))):
        x = rng.normal(size=(rows, 2048)).astype(np.float32)
        x[:, 64:96] *= 2.0**-10
        x[:, 70] = 3e6
        x[:, 128:160] *= 2.0**-95
        x[:, 160:192] = 0.0
        compiled = rlx.Session("cpu").compile(_graph(name, x, tensors))
        compiled.set_params(dict(zip(("weight", "scale", "zero"), tensors, strict=False)))
        (found,) = compiled.run({"x": x})
        # A code may be larger than its number, from which something is taken away.
        most = np.abs(x) @ np.abs(numbers.T) + np.abs(x).sum(-1, keepdims=True) * np.abs(
            numbers
        ).max(-1)
        assert (np.abs(found - x @ numbers.T) <= 2e-7 * most).all()


@pytest.mark.parametrize(
    "name", ["gguf_q4_0", "gguf_q8_0", "gguf_q4k", "gguf_q6k", "mlx_affine/4/64"]
)
def test_rows_of_numbers_that_are_not_finite(name: str, rng: np.random.Generator) -> None:
    """Where the interpreter has NaN and infinities, and nowhere else."""
    scheme = QuantScheme.parse(name)
    tensors = tuple(
        t for t in pack(scheme, rng.normal(size=(37, 768)).astype(np.float32)) if t is not None
    )
    x = rng.normal(size=(3, 768)).astype(np.float32)
    x[0, rng.integers(768)] = rng.choice([np.inf, -np.inf])
    x[2, rng.integers(768)] = np.nan
    graph = _graph(name, x, tensors)
    params = dict(zip(("weight", "scale", "zero"), tensors, strict=False))
    compiled = rlx.Session("cpu").compile(graph)
    compiled.set_params(params)
    (found,) = compiled.run({"x": x})
    with np.errstate(invalid="ignore"):
        (wanted,) = rlx.interpret(graph, {"x": x}, params=params)
    assert np.isfinite(found[1]).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(
        np.isinf(found) * np.sign(found), np.isinf(wanted) * np.sign(wanted)
    )


@pytest.mark.parametrize("name", ["gguf_mxfp4", "mlx_mxfp4/32", "mlx_affine/8/32"])
def test_rows_of_numbers_beyond_f32(name: str, rng: np.random.Generator) -> None:
    """A finite scale makes numbers infinite: the product is, however small x is."""
    scheme = QuantScheme.parse(name)
    if name == "gguf_mxfp4":
        tensors = (gguf_rows(rng, scheme, 37, 256),)
        tensors[0][:, ::17] = 127
        tensors[0][5, 17] = rng.integers(253, 255)
    else:
        w = rng.normal(size=(37, 256)).astype(np.float32)
        tensors = tuple(t.copy() for t in pack(scheme, w) if t is not None)
        tensors[1][5, 1] = 254 if name == "mlx_mxfp4/32" else 1e38
    x = rng.uniform(0.5, 1, size=(2, 256)).astype(np.float32) * np.float32(1e-20)
    graph = _graph(name, x, tensors)
    params = dict(zip(("weight", "scale", "zero"), tensors, strict=False))
    compiled = rlx.Session("cpu").compile(graph)
    compiled.set_params(params)
    (found,) = compiled.run({"x": x})
    with np.errstate(invalid="ignore", over="ignore"):
        (wanted,) = rlx.interpret(graph, {"x": x}, params=params)
    assert not np.isfinite(wanted[:, 5]).any()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    rest = np.delete(np.arange(37), 5)
    np.testing.assert_allclose(found[:, rest], wanted[:, rest], rtol=1e-4, atol=1e-23)


def test_a_scale_that_is_not_finite(rng: np.random.Generator) -> None:
    """One infinite scale: NaN where a code is zero, as the interpreter has it; else infinity."""
    codes = rng.integers(1, 100, (64, 256)).astype(np.int8)
    scale = rng.uniform(0.01, 0.1, (2, 256)).astype(np.float32)
    bad, zero = (int(c) for c in rng.choice(256, 2, replace=False))
    scale[1, [bad, zero]] = np.inf
    codes[40, zero] = 0
    x = np.ones((1, 64), np.float32)
    graph = _graph("int8/32", x, (codes, scale))
    compiled = rlx.Session("cpu").compile(graph)
    params = {"weight": codes, "scale": scale}
    compiled.set_params(params)
    (found,) = compiled.run({"x": x})
    assert np.isnan(found[0, zero])
    assert np.isinf(found[0, bad])
    (wanted,) = rlx.interpret(graph, {"x": x}, params=params)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "name",
    ["int8/32", "int8/50", "int8a/32", "int4/32", "int4/7", "fp8e4m3", "fp8e5m2", "nvfp4/16"],
)
def test_few_rows_of_columns(name: str, dtype: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    size, columns = int(rng.integers(200, 300)), 2 * int(rng.integers(120, 200))
    tensors = tuple(
        t
        for t in pack(scheme, rng.normal(size=(size, columns)).astype(np.float32))
        if t is not None
    )
    numbers = unpack(scheme, *tensors, size=size).astype(np.float64)
    rows = 1 if dtype == "f32" else int(rng.integers(2, 6))
    given = rng.normal(size=(rows, size)).astype(as_dtype(dtype).numpy)
    compiled = rlx.Session("cpu").compile(_graph(name, given, tensors))
    compiled.set_params(dict(zip(("weight", "scale", "zero"), tensors, strict=False)))
    (found,) = compiled.run({"x": given})
    assert [c.implementation for c in compiled.report().choices] == ["dequant_matmul.cpu.ffi"]
    exact = np.asarray(given, np.float64)
    most = (1e-6 if dtype == "f32" else 2**-8) * (np.abs(exact) @ np.abs(numbers))
    assert (np.abs(np.asarray(found, np.float64) - exact @ numbers) <= most).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("gguf")])
def test_rounded_products_do_not_depend_on_how_rows_are_taken(
    name: str, rng: np.random.Generator
) -> None:
    scheme = QuantScheme.parse(name)
    packed = pack(scheme, rng.normal(size=(9, 768)).astype(np.float32))[0]
    weight = np.resize(packed, (1021, packed.shape[1]))  # threads share so many
    x = rng.normal(size=(37, 768)).astype(np.float32)

    def compiled(rows: int) -> rlx.CompiledGraph:
        b = rlx.GraphBuilder("rounded")
        codes = b.param("weight", TensorType(DType.U8, weight.shape))
        given = b.input("x", TensorType(DType.F32, (rows, 768)))
        made = rlx.Session("cpu").compile(b.build(DequantMatmulInt8(scheme=name)(given, codes)))
        made.set_params({"weight": weight})
        return made

    (found,) = compiled(37).run({"x": x})
    one = compiled(1)
    for row in (0, 20, 36):
        np.testing.assert_array_equal(found[row], one.run({"x": x[row : row + 1]})[0][0])
    exact = x @ unpack(scheme, weight, size=768).T
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("name", ["int8/32", "int8a/64", "int4/32", "int4/320", "int8/4096"])
def test_rounded_products_with_columns(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    size, columns = int(rng.integers(500, 700)), 2 * int(rng.integers(120, 200))
    parts = pack(scheme, rng.normal(size=(size, columns)).astype(np.float32))
    tensors = tuple(t for t in parts if t is not None)
    numbers = unpack(scheme, *tensors, size=size).astype(np.float64)
    x = rng.normal(size=(11, size)).astype(np.float32)
    found: dict[int, Any] = {}
    for rows in (1, 11):
        b = rlx.GraphBuilder("rounded")
        weights = [
            b.param(n, TensorType(as_dtype(t.dtype), t.shape))
            for n, t in zip(("weight", "scale", "zero"), tensors, strict=False)
        ]
        given = b.input("x", TensorType(DType.F32, (rows, size)))
        compiled = rlx.Session("cpu").compile(
            b.build(DequantMatmulInt8(scheme=name)(given, *weights))
        )
        compiled.set_params(dict(zip(("weight", "scale", "zero"), tensors, strict=False)))
        (found[rows],) = compiled.run({"x": x[:rows]})
        (choice,) = compiled.report().choices
        assert choice.implementation == "dequant_matmul_int8.cpu.ffi"
    np.testing.assert_array_equal(found[1][0], found[11][0])
    # Half a step of each block's inputs.
    block = scheme.block if scheme.block <= 256 else int(np.gcd(scheme.block, 256))
    most = np.repeat(np.maximum.reduceat(np.abs(x), range(0, size, block), axis=1), block, axis=1)
    bound = most[:, :size] @ np.abs(numbers) / 254
    error = np.abs(found[11] - x @ numbers)
    assert (error <= 1.001 * bound + 1e-4).all()
    assert (error > 1e-6 * bound).any()  # they are rounded


def test_under_jax_transformations(rng: np.random.Generator) -> None:
    scheme = QuantScheme.gguf("Q4_K")
    (weight, _, _) = pack(scheme, rng.normal(size=(6, 256)).astype(np.float32))
    numbers = unpack(scheme, weight).T
    x = rng.normal(size=(4, 2, 256)).astype(np.float32)
    product = rlx_xla.to_jax(_graph(str(scheme), x[0], (weight,)), params={"weight": weight})

    ours = rlx_xla.jit(jax.vmap(product))
    np.testing.assert_allclose(ours(x), x @ numbers, atol=1e-4)
    assert [c.implementation for c in ours.report().kernels] == ["dequant_matmul.cpu.ffi"]
    gradient = jax.grad(lambda x: jnp.sum(product(x)))(x[0])
    np.testing.assert_allclose(gradient, np.broadcast_to(numbers.sum(1), (2, 256)), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "types", "reason"),
    [
        (
            "mlx_mxfp4/8",
            ["f32[1, 8]", "u32[4, 1]", "u8[4, 1]"],
            "groups of 8 are no multiple of 32",
        ),
        ("gguf_q8_0", ["f64[1, 32]", "u8[4, 34]"], "x is f64, and f32, bf16 and f16 are taken"),
        ("gguf_q8_0", ["f32[b, 32]", "u8[4, 34]"], "f32[b, 32] is not static"),
        ("gguf_q8_0", ["f32[513, 32]", "u8[4, 34]"], "513 rows are more than 512"),
        (
            "int4/32",
            ["f32[1, 32]", "u8[80]", "f32[1, 5]"],
            "codes of 5 columns begin rows in the middle of a byte",
        ),
    ],
)
def test_what_the_kernel_does_not_take(name: str, types: list[str], reason: str) -> None:
    (kernel,) = kernels_for(DequantMatmul, "cpu")
    verdict = kernel.supports(DequantMatmul(scheme=name), [as_type(t) for t in types], "cpu")
    assert isinstance(verdict, Refused)
    assert verdict.reason.startswith(reason)


def _refused(symbol: str, args: list[np.ndarray], n: int, message: str, **more: int) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    shape = (*args[0].shape[:-1], n)
    call = jax.ffi.ffi_call(library.target(symbol), jax.ShapeDtypeStruct(shape, args[0].dtype))
    given = {key: np.int64(value) for key, value in more.items()}
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"{symbol}: {message}"):
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **given))(*args))


def test_a_hostile_weight_is_an_error() -> None:
    x = np.zeros((2, 256), np.float32)
    gguf, int8 = "rlx_dequant_matmul_gguf_cpu", "rlx_dequant_matmul_int8_cpu"
    cut = np.zeros((4, 143), np.uint8)
    _refused(
        gguf, [x, cut], 4, r"a weight \[n, bytes\] of whole blocks of 144 .* \[4, 143\]", scheme=12
    )
    short = np.zeros((4, 144), np.uint8)
    _refused(gguf, [x[:, :255], short], 4, r"x\[..., 256\] and a result \[..., 4\]", scheme=12)
    _refused(gguf, [x, short], 5, r"x\[..., 256\] and a result \[..., 4\]", scheme=12)
    _refused(gguf, [x, short], 4, "a known tensor type of GGUF is required; got 99", scheme=99)
    _refused(gguf, [x, short.astype(np.int32)], 4, "operand 1 must have", scheme=12)
    for pick in ("rlx_dequant_matmul_gguf_pick_cpu", "rlx_dequant_matmul_int8_pick_cpu"):
        index = np.array(0, np.int32)
        _refused(pick, [x, index], 4, "3 operands and 1 results are required; got 2", scheme=12)
        _refused(pick, [x, short, short], 4, "operand 1 must have element type 4", scheme=12)
        two = np.zeros(2, np.int32)
        _refused(pick, [x, two, short], 4, r"an index of one number .* got \[2\]", scheme=12)
        # Only the weight that is meant is looked at.
        _refused(pick, [x, np.array(9, np.int32), short, cut], 4, r".* \[4, 143\]", scheme=12)
    codes, scale = np.zeros((256, 4), np.int8), np.zeros((8, 4), np.float32)
    _refused(int8, [x, codes[:-1], scale], 4, r"codes \[k, n\] and scale \[k / 32, n\]", block=32)
    _refused(int8, [x, codes, scale[:-1]], 4, r"codes \[k, n\] and scale \[k / 32, n\]", block=32)
    _refused(int8, [x, codes, scale], 4, r"codes \[k, n\] and scale \[k / 0, n\]", block=0)
    _refused(int8, [x, codes, scale, scale[:, :3]], 4, "zero must have the shape of", block=32)
    wide = [x.astype(np.int32), codes, scale]
    _refused(int8, wide, 4, "x must be f32, bf16 or f16", block=32)
    nibbles = np.zeros(256 * 5 // 2, np.uint8)
    odd = [x, nibbles, np.zeros((8, 5), np.float32)]
    for int4 in ("rlx_dequant_matmul_int4_cpu", "rlx_dequant_matmul_int8_codes4_cpu"):
        _refused(int4, odd, 5, ".* two a byte, n even,", block=32)
    rounded = "rlx_dequant_matmul_int8_codes8_cpu"
    told = "a block that is a multiple of 32 is required; got 16"
    _refused(rounded, [x, codes, np.zeros((16, 4), np.float32)], 4, told, block=16)
    told = r"x\[..., k\] and a result \[..., 4\] are required"
    _refused(rounded, [x, codes, scale], 3, told, block=32)
    _refused(rounded, wide, 4, "x must be f32, bf16 or f16", block=32)


def test_a_hostile_weight_of_mlx_is_an_error() -> None:
    mlx = "rlx_dequant_matmul_mlx_cpu"
    x = np.zeros((2, 64), np.float32)
    codes, scale = np.zeros((4, 8), np.uint32), np.zeros((4, 1), np.float32)
    good: dict[str, int] = {"bits": 4, "block": 64}
    told = r"codes \[n, k \* 4 / 32\], and scale and bias \[n, k / 64\]"
    _refused(mlx, [x, codes[:, :7], scale, scale], 4, told, **good)
    _refused(mlx, [x, codes, scale[:3], scale[:3]], 4, told, **good)
    _refused(mlx, [x, codes, scale, scale[:3]], 4, told, **good)
    _refused(mlx, [x[:, :32], codes[:, :4], scale, scale], 4, told, **good)
    _refused(mlx, [x, codes, scale, scale], 5, r"x\[..., 64\] and a result \[..., 4\]", **good)
    _refused(mlx, [x, codes, scale, scale.astype(np.float16)], 4, "operand 3 must have", **good)
    whole = scale.astype(np.int32)
    _refused(mlx, [x, codes, whole, whole], 4, "scale must be f32, bf16 or f16", **good)
    told = "bits of 2, 3, 4, 5, 6 or 8 and a block of 32, 64 or 128"
    _refused(mlx, [x, codes, scale, scale], 4, told, bits=7, block=64)
    _refused(mlx, [x, codes, scale, scale], 4, told, bits=4, block=48)


def test_a_hostile_weight_of_small_floats_is_an_error() -> None:
    x = np.zeros((2, 32), np.float32)
    fp8, nvfp4 = "rlx_dequant_matmul_fp8e4m3_cpu", "rlx_dequant_matmul_nvfp4_cpu"
    codes, scale = np.zeros((32, 4), np.uint8), np.zeros(4, np.float32)
    _refused(fp8, [x, codes[:-1], scale], 4, r"x\[..., 31\] and a result \[..., 4\]")
    _refused(fp8, [x, codes.reshape(-1), scale], 4, r"codes \[k, n\] are required; got \[128\]")
    _refused(fp8, [x, codes, scale[:3]], 4, r"a scale for each column of \[32, 4\]")
    _refused(fp8, [x, codes.astype(np.int8), scale], 4, "operand 1 must have")
    nibbles, scales = np.zeros(32 * 4 // 2, np.uint8), np.zeros((2, 4), np.uint8)
    told = r"codes \[k, n\], two a byte, n even, and scale \[k / 16, n\]"
    _refused(nvfp4, [x, nibbles[:-1], scales], 4, told)
    _refused(nvfp4, [x, nibbles, scales[:1]], 4, told)
    _refused(nvfp4, [x, nibbles, scales, np.ones(2, np.float32)], 4, "one scale for all")
    _refused(nvfp4, [x, nibbles[:48], scales[:, :3]], 3, told)


def test_a_hostile_weight_of_powers_of_two_is_an_error() -> None:
    mx4, mx8 = "rlx_dequant_matmul_mx4_cpu", "rlx_dequant_matmul_mx8_cpu"
    x = np.zeros((2, 64), np.float32)
    codes, scale = np.zeros((4, 8), np.uint32), np.zeros((4, 2), np.uint8)
    told = r"codes of \[n, k\] and scale \[n, k / 32\], of one or two planes, and a block"
    _refused(mx4, [x, codes[:, :7], scale], 4, told, block=32)
    _refused(mx4, [x, codes, scale[:, :1]], 4, told, block=32)
    _refused(mx4, [x, codes, scale[:3]], 3, told, block=32)
    _refused(mx4, [x, codes.astype(np.int32), scale], 4, told, block=32)
    _refused(mx4, [x, codes, np.zeros((3, 4, 2), np.uint8)], 4, told, block=32)
    _refused(mx4, [x, codes, np.zeros((4, 4), np.uint8)], 4, ".*a multiple of 32 are", block=16)
    _refused(mx4, [x, codes, scale], 5, r"x\[..., 64\] and a result \[..., 4\]", block=32)
    _refused(mx8, [x, codes, scale], 4, told, block=32)


@pytest.mark.parametrize("name", ["gguf_q4k", "fp8e4m3", "nvfp4/16", "int8/32"])
def test_a_truncated_weight_is_refused_before_it_is_read(
    name: str, rng: np.random.Generator
) -> None:
    scheme = QuantScheme.parse(name)
    w = rng.normal(size=(8, 256) if scheme.is_rows else (256, 8)).astype(np.float32)
    tensors = tuple(t for t in pack(scheme, w) if t is not None)
    x = np.zeros((1, 256), np.float32)
    cut = (tensors[0][..., :-1] if scheme.is_rows else tensors[0][:-1], *tensors[1:])
    with pytest.raises((ShapeError, RlxError)):
        _graph(name, x, cut)
    compiled = rlx.Session("cpu").compile(_graph(name, x, tensors))
    for wrong in (cut[0], tensors[0].reshape(-1)[: tensors[0].size // 2]):
        with pytest.raises(RunError, match="weight"):
            compiled.set_param("weight", wrong)
    with pytest.raises(RunError, match="weight"):
        compiled.set_param_typed(
            "weight", tensors[0].tobytes()[:-1], str(as_dtype(tensors[0].dtype))
        )
