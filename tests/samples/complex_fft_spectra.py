"""Samples of RLX's transforms, in floats and in fixed point, and of what is read off spectra."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.complex_fft import (
    BlockFft,
    BlockNorm,
    ComplexNormSq,
    FftButterflyStage,
    FftQ,
    FftQScale,
    LogMel,
    WelchPeaks,
)
from rlx.tolerances import Tolerance
from tests.samples.base import COMPLEX, FLOATS, ErrorSample, Sample, SymbolicSample, draw
from tests.samples.elementwise import elementwise, unary_errors

# Sums of up to 65 terms of size 3, whose errors do not shrink with the result.
_BOUND = {
    DType.F32: Tolerance(1e-4, 1e-5),
    DType.F64: Tolerance(1e-12, 1e-11),
    DType.C64: Tolerance(1e-4, 1e-5),
    DType.C128: Tolerance(1e-12, 1e-11),
}


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from elementwise(rng, ComplexNormSq(), COMPLEX, complex_special=True)
    for dtype in (DType.F32, DType.F64, *COMPLEX):
        parts = 1 if dtype.is_complex else 2
        for inverse, norm in itertools.product((False, True), BlockNorm):
            op = BlockFft(inverse=inverse, norm=norm)
            x = draw(rng, dtype, (2, 3, 7 * parts))
            label = f"{dtype} {inverse} {norm.value}"
            yield Sample(op, (x,), label, tolerance=_BOUND[dtype])
        for shape in ((parts,), (0, 2 * parts), (65 * parts,)):
            x = draw(rng, dtype, shape)
            yield Sample(BlockFft(), (x,), f"{dtype} {shape}", tolerance=_BOUND[dtype])
    yield from _fixed_point(rng)
    for dtype in FLOATS:
        for stage in range(3):
            x, gate = draw(rng, dtype, (3, 8, 2)), draw(rng, dtype, (4,), low=0, high=1)
            op = FftButterflyStage(stage=stage, n_fft=8)
            yield Sample(op, (x, gate), f"{dtype} {stage}", tolerance=_narrow(dtype))
    none = np.zeros((0, 4, 2), np.float32), np.ones(2, np.float32)
    yield Sample(FftButterflyStage(stage=1, n_fft=4), none, "no batch")
    for dtype in (DType.F32, DType.F64):
        for lead in ((5,), (2, 3), (0, 3), (1, 2, 1)):
            spectrum, filters = draw(rng, dtype, (*lead, 34)), draw(rng, dtype, (4, 17), low=0)
            yield Sample(LogMel(), (spectrum, filters), f"{dtype} {lead}")
        for batch, segments, bins, k in ((3, 4, 33, 5), (0, 1, 3, 2), (2, 1, 1, 1), (1, 63, 4, 4)):
            x = draw(rng, dtype, (batch, segments, 2 * bins))
            op = WelchPeaks(k=k, n_segments=segments)
            yield Sample(op, (x,), f"{dtype} {batch} {segments} {bins}")
    ties = np.zeros((1, 1, 8), np.float32)
    yield Sample(WelchPeaks(k=3, n_segments=1), (ties,), "ties")
    quiet = np.zeros((2, 4), np.float32)
    yield Sample(LogMel(), (quiet, np.ones((3, 2), np.float32)), "silence")


def _narrow(dtype: DType) -> Tolerance | None:
    # Products are rounded in f32 and cancel.
    return Tolerance(4e-6, 1e-5) if dtype is DType.F32 else None


def _fixed_point(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, scale in itertools.product((DType.I16, DType.I32), FftQScale):
        for inverse, norm in itertools.product((False, True), BlockNorm):
            op = FftQ(inverse=inverse, norm=norm, scale=scale)
            x = draw(rng, dtype, (2, 16), low=-(2**14), high=2**14)
            label = f"{dtype} {scale.value} {inverse} {norm.value}"
            yield Sample(op, (x,), label, check=functools.partial(_check_fixed_point, op))
        extreme = draw(rng, dtype, (3, 16), special=True)
        yield Sample(FftQ(scale=scale), (extreme,), f"{dtype} {scale.value} extreme")
    for shape in ((2,), (0, 4), (1, 128)):
        yield Sample(FftQ(), (draw(rng, DType.I16, shape),), f"{shape}")


def _check_fixed_point(op: FftQ, found: Any, wanted: Any, inputs: Any) -> None:
    """Equal bits, and near the transform: each of three stages rounds by at most one unit."""
    assert np.array_equal(found[0], wanted[0])
    exact = BlockFft(inverse=op.inverse, norm=op.norm).evaluate(inputs[0].astype(np.float64))
    if op.scale is FftQScale.PER_STAGE:
        exact = exact / 8
    limits = np.iinfo(found[0].dtype)
    assert np.abs(found[0] - np.clip(exact, limits.min, limits.max)).max() < 12


def error_samples() -> Iterator[ErrorSample]:
    yield from unary_errors(ComplexNormSq, "f32")
    for dtype in ("i32", "bf16"):
        yield ErrorSample(BlockFft, (f"{dtype}[4]",), DTypeError, "C1", f"got {dtype}[4]")
    for type_ in ("f32[]", "f32[0]", "f32[5]", "c64[0]"):
        yield ErrorSample(BlockFft, (type_,), ShapeError, "C2", f"N ≥ 1; got {type_}")
    yield ErrorSample(BlockFft, ("f32[b + 1]",), InconclusiveDimError, "C2", "f32[b + 1]")
    yield ErrorSample(FftQ, ("i8[4]",), DTypeError, "C1", "i16 or i32; got i8[4]")
    for type_ in ("i16[]", "i16[1]", "i16[6]", "i16[b]"):
        yield ErrorSample(FftQ, (type_,), ShapeError, "C2", f"power of two; got {type_}")
    yield from _stage_errors()
    mel, filters = "f32[3, 8]", "f32[5, 4]"
    for types in (("f32[8]", filters), (mel, "f32[4]"), (mel, "f32[5, 3]")):
        yield ErrorSample(LogMel, types, ShapeError, "C1", f"got {types[0]} and {types[1]}")
    yield ErrorSample(LogMel, ("f32[3, 7]", filters), ShapeError, "C1", "got f32[3, 7]")
    yield ErrorSample(LogMel, ("f16[3, 8]", "f16[5, 4]"), DTypeError, "C2", "f64; got f16[3, 8]")
    yield ErrorSample(LogMel, (mel, "f64[5, 4]"), DTypeError, "C2", "and f64[5, 4]")
    peaks = functools.partial(WelchPeaks, k=2, n_segments=3)
    for type_ in ("f32[3, 8]", "f32[1, 2, 8]", "f32[1, 3, 7]"):
        yield ErrorSample(peaks, (type_,), ShapeError, "C1", f"got {type_}")
    nothing = functools.partial(WelchPeaks, k=2, n_segments=0)
    yield ErrorSample(nothing, ("f32[1, 0, 8]",), ShapeError, "C1", "at least one segment")
    yield ErrorSample(peaks, ("bf16[1, 3, 8]",), DTypeError, "C2", "got bf16[1, 3, 8]")
    yield ErrorSample(peaks, ("f32[1, 3, 2]",), ShapeError, "C3", "f32[1, 3, 2]; got 2")
    none = functools.partial(WelchPeaks, k=0, n_segments=3)
    yield ErrorSample(none, ("f32[1, 3, 8]",), ShapeError, "C3", "f32[1, 3, 8]; got 0")


def _stage_errors() -> Iterator[ErrorSample]:
    good = ("f32[3, 4, 2]", "f32[2]")
    for stage, n_fft in ((0, 6), (0, 1), (2, 4), (-1, 4)):
        build = functools.partial(FftButterflyStage, stage=stage, n_fft=n_fft)
        yield ErrorSample(build, good, ShapeError, "C1", f"got {n_fft} and {stage}")
    build = functools.partial(FftButterflyStage, stage=1, n_fft=4)
    for types in (("f32[4, 2]", good[1]), ("f32[3, 4, 3]", good[1]), (good[0], "f32[4]")):
        yield ErrorSample(build, types, ShapeError, "C2", f"got {types[0]} and {types[1]}")
    yield ErrorSample(build, ("i32[3, 4, 2]", "i32[2]"), DTypeError, "C3", "required to be float")
    yield ErrorSample(build, (good[0], "f16[2]"), DTypeError, "C3", "one dtype; got f32[3, 4, 2]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(BlockFft(), ("f32[b, 2*n]",), {"b": 2, "n": 3})
    yield SymbolicSample(BlockFft(), ("c64[b, n]",), {"b": 2, "n": 3})
    yield SymbolicSample(ComplexNormSq(), ("c64[b]",), {"b": 2})
    yield SymbolicSample(FftQ(), ("i16[b, 8]",), {"b": 2})
    stage = FftButterflyStage(stage=1, n_fft=4)
    yield SymbolicSample(stage, ("f32[b, 4, 2]", "f32[2]"), {"b": 2})
    yield SymbolicSample(
        LogMel(), ("f32[b, f, 2*k]", "f32[m, k]"), {"b": 2, "f": 3, "k": 4, "m": 5}
    )
    yield SymbolicSample(WelchPeaks(k=2, n_segments=3), ("f32[b, 3, 8]",), {"b": 2})
