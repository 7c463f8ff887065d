"""Samples of integer and fake quantisation, of scaled small floats and of learned weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.op import Op
from rlx.ops.quantized import (
    Dequantize,
    FakeQuantize,
    FakeQuantizeBackward,
    FakeQuantizeLsq,
    FakeQuantizeLsqBackwardScale,
    FakeQuantizeLsqBackwardX,
    QConv2d,
    QMatmul,
    Quantize,
    ScaledDequantize,
    ScaledGroupedMatmul,
    ScaledMatmul,
    ScaledQuantize,
    ScaledQuantScale,
    ScaleMode,
    SplineActivation,
    SplineActivationBackwardCoeff,
    SplineActivationBackwardX,
    SteKind,
    SynthMatmul,
    SynthMatmulBackward,
    SynthReconstruct,
    SynthWrt,
)
from rlx.quant import ScaledFormat, ScaleLayout, quantize_scaled
from rlx.tolerances import Tolerance
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

SHAPES = ((0, 3), (1, 1), (5, 63), (65,))
GRIDS = ((8, None), (4, 0), (2, -1))
FORMATS = ("f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f6e2m3", "f6e3m2", "f4e2m1",
           "f4e3m0", "f5e2m2", "f8e4m3b7", "f3e1m1", "f2e1m0", "f6e3m2b5")  # fmt: skip
LAYOUTS = ("per_tensor", "per_row", "mx/32", "nvfp4", "mx/5")


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _integer(rng)
    yield from _convolutions(rng)
    yield from _fake(rng)
    yield from _scaled(rng)
    yield from _synthetic(rng)
    yield from _splines(rng)


def _integer(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for shape in SHAPES:
            x = draw(rng, dtype, shape, low=-9, high=9, special=shape == (5, 63))
            yield Sample(Quantize(scales=(0.0625,), zero_points=(3,)), (x,), f"{dtype}{shape}")
            scales = tuple(rng.uniform(0.01, 0.1, shape[-1]).tolist())
            zeros = tuple(rng.integers(-128, 128, shape[-1]).tolist())
            op = Quantize(scales=scales, zero_points=zeros, axis=-1)
            yield Sample(op, (x,), f"{dtype}{shape} by channel")
    halves = (np.arange(-40, 40) * 0.5).astype(np.float32)  # each second one is a tie
    yield Sample(Quantize(scales=(1.0,)), (halves,), "ties")
    for shape in SHAPES:
        codes = draw(rng, DType.I8, shape, special=True)
        yield Sample(Dequantize(scales=(0.3,), zero_points=(-128,)), (codes,), f"{shape}")
        scales = tuple(rng.uniform(0.01, 0.1, shape[0]).tolist())
        yield Sample(Dequantize(scales=scales, axis=0), (codes,), f"{shape} by channel")
    for (rows, inner, outer), (x_zp, w_zp, out_zp) in (
        ((1, 256, 3), (0, 0, 0)),
        ((5, 65, 7), (3, -2, 5)),
        ((2, 0, 3), (1, 0, -128)),
        ((0, 4, 1), (0, 9, 127)),
        ((3, 63, 1), (-128, 127, 0)),
    ):
        op = QMatmul(x_zp=x_zp, w_zp=w_zp, out_zp=out_zp, mult=0.0007)
        x, w = (draw(rng, DType.I8, s, special=True) for s in ((rows, inner), (inner, outer)))
        bias = draw(rng, DType.I32, (outer,), low=-5000, high=5000)
        yield Sample(op, (x, w, bias), f"{rows}x{inner}x{outer}")
    halves = np.arange(-20, 20, dtype=np.int8).reshape(-1, 1)
    arrays = (halves, np.ones((1, 1), np.int8), np.zeros(1, np.int32))
    yield Sample(QMatmul(mult=0.5), arrays, "ties")
    big = (np.full((2, 3, 4), 127, np.int8), np.full((4, 2), 127, np.int8))
    least = np.full(2, -(2**31), np.int32)
    yield Sample(QMatmul(x_zp=-128, w_zp=-128, mult=3e38), (*big, least), "extremes")


def _convolutions(rng: np.random.Generator) -> Iterator[Sample]:
    for x_shape, w_shape, attributes in (
        ((2, 3, 7, 6), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 2), "x_zp": 5, "w_zp": -3}),
        ((1, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "dilation": (2, 1), "out_zp": 7, "w_zp": 1}),
        ((1, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "padding": (1, 1), "x_zp": -7}),
        ((0, 2, 4, 4), (3, 2, 1, 1), {}),
        ((1, 2, 2, 9), (3, 2, 3, 3), {"x_zp": 1}),
    ):
        x, w = (draw(rng, DType.I8, s, special=True) for s in (x_shape, w_shape))
        bias = draw(rng, DType.I32, w_shape[:1], low=-900, high=900)
        op = QConv2d(mult=0.002, **attributes)  # type: ignore[arg-type]
        yield Sample(op, (x, w, bias), f"{x_shape} {w_shape}")


def _fake(rng: np.random.Generator) -> Iterator[Sample]:
    cases = [(dtype, shape) for dtype in FLOATS for shape in SHAPES]
    for number, (dtype, shape) in enumerate(cases):
        bits, given = GRIDS[number % len(GRIDS)]
        axis = given if given is None else given % len(shape)
        x = draw(rng, dtype, shape)
        dy = draw(rng, dtype, shape)
        wide = dtype.compute
        size = 1 if axis is None else shape[axis]
        scale = draw(rng, wide, (size,), low=0.1, high=0.5)
        label = f"{dtype}{shape} {bits} axis {axis}"
        grid: dict[str, Any] = {"bits": bits, "axis": axis}
        yield Sample(FakeQuantize(**grid), (x,), label)
        fixed = FakeQuantize(**grid, scale_mode=ScaleMode.FIXED)
        yield Sample(fixed, (x, scale), label)
        state = np.where(np.arange(size) % 2 == 0, scale, 0).astype(wide.numpy)
        average = FakeQuantize(**grid, scale_mode=ScaleMode.EMA, decay=0.75)
        yield Sample(average, (x, state), label)
        yield Sample(FakeQuantizeLsq(**grid), (x, scale), label)
        yield Sample(FakeQuantizeLsqBackwardX(**grid), (x, scale, dy), label)
        # Up to 315 terms of size 3 · 0.5 are summed in another order.
        bound = Tolerance(1e-10 if dtype is DType.F64 else 1e-4, 1e-5)
        backward = FakeQuantizeLsqBackwardScale(**grid)
        yield Sample(backward, (x, scale, dy), label, tolerance=bound)
        for kind in SteKind:
            op = FakeQuantizeBackward(**grid, ste=kind)
            inputs = (x, dy, scale) if number % 2 else (x, dy)
            # 1 − tanh² near tanh = 1 is small and keeps the rounding of tanh.
            near = Tolerance(1e-5, 1e-5) if kind is SteKind.TANH and dtype is DType.F32 else None
            yield Sample(op, inputs, f"{label} {kind.value}", tolerance=near)
    special = draw(rng, DType.F32, (3, 9), special=True)
    yield Sample(FakeQuantize(axis=0), (special,), "special")
    yield Sample(FakeQuantize(), (np.zeros((2, 3), np.float32),), "zeros")


def _scaled(rng: np.random.Generator) -> Iterator[Sample]:
    for form in FORMATS:
        for layout in LAYOUTS:
            if layout != "per_tensor" and form not in ("f8e4m3", "f4e2m1", "f4e3m0"):
                continue
            names: dict[str, Any] = {"format": form, "layout": layout}
            x = draw(rng, DType.F32, (3, 65), special=layout == "per_row")
            made = ScaledFormat.parse(form), ScaleLayout.parse(layout)
            codes, scale = quantize_scaled(draw(rng, DType.F32, (3, 65)), *made)
            label = f"{form} {layout}"
            yield Sample(ScaledQuantScale(**names), (x,), label)
            yield Sample(ScaledQuantize(**names), (x, scale), label)
            every = rng.integers(0, 256, (3, 65), dtype=np.uint8)
            yield Sample(ScaledDequantize(**names), (every, scale), label)
            del codes
            yield from _scaled_products(rng, form, layout)
    for dtype in (DType.F16, DType.BF16, DType.F64):
        x = draw(rng, dtype, (2, 3, 32))
        yield Sample(ScaledQuantScale(layout="mx"), (x,), f"{dtype}")
        _, scale = quantize_scaled(x, ScaledFormat.F8E4M3, ScaleLayout.mx())
        yield Sample(ScaledQuantize(layout="mx"), (x, scale), f"{dtype}")
    for shape in ((0, 3), (1, 1), (0,)):
        x = draw(rng, DType.F32, shape)
        codes, scale = quantize_scaled(x, ScaledFormat.F6E3M2, ScaleLayout.per_tensor())
        yield Sample(ScaledQuantScale(format="f6e3m2"), (x,), f"{shape}")
        yield Sample(ScaledQuantize(format="f6e3m2"), (x, scale), f"{shape}")
        yield Sample(ScaledDequantize(format="f6e3m2"), (codes, scale), f"{shape}")
    dead = np.array([[0, 255, 5]], np.uint8)  # powers of two that are tiny, NaN and small
    x = draw(rng, DType.F32, (1, 96))
    yield Sample(ScaledDequantize(layout="mx"), (np.full((1, 96), 56, np.uint8), dead), "E8M0")
    yield Sample(ScaledQuantize(layout="nvfp4/32"), (x, np.zeros((1, 3), np.uint8)), "scale 0")


def _scaled_products(rng: np.random.Generator, form: str, layout: str) -> Iterator[Sample]:
    made = ScaledFormat.parse(form), ScaleLayout.parse(layout)
    names: dict[str, Any] = {"lhs_format": form, "rhs_format": form, "layout": layout}
    # Sums of 70 products of at most 3 · 3, in another order.
    bound = Tolerance(1e-4, 1e-5)
    lhs, lhs_scale = quantize_scaled(draw(rng, DType.F32, (5, 70)), *made)
    rhs, rhs_scale = quantize_scaled(draw(rng, DType.F32, (3, 70)), *made)
    bias = draw(rng, DType.F32, (3,))
    arrays = (lhs, rhs, lhs_scale, rhs_scale)
    yield Sample(ScaledMatmul(**names), arrays, f"{form} {layout}", tolerance=bound)
    yield Sample(ScaledMatmul(**names), (*arrays, bias), f"{form} {layout} bias", tolerance=bound)
    if form not in ("f8e4m3", "f4e2m1"):
        return
    experts, scales = quantize_scaled(draw(rng, DType.F32, (4, 3, 70)), *made)
    ids = rng.integers(-1, 5, 5, dtype=np.int32)
    arrays = (lhs, experts, lhs_scale, scales, ids)
    yield Sample(ScaledGroupedMatmul(**names), arrays, f"{form} {layout}", tolerance=bound)
    each = (*arrays, draw(rng, DType.F32, (4, 3)))
    yield Sample(ScaledGroupedMatmul(**names), each, f"{form} {layout} bias", tolerance=bound)


def _synthetic(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for rows, outer, pieces, entries, size in (
            (5, 7, 6, 9, 4),
            (1, 1, 1, 1, 1),
            (0, 2, 3, 300, 2),
        ):
            idx = rng.integers(0, min(entries + 2, 256), (outer, pieces), dtype=np.uint8)
            codebook = draw(rng, dtype, (entries, size))
            x, dy = draw(rng, dtype, (rows, pieces * size)), draw(rng, dtype, (rows, outer))
            label = f"{dtype} {rows}x{outer}x{pieces}x{size}"
            # Sums of up to 84 products of at most 3 · 3, in another order.
            bound = Tolerance({DType.F64: 1e-11, DType.F32: 1e-4}.get(dtype, 0.1), 2e-2)
            bound = bound if dtype.bits < 32 else Tolerance(bound.atol, 1e-5)
            yield Sample(SynthReconstruct(), (idx, codebook), label)
            yield Sample(SynthMatmul(), (x, idx, codebook), label, tolerance=bound)
            for wrt in SynthWrt:
                op = SynthMatmulBackward(wrt=wrt)
                yield Sample(op, (x, idx, codebook, dy), f"{label} {wrt.value}", tolerance=bound)


def _splines(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for shape, bases in (((4, 5, 3), 7), ((1,), 2), ((0, 2), 5), ((65, 1), 4)):
            grid: dict[str, Any] = {"num_basis": bases, "grid_min": -2.0, "grid_max": 1.5}
            x, dy = draw(rng, dtype, shape), draw(rng, dtype, shape)
            coeff = draw(rng, dtype, (shape[-1], bases))
            label = f"{dtype}{shape} {bases}"
            # Sums of up to 65 terms of at most 3 · 3, in another order, through exp.
            bound = Tolerance({DType.F64: 1e-10, DType.F32: 1e-4}.get(dtype, 0.1), 2e-2)
            bound = bound if dtype.bits < 32 else Tolerance(bound.atol, 1e-5)
            yield Sample(SplineActivation(**grid), (x, coeff), label, tolerance=bound)
            backward = SplineActivationBackwardX(**grid)
            yield Sample(backward, (x, coeff, dy), label, tolerance=bound)
            heights = SplineActivationBackwardCoeff(**grid)
            yield Sample(heights, (x, dy), label, tolerance=bound)


def error_samples() -> Iterator[ErrorSample]:
    yield from _integer_errors()
    yield from _fake_errors()
    yield from _scaled_errors()
    yield from _learned_errors()


def _integer_errors() -> Iterator[ErrorSample]:
    for op, x, wrong in ((Quantize, "f32[2, 3]", "i8[2]"), (Dequantize, "i8[2, 3]", "f32[2]")):
        one = _make(op, scales=(1.0,))
        yield ErrorSample(one, (wrong,), DTypeError, "C1", wrong)
        yield ErrorSample(_make(op, scales=(1.0,), axis=2), (x,), ShapeError, "C2", "got 2")
        two = _make(op, scales=(1.0, 2.0))
        yield ErrorSample(two, (x,), ShapeError, "C3", "1 scales")
        yield ErrorSample(_make(op, scales=(1.0, 2.0), axis=1), (x,), ShapeError, "C3", "3 scales")
        points = _make(op, scales=(1.0,), zero_points=(1, 2))
        yield ErrorSample(points, (x,), ShapeError, "C3", "got 1 and 2")
        symbolic = x.replace(" 3]", " n]")
        axis = _make(op, scales=(1.0,), axis=1)
        yield ErrorSample(axis, (symbolic,), InconclusiveDimError, "C3", "n scales")
        for bad in (0.0, -1.0, float("inf"), float("nan")):
            yield ErrorSample(_make(op, scales=(bad,)), (x,), ShapeError, "C4", str(bad))
        far = _make(op, scales=(1.0,), zero_points=(128,))
        yield ErrorSample(far, (x,), ShapeError, "C5", "(128,)")
    good = ("i8[2, 3]", "i8[3, 4]", "i32[4]")
    yield ErrorSample(QMatmul, ("u8[2, 3]", *good[1:]), DTypeError, "C1", "x is required")
    yield ErrorSample(QMatmul, (good[0], "i16[3, 4]", good[2]), DTypeError, "C1", "w is required")
    yield ErrorSample(QMatmul, (*good[:2], "i64[4]"), DTypeError, "C1", "bias is required")
    yield ErrorSample(QMatmul, ("i8[]", *good[1:]), ShapeError, "C2", "x is required")
    yield ErrorSample(QMatmul, (good[0], "i8[3]", good[2]), ShapeError, "C2", "[K, N]")
    yield ErrorSample(QMatmul, ("i8[2, 4]", *good[1:]), ShapeError, "C3", "one size K")
    yield ErrorSample(QMatmul, (*good[:2], "i32[3]"), ShapeError, "C4", "[4]")
    yield ErrorSample(_make(QMatmul, out_zp=200), good, ShapeError, "C5", "200")
    yield ErrorSample(_make(QMatmul, mult=0.0), good, ShapeError, "C6", "0.0")
    good = ("i8[1, 4, 5, 5]", "i8[6, 4, 3, 3]", "i32[6]")
    yield ErrorSample(QConv2d, (good[0], "u8[6, 4, 3, 3]", good[2]), DTypeError, "C1", "w is")
    yield ErrorSample(QConv2d, ("i8[4, 5, 5]", *good[1:]), ShapeError, "C2", "[N, C, H, W]")
    yield ErrorSample(QConv2d, (good[0], "i8[6, 4, 3]", good[2]), ShapeError, "C2", "kh, kw")
    yield ErrorSample(QConv2d, (good[0], "i8[6, 4, k, 3]", good[2]), ShapeError, "C2", "numbers")
    yield ErrorSample(_make(QConv2d, groups=0), good, ShapeError, "C3", "got 0")
    yield ErrorSample(_make(QConv2d, groups=3), good, ShapeError, "C3", "C of x")
    yield ErrorSample(_make(QConv2d, groups=2), good, ShapeError, "C3", "C / groups = 2")
    yield ErrorSample(QConv2d, (*good[:2], "i32[4]"), ShapeError, "C4", "[6]")
    yield ErrorSample(_make(QConv2d, w_zp=-129), good, ShapeError, "C5", "-129")
    yield ErrorSample(_make(QConv2d, mult=float("nan")), good, ShapeError, "C6", "nan")
    yield ErrorSample(_make(QConv2d, stride=(0, 1)), good, ShapeError, "C7", "(0, 1)")
    yield ErrorSample(_make(QConv2d, padding=(0, -1)), good, ShapeError, "C7", "(0, -1)")


def _fake_errors() -> Iterator[ErrorSample]:
    x, scale = "f32[2, 3]", "f32[3]"
    for op, rest in (
        (FakeQuantizeLsq, ()),
        (FakeQuantizeLsqBackwardX, (x,)),
        (FakeQuantizeLsqBackwardScale, (x,)),
    ):
        by_axis = _make(op, axis=1)
        yield ErrorSample(by_axis, ("i32[2, 3]", scale, *rest), DTypeError, "C1", "floating")
        yield ErrorSample(_make(op, bits=3), (x, "f32[1]", *rest), ShapeError, "C2", "got 3")
        yield ErrorSample(_make(op, axis=-1), (x, scale, *rest), ShapeError, "C3", "got -1")
        yield ErrorSample(by_axis, (x, "f32[2]", *rest), ShapeError, "C4", "[3]")
        yield ErrorSample(op, (x, "f32[]", *rest), ShapeError, "C4", "[1]")
        yield ErrorSample(by_axis, (x, "f16[3]", *rest), DTypeError, "C5", "f32")
        if rest:
            yield ErrorSample(by_axis, (x, scale, "f32[3]"), ShapeError, "C6", "f32[2, 3]")
            yield ErrorSample(by_axis, (x, scale, "f16[2, 3]"), DTypeError, "C6", "f16[2, 3]")
    backward = FakeQuantizeBackward
    yield ErrorSample(backward, ("i32[2]", "i32[2]"), DTypeError, "C1", "floating")
    yield ErrorSample(_make(backward, bits=7), (x, x), ShapeError, "C2", "got 7")
    yield ErrorSample(_make(backward, axis=2), (x, x), ShapeError, "C3", "got 2")
    yield ErrorSample(backward, (x, x, scale), ShapeError, "C4", "[1]")
    yield ErrorSample(backward, (x, x, "f64[1]"), DTypeError, "C5", "f32")
    yield ErrorSample(backward, (x, "f32[3]"), ShapeError, "C6", "dy")
    average = _make(FakeQuantize, scale_mode=ScaleMode.EMA)
    yield ErrorSample(FakeQuantize, ("i32[2]",), DTypeError, "C1", "floating")
    yield ErrorSample(_make(FakeQuantize, bits=16), (x,), ShapeError, "C2", "got 16")
    yield ErrorSample(_make(FakeQuantize, axis=2), (x,), ShapeError, "C3", "got 2")
    yield ErrorSample(FakeQuantize, (x, "f32[1]"), ShapeError, "C4", "per_batch with f32[1]")
    yield ErrorSample(average, (x,), ShapeError, "C4", "ema with none")
    yield ErrorSample(average, (x, scale), ShapeError, "C4", "[1]")
    yield ErrorSample(average, ("bf16[2]", "bf16[1]"), DTypeError, "C5", "f32")
    heavy = _make(FakeQuantize, decay=1.5)
    yield ErrorSample(heavy, (x,), ShapeError, "C6", "1.5")


def _scaled_errors() -> Iterator[ErrorSample]:
    x, codes, one = "f32[2, 3]", "u8[2, 3]", "f32[1]"
    named = _make(ScaledQuantScale, format="f9e4m4")
    blocks = _make(ScaledQuantScale, layout="mx")
    yield ErrorSample(ScaledQuantScale, ("i32[2]",), DTypeError, "C1", "floating")
    yield ErrorSample(named, (x,), ShapeError, "C2", 'invalid minifloat format "f9e4m4"')
    biased = _make(ScaledQuantScale, format="f4e3m0b999")
    yield ErrorSample(biased, (x,), ShapeError, "C2", "bias 999")
    wrong = _make(ScaledQuantScale, layout="mx/0")
    yield ErrorSample(wrong, (x,), ShapeError, "C2", 'invalid scale layout "mx/0"')
    yield ErrorSample(ScaledQuantScale, ("f32[]",), ShapeError, "C3", "last axis")
    yield ErrorSample(blocks, ("f32[2, n]",), ShapeError, "C3", "a number")
    for op, good, bad in ((ScaledQuantize, x, codes), (ScaledDequantize, codes, x)):
        yield ErrorSample(op, (bad, one), DTypeError, "C1", bad)
        yield ErrorSample(_make(op, format=""), (good, one), ShapeError, "C2", "format")
        scalar = good.replace("[2, 3]", "[]")
        yield ErrorSample(op, (scalar, one), ShapeError, "C3", "last axis")
        yield ErrorSample(op, (good, "f32[2]"), ShapeError, "C4", "[1]")
        yield ErrorSample(op, (good, "u8[1]"), DTypeError, "C4", "f32")
        rows = _make(op, layout="per_row")
        yield ErrorSample(rows, (good, one), ShapeError, "C4", "[2, 1]")
        group = _make(op, layout="nvfp4/2")
        yield ErrorSample(group, (good, "u8[2, 1]"), ShapeError, "C4", "[2, 2]")
    pair = ("u8[4, 8]", "u8[5, 8]", one, one)
    yield ErrorSample(ScaledMatmul, ("i8[4, 8]", *pair[1:]), DTypeError, "C1", "lhs")
    yield ErrorSample(ScaledMatmul, (pair[0], "u8[8]", *pair[2:]), ShapeError, "C1", "[N, K]")
    named = _make(ScaledMatmul, rhs_format="bf16")
    yield ErrorSample(named, pair, ShapeError, "C2", '"bf16"')
    yield ErrorSample(ScaledMatmul, (pair[0], "u8[8, 5]", *pair[2:]), ShapeError, "C3", "size K")
    yield ErrorSample(ScaledMatmul, (*pair[:3], "f32[5]"), ShapeError, "C4", "rhs_scale")
    yield ErrorSample(ScaledMatmul, (*pair, "f32[4]"), ShapeError, "C5", "[5]")
    yield ErrorSample(ScaledMatmul, (*pair, "f16[5]"), DTypeError, "C5", "f32")
    group = ("u8[4, 8]", "u8[3, 5, 8]", one, one, "i32[4]")
    grouped = ScaledGroupedMatmul
    yield ErrorSample(grouped, (group[0], "u8[5, 8]", *group[2:]), ShapeError, "C1", "[E, N, K]")
    yield ErrorSample(grouped, (group[0], "u8[0, 5, 8]", *group[2:]), ShapeError, "C1", "experts")
    yield ErrorSample(_make(grouped, layout="x"), group, ShapeError, "C2", '"x"')
    yield ErrorSample(grouped, ("u8[4, 7]", *group[1:]), ShapeError, "C3", "size K")
    yield ErrorSample(grouped, (*group[:2], "f32[2]", *group[3:]), ShapeError, "C4", "lhs_scale")
    yield ErrorSample(grouped, (*group[:4], "f32[4]"), DTypeError, "C5", "ids")
    yield ErrorSample(grouped, (*group, "f32[5]"), ShapeError, "C6", "[3, 5]")


def _learned_errors() -> Iterator[ErrorSample]:
    idx, codebook = "u8[5, 3]", "f32[9, 2]"
    for op, before, after in (
        (SynthReconstruct, (), ()),
        (SynthMatmul, ("f32[4, 6]",), ()),
        (SynthMatmulBackward, ("f32[4, 6]",), ("f32[4, 5]",)),
    ):
        wrong = (*before, "i32[5, 3]", codebook, *after)
        yield ErrorSample(op, wrong, DTypeError, "C1", "i32[5, 3]")
        wrong = (*before, "u8[15]", codebook, *after)
        yield ErrorSample(op, wrong, ShapeError, "C1", "[N, B]")
        wrong = (*before, idx, "i32[9, 2]", *after)
        yield ErrorSample(op, wrong, DTypeError, "C2", "floating")
        wrong = (*before, idx, "f32[0, 2]", *after)
        yield ErrorSample(op, wrong, ShapeError, "C2", "one entry")
        if before:
            wrong = ("f16[4, 6]", idx, codebook, *after)
            yield ErrorSample(op, wrong, DTypeError, "C3", "f16[4, 6]")
            yield ErrorSample(op, ("f32[]", idx, codebook, *after), ShapeError, "C3", "one axis")
            wrong = ("f32[4, 5]", idx, codebook, *after)
            yield ErrorSample(op, wrong, ShapeError, "C4", "B·d = 6")
    wrong = ("f32[4, 6]", idx, codebook, "f32[4, 6]")
    yield ErrorSample(SynthMatmulBackward, wrong, ShapeError, "C5", "[4, 5]")
    x, coeff = "f32[4, 3]", "f32[3, 5]"
    for op, inputs in (
        (SplineActivation, (x, coeff)),
        (SplineActivationBackwardX, (x, coeff, x)),
        (SplineActivationBackwardCoeff, (x, x)),
    ):
        good = _make(op, num_basis=5)
        yield ErrorSample(good, ("i32[4, 3]", *inputs[1:]), DTypeError, "C1", "floating")
        yield ErrorSample(good, ("f32[]", *inputs[1:]), ShapeError, "C1", "one axis")
        yield ErrorSample(_make(op, num_basis=1), inputs, ShapeError, "C3", "got 1")
        empty = _make(op, num_basis=5, grid_min=1.0)
        yield ErrorSample(empty, inputs, ShapeError, "C3", "1.0 and 1.0")
    six = _make(SplineActivation, num_basis=6)
    yield ErrorSample(six, (x, coeff), ShapeError, "C2", "[3, 6]")
    five = _make(SplineActivation, num_basis=5)
    yield ErrorSample(five, (x, "f64[3, 5]"), DTypeError, "C2", "f32")
    backward = _make(SplineActivationBackwardX, num_basis=6)
    yield ErrorSample(backward, (x, coeff, x), ShapeError, "C2", "[3, 6]")
    backward = _make(SplineActivationBackwardX, num_basis=5)
    yield ErrorSample(backward, (x, coeff, "f32[3]"), ShapeError, "C4", "[4, 3]")
    heights = _make(SplineActivationBackwardCoeff, num_basis=5)
    yield ErrorSample(heights, (x, "f32[4]"), ShapeError, "C2", "[4, 3]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(Quantize(scales=(1.0,)), ("f32[b, n]",), {"b": 2, "n": 3})
    yield SymbolicSample(Dequantize(scales=(1.0, 2.0), axis=1), ("i8[b, 2]",), {"b": 2})
    types = ("i8[b, k]", "i8[k, n]", "i32[n]")
    yield SymbolicSample(QMatmul(x_zp=1, w_zp=2), types, {"b": 2, "k": 3, "n": 4})
    convolution = QConv2d(padding=(1, 1), stride=(2, 2), x_zp=1, w_zp=2)
    types = ("i8[b, 4, h, w]", "i8[6, 4, 3, 3]", "i32[6]")
    yield SymbolicSample(convolution, types, {"b": 2, "h": 7, "w": 8})
    average = FakeQuantize(axis=1, scale_mode=ScaleMode.EMA)
    yield SymbolicSample(average, ("f32[b, n]", "f32[n]"), {"b": 2, "n": 3})
    x, scale = "f32[b, n]", "f32[n]"
    yield SymbolicSample(FakeQuantizeLsq(axis=1), (x, scale), {"b": 2, "n": 3})
    for op in (FakeQuantizeLsqBackwardX(axis=1), FakeQuantizeLsqBackwardScale(axis=1)):
        yield SymbolicSample(op, (x, scale, x), {"b": 2, "n": 3})
    yield SymbolicSample(FakeQuantizeBackward(), (x, x), {"b": 2, "n": 3})
    for layout, found, of in (("per_tensor", "f32[1]", x), ("mx/32", "u8[b, 3]", "f32[b, 70]")):
        binding = {"b": 2, "n": 3} if of == x else {"b": 2}
        codes = of.replace("f32", "u8")
        yield SymbolicSample(ScaledQuantScale(layout=layout), (of,), binding)
        yield SymbolicSample(ScaledQuantize(layout=layout), (of, found), binding)
        yield SymbolicSample(ScaledDequantize(layout=layout), (codes, found), binding)
    types = ("u8[m, k]", "u8[n, k]", "f32[1]", "f32[1]", "f32[n]")
    yield SymbolicSample(ScaledMatmul(), types, {"m": 2, "n": 3, "k": 4})
    types = ("u8[m, k]", "u8[2, n, k]", "f32[1]", "f32[1]", "i32[m]")
    yield SymbolicSample(ScaledGroupedMatmul(), types, {"m": 2, "n": 3, "k": 4})
    idx, codebook = "u8[n, p]", "f32[9, 2]"
    binding = {"n": 5, "p": 3}
    yield SymbolicSample(SynthReconstruct(), (idx, codebook), binding)
    yield SymbolicSample(SynthMatmul(), ("f32[b, 2*p]", idx, codebook), {**binding, "b": 4})
    backward = SynthMatmulBackward(wrt=SynthWrt.CODEBOOK)
    types = ("f32[b, 2*p]", "u8[n, p]", "f32[c, 2]", "f32[b, n]")
    yield SymbolicSample(backward, types, {**binding, "b": 4, "c": 9})
    spline = SplineActivation(num_basis=5)
    yield SymbolicSample(spline, ("f32[b, c]", "f32[c, 5]"), {"b": 2, "c": 3})
    heights = SplineActivationBackwardCoeff(num_basis=5)
    yield SymbolicSample(heights, ("f32[b, c]", "f32[b, c]"), {"b": 2, "c": 3})


def _make(op: type[Op], **attributes: Any) -> Callable[[], Op]:
    return lambda: op(**attributes)
