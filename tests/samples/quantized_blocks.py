"""Samples of packed weights: their numbers, products with them, rows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.op import Op
from rlx.ops.quantized import (
    DequantGather,
    DequantGroupedMatmul,
    DequantGroupedMatmulMlx,
    DequantizeBlocks,
    DequantMatmul,
    DequantMatmulInt8,
    DequantMatmulPick,
    DequantMoeWeights,
)
from rlx.quant import QuantScheme, all_schemes, pack, unpack
from rlx.tolerances import Tolerance
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw

Array = np.ndarray[Any, Any]

_HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
"""Where a block of a GGUF type holds its f16 scales; at 0 where it is not listed."""

SCHEMES = all_schemes()


def gguf_rows(rng: np.random.Generator, scheme: QuantScheme, rows: int, cols: int) -> Array:
    """Rows of random GGUF blocks with scales below 0.1: u8[rows, bytes]."""
    count = rows * cols // scheme.block_size
    blocks = rng.integers(0, 256, (count, scheme.block_bytes), dtype=np.uint8)
    scales = rng.uniform(-0.1, 0.1, (count, 2))
    name = scheme.gguf_type or ""
    if name == "Q8_K":
        blocks[:, :4] = scales[:, :1].astype(np.float32).view(np.uint8)
    elif name == "MXFP4":
        blocks[:, 0] = rng.integers(115, 125, count)
    elif name == "IQ1_M":  # its f16 lies in the top four bits of four words
        bits = np.abs(scales[:, :1]).astype(np.float16).view(np.uint16)
        words = blocks[:, 48:56].copy().view(np.uint16) & 0x0FFF
        words |= (bits >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        blocks[:, 48:56] = words.view(np.uint8)
    elif name != "NVFP4":
        for place, at in enumerate(_HALVES.get(name, (0,))):
            half = scales[:, place : place + 1].astype(np.float16)
            blocks[:, at : at + 2] = half.view(np.uint8)
    return blocks.reshape(rows, -1)


def weight(
    rng: np.random.Generator, scheme: QuantScheme, inner: int, outer: int
) -> tuple[Array, ...]:
    """Weight, scale and zero (those that there are) of a K × N matrix."""
    if scheme.is_gguf:
        return (gguf_rows(rng, scheme, outer, inner),)
    shape = (outer, inner) if scheme.is_rows else (inner, outer)
    numbers = rng.normal(size=shape).astype(np.float32)
    return tuple(a for a in pack(scheme, numbers) if a is not None)


def summing(x: Array, w: Array) -> Tolerance:
    """The bound of sums of products in another order: parts of a millionth of all sizes."""
    most = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    return Tolerance(1e-6 * float(most.max(initial=0)), 1e-5)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _numbers(rng)
    yield from _products(rng)
    yield from _rounded_products(rng)
    yield from _picked_products(rng)
    yield from _rows(rng)
    yield from _experts(rng)


def _numbers(rng: np.random.Generator) -> Iterator[Sample]:
    for scheme in SCHEMES:
        inner = 2 * scheme.block_size if scheme.is_gguf else 128
        op = DequantizeBlocks(scheme=str(scheme))
        yield Sample(op, weight(rng, scheme, inner, 3), str(scheme))
    for bits in (2, 3, 5, 6, 8):
        scheme = QuantScheme.mlx_affine(bits, 32)
        op = DequantizeBlocks(scheme=str(scheme), dtype=DType.F16)
        yield Sample(op, weight(rng, scheme, 64, 3), str(scheme))
    for name in ("int8/32", "int8a/5", "int4/7", "nvfp4/16"):  # blocks that are not full
        op = DequantizeBlocks(scheme=name, size=51)
        yield Sample(op, weight(rng, QuantScheme.parse(name), 51, 5), f"{name} of 51")
    special = QuantScheme.gguf("Q8_0")
    blocks = gguf_rows(rng, special, 4, 64)
    for row, bits in enumerate((0x7E00, 0x7C00, 0xFC00, 0x8000)):  # NaN, Inf, −Inf, −0
        blocks[row, :2] = np.array([bits], np.uint16).view(np.uint8)
    yield Sample(DequantizeBlocks(scheme=str(special)), (blocks,), "special scales")
    for scheme, shape in (
        (special, (0, 34)),
        (special, (2, 0)),
        (QuantScheme.gguf("Q4_K"), (0, 144)),
    ):
        op = DequantizeBlocks(scheme=str(scheme), dtype=DType.BF16)
        yield Sample(op, (np.zeros(shape, np.uint8),), f"{scheme} {shape}")


def _products(rng: np.random.Generator) -> Iterator[Sample]:
    # One row and several, N other than K, one and two blocks: where layouts go wrong.
    cases = ((1, 256, 3), (5, 512, 7))
    for scheme in SCHEMES:
        for rows, inner, outer in cases:
            op = DequantMatmul(scheme=str(scheme))
            tensors = weight(rng, scheme, inner, outer)
            x = draw(rng, DType.F32, (rows, inner))
            bound = summing(x, matrix(scheme, tensors))
            yield Sample(op, (x, *tensors), f"{scheme} {rows}x{inner}x{outer}", tolerance=bound)
    for dtype in (DType.F16, DType.BF16, DType.F64):
        for name in ("gguf_q4k", "int4/32", "nvfp4/16"):
            scheme = QuantScheme.parse(name)
            x = draw(rng, dtype, (2, 3, 256))
            op = DequantMatmul(scheme=name)
            yield Sample(
                op, (x, *weight(rng, scheme, 256, 3)), f"{dtype} {name}", tolerance=_low(dtype)
            )
    for shape in ((256,), (0, 256)):
        x = draw(rng, DType.F32, shape)
        tensors = weight(rng, QuantScheme.gguf("Q6_K"), 256, 4)
        bound = summing(x, matrix(QuantScheme.gguf("Q6_K"), tensors))
        yield Sample(DequantMatmul(scheme="gguf_q6k"), (x, *tensors), f"x {shape}", tolerance=bound)


def _rounded_products(rng: np.random.Generator) -> Iterator[Sample]:
    for scheme in SCHEMES:
        if not scheme.is_gguf or scheme.block_size not in (32, 256):
            continue
        for dtype, rows, inner, outer in (
            (DType.F32, (), 256, 3),
            (DType.F32, (6,), 512, 5),
            (DType.F16, (2, 1), 256, 2),
        ):
            op = DequantMatmulInt8(scheme=str(scheme))
            tensors = weight(rng, scheme, inner, outer)
            x = draw(rng, dtype, (*rows, inner))
            x[..., :32] = 0  # a block without any number has no scale
            most = np.abs(x.astype(np.float64)) @ np.abs(matrix(scheme, tensors).astype(np.float64))
            # A scale between two numbers of f16 may go to either.
            bound = Tolerance(2e-3 * float(most.max(initial=0)), 2e-3)
            yield Sample(op, (x, *tensors), f"{scheme} {dtype}{list(x.shape)}", tolerance=bound)
    yield from _rounded_columns(rng)
    q8 = QuantScheme.gguf("Q8_0")
    none = (np.zeros((0, 64), np.float32), *weight(rng, q8, 64, 3))
    yield Sample(DequantMatmulInt8(scheme=str(q8)), none, "no rows")
    bad = draw(rng, DType.F32, (3, 64))
    bad[0, 3], bad[1, 40] = np.nan, np.inf
    whole = (bad, *weight(rng, q8, 64, 3))
    loose = Tolerance(2e-2, 2e-3)
    yield Sample(DequantMatmulInt8(scheme=str(q8)), whole, "not finite", tolerance=loose)


def _rounded_columns(rng: np.random.Generator) -> Iterator[Sample]:
    # Lines of codes that are full and not, blocks that are not full, and ones larger than x's.
    for name, dtype, rows, inner, outer in (
        ("int8/32", DType.F32, (3,), 96, 70),
        ("int8/96", DType.BF16, (), 200, 9),
        ("int8a/64", DType.F32, (5,), 100, 64),
        ("int4/32", DType.F32, (1,), 64, 130),
        ("int4/64", DType.F16, (2, 1), 51, 6),
        ("int4/320", DType.F32, (2,), 640, 4),
    ):
        scheme = QuantScheme.parse(name)
        shape = (inner, outer)
        tensors = pack(scheme, rng.normal(size=shape).astype(np.float32))
        tensors = tuple(t for t in tensors if t is not None)
        x = draw(rng, dtype, (*rows, inner))
        x[..., :32] = 0  # a block without any number has no scale
        numbers = unpack(scheme, *tensors, size=inner).astype(np.float64)
        most = np.abs(x.astype(np.float64)) @ np.abs(numbers)
        # A code of x between two may go to either.
        bound = Tolerance(2e-3 * float(most.max(initial=0)), 2e-3)
        label = f"{name} {dtype}{list(x.shape)}"
        yield Sample(DequantMatmulInt8(scheme=name), (x, *tensors), label, tolerance=bound)


def _picked_products(rng: np.random.Generator) -> Iterator[Sample]:
    q8 = QuantScheme.parse("gguf_q8_0")
    for name in ("gguf_q4_0", "gguf_q4_1", "gguf_q8_0", "gguf_q4k", "gguf_q6k"):
        scheme = QuantScheme.parse(name)
        weights = [weight(rng, scheme, 256, 5)[0] for _ in range(3)]
        for index in (0, 2, -1, 7):  # the last two are outside
            rounded = index > 0
            x = draw(rng, DType.F32, (2, 256))
            taken = matrix(scheme, (weights[min(max(index, 0), 2)],))
            most = np.abs(x.astype(np.float64)) @ np.abs(taken.astype(np.float64))
            loose = Tolerance(2e-3 * float(most.max(initial=0)), 2e-3)
            bound = loose if rounded else summing(x, taken)
            op = DequantMatmulPick(scheme=name, rounded=rounded)
            yield Sample(
                op, (x, np.array(index, np.int32), *weights), f"{name} {index}", tolerance=bound
            )
    x, number = draw(rng, DType.F64, (2, 256)), np.array(1, np.int32)
    three = [weight(rng, q8, 256, 5)[0] for _ in range(3)]
    op = DequantMatmulPick(scheme=str(q8))
    bound = summing(x, matrix(q8, (three[1],)))
    yield Sample(op, (x, number, *three), "f64", tolerance=bound)
    scheme = QuantScheme.parse("gguf_q5k")
    one = weight(rng, scheme, 512, 3)
    x = draw(rng, DType.BF16, (512,))
    op = DequantMatmulPick(scheme=str(scheme))
    yield Sample(op, (x, np.array(0, np.int32), *one), "one weight", tolerance=_low(DType.BF16))


def _low(dtype: DType) -> Tolerance:
    # Products reach 3 · 13 · 256; a result near zero keeps the rounding of the sums.
    return Tolerance(1e-9 if dtype is DType.F64 else 2e-2, 2e-2 if dtype is not DType.F64 else 1e-9)


def matrix(scheme: QuantScheme, tensors: tuple[Array, ...]) -> Array:
    """The numbers of a packed weight as [K, N]."""
    numbers = unpack(scheme, *tensors)
    return numbers.T if scheme.is_rows else numbers


def _rows(rng: np.random.Generator) -> Iterator[Sample]:
    for name in ("gguf_q4_0", "gguf_q6k", "gguf_iq2s", "mlx_affine/4/64", "mlx_affine/3/32",
                 "mlx_mxfp4/32", "mlx_mxfp8/32", "mxfp4x2/32", "int8/32", "int8a/32", "int4/32",
                 "fp8e4m3", "nvfp4/16"):  # fmt: skip
        scheme = QuantScheme.parse(name)
        inner = 2 * scheme.block_size if scheme.is_gguf else 128
        table, *others = weight(rng, scheme, inner, 7)
        for shape in ((), (0,), (2, 3)):
            indices = rng.integers(-1, 8, shape, dtype=np.int32)
            op = DequantGather(scheme=name, dtype=DType.F16 if shape == () else DType.F32)
            yield Sample(op, (table, indices, *others), f"{name} {shape}")
    for name in ("int4/32", "nvfp4/16", "int8/32"):  # an odd K and blocks that are not full
        table, *others = weight(rng, QuantScheme.parse(name), 51, 7)
        indices = rng.integers(0, 7, 5, dtype=np.uint8)
        yield Sample(DequantGather(scheme=name, size=51), (table, indices, *others), f"{name} 51")


def _experts(rng: np.random.Generator) -> Iterator[Sample]:
    for name in ("gguf_q4_0", "gguf_q4k", "gguf_q8k", "gguf_iq3s"):
        scheme = QuantScheme.parse(name)
        inner = 256
        slabs = gguf_rows(rng, scheme, 3 * 5, inner).reshape(3, 5, -1)
        yield Sample(DequantMoeWeights(scheme=name), (slabs,), name)
        for rows in (0, 2, 9):  # fewer rows than experts, and more
            x = draw(rng, DType.F32, (rows, inner))
            ids = rng.integers(-1, 4, rows, dtype=np.int32)
            op = DequantGroupedMatmul(scheme=name)
            bound = Tolerance(1e-2, 1e-5)  # sums of 256 products of 3 · 13 in another order
            yield Sample(op, (x, slabs, ids), f"{name} {rows}", tolerance=bound)
    for bits in (4, 6):
        scheme = QuantScheme.mlx_affine(bits, 64)
        parts = [weight(rng, scheme, 128, 5) for _ in range(3)]
        stacked = [np.stack([part[i] for part in parts]) for i in range(3)]
        for rows in (2, 9):
            x = draw(rng, DType.F32, (rows, 128))
            ids = rng.integers(-1, 4, rows, dtype=np.int32)
            op = DequantGroupedMatmulMlx(scheme=str(scheme))
            bound = Tolerance(1e-4, 1e-5)  # sums of 128 products of 3 · 3 in another order
            yield Sample(op, (x, *stacked, ids), f"{scheme} {rows}", tolerance=bound)
    slabs = np.zeros((0, 2, 18), np.uint8)
    yield Sample(DequantMoeWeights(scheme="gguf_q4_0"), (slabs,), "no experts")


def error_samples() -> Iterator[ErrorSample]:
    blocks = DequantizeBlocks
    yield ErrorSample(_make(blocks, scheme="q4"), ("u8[2, 18]",), ShapeError, "C1", "got 'q4'")
    yield ErrorSample(_make(blocks, scheme="int8"), ("i8[2, 3]",), ShapeError, "C1", "1 sizes")
    for scheme, types, error, match in (
        ("gguf_q4_0", ("u8[2, 17]",), ShapeError, "whole blocks of 18 bytes"),
        ("gguf_q4_0", ("u8[36]",), ShapeError, "[N, …] by rows"),
        ("gguf_q4_0", ("u8[n, 18]",), ShapeError, "Bind its symbols"),
        ("gguf_q4_0", ("i8[2, 18]",), DTypeError, "required to be u8"),
        ("gguf_q4_0", ("u8[2, 18]", "f32[2]"), ShapeError, "without scale"),
        ("int8/32", ("i8[64, 3]",), ShapeError, "required to have a scale"),
        ("int8/32", ("i8[64, 3]", "f32[3, 3]"), ShapeError, "scale of int8/32"),
        ("int8/32", ("i8[64, 3]", "f64[2, 3]"), DTypeError, "scale of int8/32"),
        ("int8a/32", ("i8[64, 3]", "f32[2, 3]"), ShapeError, "required to have a zero"),
        ("int8a/32", ("i8[64, 3]", "f32[2, 3]", "f32[3]"), ShapeError, "zero of int8a/32"),
        ("int4/32", ("u8[3]", "f32[2, 3]"), ShapeError, "K = 64"),
        ("int4/32", ("u8[96]", "f32[3]"), ShapeError, "⌈K/32⌉"),
        ("fp8e4m3", ("u8[4, 3]", "f32[4]"), ShapeError, "f32[3]"),
        ("fp8e4m3", ("u8[4, 3]", "f32[3]", "f32[3]"), ShapeError, "without zero"),
        ("nvfp4/16", ("u8[24]", "f32[1, 3]"), DTypeError, "u8"),
        ("nvfp4/16", ("u8[24]", "u8[1, 3]", "f32[]"), ShapeError, "f32[1]"),
        ("mlx_affine/4/64", ("u32[2, 7]", "f32[2, 1]", "f32[2, 1]"), ShapeError, "multiple of 64"),
        ("mlx_affine/4/64", ("u32[2, 8]", "f32[2, 1]", "f16[2, 1]"), DTypeError, "zero of"),
        ("mlx_affine/3/32", ("u32[2, 1]", "f32[2, 1]", "f32[2, 1]"), ShapeError, "3 bits"),
        ("mlx_mxfp4/32", ("u8[2, 32]", "u8[2, 2]"), DTypeError, "u32"),
        ("mxfp4x2/32", ("u8[2, 16]", "u8[2, 1]"), ShapeError, "u8[2, N, K/2]"),
        ("mxfp4x2/32", ("u8[2, 3, 16]", "u8[3, 1]"), ShapeError, "u8[2, 3, 1]"),
    ):  # fmt: skip
        yield ErrorSample(_make(blocks, scheme=scheme), types, error, "C2", match)
    sized = _make(blocks, scheme="int8/32", size=32)
    yield ErrorSample(sized, ("i8[64, 3]", "f32[2, 3]"), ShapeError, "C2", "K = 32")
    whole = _make(blocks, scheme="gguf_q4_0", dtype=DType.I32)
    yield ErrorSample(whole, ("u8[2, 18]",), DTypeError, "C3", "floating")
    product = _make(DequantMatmul, scheme="gguf_q8_0")
    yield ErrorSample(
        _make(DequantMatmul, scheme="gguf_q9k"), ("f32[32]", "u8[2, 34]"), ShapeError, "C1",
        "Did you mean",
    )  # fmt: skip
    yield ErrorSample(product, ("f32[2, 32]", "u8[2, 35]"), ShapeError, "C2", "34 bytes")
    yield ErrorSample(product, ("i8[2, 32]", "u8[2, 34]"), DTypeError, "C3", "floating")
    yield ErrorSample(product, ("f32[]", "u8[2, 34]"), ShapeError, "C3", "one axis")
    yield ErrorSample(product, ("f32[2, 64]", "u8[2, 34]"), ShapeError, "C4", "K = 32")
    yield ErrorSample(product, ("f32[2, k]", "u8[2, 34]"), InconclusiveDimError, "C4", "K = 32")
    rounded = _make(DequantMatmulInt8, scheme="gguf_q8_0")
    for name in ("gguf_nvfp4", "int8/48", "fp8e4m3"):
        other = _make(DequantMatmulInt8, scheme=name)
        yield ErrorSample(other, ("f32[64]", "u8[2, 36]"), ShapeError, "C1", "32 or 256")
    columns = _make(DequantMatmulInt8, scheme="int8/32")
    yield ErrorSample(columns, ("f32[64]", "i8[64, 3]"), ShapeError, "C2", "to have a scale")
    given = ("f32[2, 60]", "i8[64, 3]", "f32[2, 3]")
    yield ErrorSample(columns, given, ShapeError, "C4", "K = 64")
    yield ErrorSample(rounded, ("f32[2, 32]", "u8[2, 35]"), ShapeError, "C2", "34 bytes")
    yield ErrorSample(rounded, ("i8[2, 32]", "u8[2, 34]"), DTypeError, "C3", "floating")
    yield ErrorSample(rounded, ("f32[]", "u8[2, 34]"), ShapeError, "C3", "one axis")
    yield ErrorSample(rounded, ("f32[2, 64]", "u8[2, 34]"), ShapeError, "C4", "K = 32")
    yield from _picked_errors()
    rows = _make(DequantGather, scheme="gguf_q8_0")
    unknown = _make(DequantGather, scheme="int8/x")
    yield ErrorSample(unknown, ("i8[64, 3]", "i32[2]", "f32[2, 3]"), ShapeError, "C1", "int8/x")
    yield ErrorSample(rows, ("u8[2, 33]", "i32[2]"), ShapeError, "C2", "34 bytes")
    yield ErrorSample(rows, ("u8[2, 34]", "f32[2]"), DTypeError, "C3", "f32[2]")
    integers = _make(DequantGather, scheme="gguf_q8_0", dtype=DType.I32)
    yield ErrorSample(integers, ("u8[2, 34]", "i32[2]"), DTypeError, "C4", "floating")
    yield ErrorSample(rows, ("u8[0, 34]", "i32[2]"), ShapeError, "C5", "one row")
    slabs = _make(DequantMoeWeights, scheme="gguf_q8_0")
    moe_mlx = _make(DequantMoeWeights, scheme="mlx_mxfp4/32")
    yield ErrorSample(moe_mlx, ("u8[2, 3, 34]",), ShapeError, "C1", "one of GGUF")
    yield ErrorSample(slabs, ("i8[2, 3, 34]",), DTypeError, "C2", "u8")
    yield ErrorSample(slabs, ("u8[2, 34]",), ShapeError, "C2", "[E, N, bytes]")
    yield ErrorSample(slabs, ("u8[e, 3, 34]",), ShapeError, "C2", "static")
    yield ErrorSample(slabs, ("u8[2, 3, 33]",), ShapeError, "C2", "34 bytes")
    yield from _grouped_errors()


def _picked_errors() -> Iterator[ErrorSample]:
    picked = _make(DequantMatmulPick, scheme="gguf_q8_0")
    good = ("f32[2, 32]", "i32[]", "u8[2, 34]", "u8[2, 34]")
    for name, match in (("gguf_q9k", "Did you mean"), ("int8/32", "one of GGUF; got int8/32")):
        yield ErrorSample(_make(DequantMatmulPick, scheme=name), good, ShapeError, "C1", match)
    yield ErrorSample(picked, good[:2], ShapeError, "C2", "at least one weight")
    other = (*good[:3], "u8[3, 34]")
    yield ErrorSample(picked, other, ShapeError, "C2", "got weights[1]: u8[3, 34]")
    yield ErrorSample(picked, (good[0], "i64[]", *good[2:]), DTypeError, "C3", "got i64[]")
    yield ErrorSample(picked, (good[0], "i32[1]", *good[2:]), ShapeError, "C3", "got i32[1]")
    yield ErrorSample(picked, ("f32[2, 64]", *good[1:]), ShapeError, "C4", "K = 32")
    yield ErrorSample(picked, ("i8[2, 32]", *good[1:]), DTypeError, "C4", "floating")


def _grouped_errors() -> Iterator[ErrorSample]:
    grouped = _make(DequantGroupedMatmul, scheme="gguf_q8_0")
    good = ("f32[4, 32]", "u8[2, 3, 34]", "i32[4]")
    other = _make(DequantGroupedMatmul, scheme="fp8e4m3")
    yield ErrorSample(other, good, ShapeError, "C1", "one of GGUF")
    yield ErrorSample(grouped, (good[0], "u8[0, 3, 34]", good[2]), ShapeError, "C2", "one expert")
    yield ErrorSample(grouped, ("i32[4, 32]", *good[1:]), DTypeError, "C3", "floating")
    yield ErrorSample(grouped, ("f32[4, 1, 32]", *good[1:]), ShapeError, "C3", "[M, K]")
    yield ErrorSample(grouped, ("f32[4, 64]", *good[1:]), ShapeError, "C4", "K = 32")
    yield ErrorSample(grouped, (*good[:2], "f32[4]"), DTypeError, "C5", "ids")
    yield ErrorSample(grouped, (*good[:2], "i32[3]"), ShapeError, "C5", "ids")
    mlx = _make(DequantGroupedMatmulMlx, scheme="mlx_affine/4/64")
    good = ("f32[4, 64]", "u32[2, 3, 8]", "f32[2, 3, 1]", "f32[2, 3, 1]", "i32[4]")
    other = _make(DequantGroupedMatmulMlx, scheme="mlx_mxfp4/32")
    yield ErrorSample(other, good, ShapeError, "C1", "mlx_affine")
    two = (good[0], "u32[3, 8]", *good[2:])
    yield ErrorSample(mlx, two, ShapeError, "C2", "[E, N, …]")
    none = (good[0], "u32[0, 3, 8]", "f32[0, 3, 1]", "f32[0, 3, 1]", good[4])
    yield ErrorSample(mlx, none, ShapeError, "C2", "one expert")
    yield ErrorSample(mlx, (*good[:2], "f32[2, 3, 2]", *good[3:]), ShapeError, "C2", "scale of")
    yield ErrorSample(mlx, ("i32[4, 64]", *good[1:]), DTypeError, "C3", "floating")
    yield ErrorSample(mlx, ("f32[64]", *good[1:]), ShapeError, "C3", "[M, K]")
    yield ErrorSample(mlx, ("f32[4, 32]", *good[1:]), ShapeError, "C4", "K = 64")
    yield ErrorSample(mlx, (*good[:4], "bool[4]"), DTypeError, "C5", "ids")
    yield ErrorSample(mlx, (*good[:4], "i32[1]"), ShapeError, "C5", "ids")


def symbolic_samples() -> Iterator[SymbolicSample]:
    product = DequantMatmul(scheme="gguf_q8_0")
    yield SymbolicSample(product, ("f32[b, s, 32]", "u8[3, 34]"), {"b": 2, "s": 3})
    rounded = DequantMatmulInt8(scheme="gguf_q4_1")
    yield SymbolicSample(rounded, ("f32[b, s, 64]", "u8[3, 40]"), {"b": 2, "s": 3})
    picked = DequantMatmulPick(scheme="gguf_q4_1", rounded=True)
    types = ("f32[b, s, 64]", "i32[]", "u8[3, 40]", "u8[3, 40]")
    yield SymbolicSample(picked, types, {"b": 2, "s": 3})
    rows = DequantGather(scheme="gguf_q4k")
    yield SymbolicSample(rows, ("u8[9, 144]", "i32[b, s]"), {"b": 2, "s": 3})
    columns = DequantGather(scheme="int4/32", size=50)
    types = ("u8[75]", "i32[b, s]", "f32[2, 3]", "f32[2, 3]")
    yield SymbolicSample(columns, types, {"b": 2, "s": 3})
    grouped = DequantGroupedMatmul(scheme="gguf_q8_0")
    yield SymbolicSample(grouped, ("f32[m, 32]", "u8[2, 3, 34]", "i32[m]"), {"m": 5})
    mlx = DequantGroupedMatmulMlx(scheme="mlx_affine/4/64")
    types = ("f32[m, 64]", "u32[2, 3, 8]", "f32[2, 3, 1]", "f32[2, 3, 1]", "i32[m]")
    yield SymbolicSample(mlx, types, {"m": 5})


def _make(op: type[Op], **attributes: Any) -> Callable[[], Op]:
    return lambda: op(**attributes)
