"""Samples of complex parts and Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops import complex_fft as ops
from rlx.ops.complex_fft import Fft, FftNorm, FftType
from rlx.tolerances import Tolerance
from tests.samples.base import COMPLEX, ErrorSample, Sample, SymbolicSample, draw
from tests.samples.elementwise import binary_errors, elementwise, unary_errors

# Sums of up to 65 · 6 terms of size 3, whose errors do not shrink with the result.
_BOUND = {DType.C64: Tolerance(1e-4, 1e-5), DType.C128: Tolerance(1e-12, 1e-11)}
_LENGTHS = ((1,), (8,), (63,), (65,), (4, 6), (3, 5, 2))


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for op in (ops.Real(), ops.Imag(), ops.Conj()):
        yield from elementwise(rng, op, COMPLEX, complex_special=True)
    yield from elementwise(rng, ops.Complex(), (DType.F32, DType.F64), arity=2)
    for kind in FftType:
        for dtype in COMPLEX:
            for lengths in _LENGTHS:
                op = Fft(fft_type=kind, fft_lengths=lengths)
                yield _transform(rng, op, dtype, (2, 3))
        for norm in (FftNorm.FORWARD, FftNorm.ORTHO):
            op = Fft(fft_type=kind, fft_lengths=(4, 6), norm=norm)
            yield _transform(rng, op, DType.C64, (2,))
        yield _transform(rng, Fft(fft_type=kind, fft_lengths=(5,)), DType.C64, (0,))


def _transform(rng: np.random.Generator, op: Fft, dtype: DType, lead: tuple[int, ...]) -> Sample:
    *outer, last = op.fft_lengths
    if op.fft_type is FftType.IRFFT:
        last = last // 2 + 1
    source = dtype.real if op.fft_type is FftType.RFFT else dtype
    x = draw(rng, source, (*lead, *outer, last))
    label = f"{op.fft_type.value} {dtype} {op.fft_lengths} {op.norm.value}"
    return Sample(op, (x,), label, tolerance=_BOUND[dtype])


def error_samples() -> Iterator[ErrorSample]:
    for op in (ops.Real, ops.Imag, ops.Conj):
        yield from unary_errors(op, "f32")
    yield from binary_errors(ops.Complex, ("f32", "f64"), "bf16")

    def transform(kind: FftType, *lengths: int) -> Fft:
        return Fft(fft_type=kind, fft_lengths=lengths)

    yield ErrorSample(lambda: transform(FftType.FFT, 2, 2), ("c64[2]",), ShapeError, "C1", "(2, 2)")
    yield ErrorSample(lambda: transform(FftType.FFT), ("c64[2]",), ShapeError, "C1", "()")
    yield ErrorSample(lambda: transform(FftType.RFFT, 2), ("c64[2]",), DTypeError, "C2", "f32 or")
    yield ErrorSample(lambda: transform(FftType.IFFT, 2), ("f32[2]",), DTypeError, "C2", "complex")
    yield ErrorSample(lambda: transform(FftType.FFT, 4), ("c64[5]",), ShapeError, "C3", "c64[5]")
    yield ErrorSample(lambda: transform(FftType.IRFFT, 4), ("c64[4]",), ShapeError, "C3", "(3,)")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(ops.Complex(), ("f32[b]", "f32[b]"), {"b": 3})
    yield SymbolicSample(ops.Real(), ("c64[b]",), {"b": 3})
    transform = Fft(fft_type=FftType.RFFT, fft_lengths=(8,))
    yield SymbolicSample(transform, ("f32[b, 8]",), {"b": 3})
