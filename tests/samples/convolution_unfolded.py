"""Samples of im2col and of long one-dimensional convolutions."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.convolution import Im2Col, PartitionedConv
from rlx.tolerances import Tolerance
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw
from tests.samples.shape import DATA

# Sums of up to 65 products of size 9; a transform's error does not shrink with the result.
_BOUND = {
    DType.F32: Tolerance(3e-5, 1e-5),
    DType.F64: Tolerance(1e-12, 1e-11),
    DType.F16: Tolerance(1e-3, 2e-3),
    DType.BF16: Tolerance(8e-3, 1.6e-2),
}


def windows(
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
) -> Im2Col:
    """An im2col with what is left out at its neutral value."""
    rank = len(kernel)
    return Im2Col(
        kernel=kernel,
        stride=stride or (1,) * rank,
        padding=padding or (0,) * rank,
        dilation=dilation or (1,) * rank,
    )


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    op = windows((2, 3), (2, 1), (1, 0), (1, 2))
    for dtype in DATA:
        yield Sample(op, (draw(rng, dtype, (2, 3, 4, 5), special=True),), f"{dtype}")
    for shape, other in (
        ((2, 3, 9), windows((3,), (2,), (1,))),
        ((1, 2, 3, 4, 5), windows((2, 1, 3), padding=(0, 1, 1))),
        ((0, 2, 5), windows((2,))),
        ((2, 0, 5), windows((2,))),
        ((2, 2, 3), windows((5,))),
        ((1, 1, 65), windows((65,))),
        ((3, 2, 1), windows((1,))),
    ):
        yield Sample(other, (draw(rng, DType.F32, shape),), f"{shape}")
    for dtype in FLOATS:
        for length, taps, block in ((63, 7, 16), (65, 65, 8), (1, 3, 1), (20, 1, 1)):
            x, ir = draw(rng, dtype, (2, 3, length)), draw(rng, dtype, (taps,))
            conv = PartitionedConv(block=block)
            label = f"{dtype} {length} {taps} {block}"
            yield Sample(conv, (x, ir), label, tolerance=_BOUND[dtype])
    x, ir = draw(rng, DType.F32, (65,)), draw(rng, DType.F32, (5,))
    yield Sample(PartitionedConv(), (x, ir), "a vector", tolerance=_BOUND[DType.F32])
    yield Sample(PartitionedConv(block=2), (x[:0].reshape(0, 5).repeat(3, 1), ir), "no signal")


def error_samples() -> Iterator[ErrorSample]:
    flat = functools.partial(windows, (2,))
    yield ErrorSample(flat, ("f32[2, 3]",), ShapeError, "C1", "[1, 1, 1, 1] entries")
    yield ErrorSample(flat, ("f32[2, 3, 4, 5]",), ShapeError, "C1", "one entry for each")
    x = ("f32[2, 3, 4]",)
    for build in (
        functools.partial(windows, (0,)),
        functools.partial(windows, (2,), (0,)),
        functools.partial(windows, (2,), (1,), (-1,)),
        functools.partial(windows, (2,), (1,), (0,), (0,)),
    ):
        yield ErrorSample(build, x, ShapeError, "C2", "padding not negative; got (")
    conv, ir = PartitionedConv, "f32[3]"
    for signal, response in (("f32[]", ir), ("f32[4]", "f32[3, 1]"), ("f32[0]", ir)):
        match = f"ir [M]; got {signal} and {response}"
        yield ErrorSample(conv, (signal, response), ShapeError, "C1", match)
    yield ErrorSample(conv, ("f32[n - 1]", ir), InconclusiveDimError, "C1", "n - 1")
    yield ErrorSample(conv, ("i32[4]", "i32[3]"), DTypeError, "C2", "required to be float")
    yield ErrorSample(conv, ("f16[4]", ir), DTypeError, "C2", "one dtype; got f16[4] and f32[3]")
    none = functools.partial(conv, block=0)
    yield ErrorSample(none, ("f32[4]", ir), ShapeError, "C3", "block is required to be ≥ 1; got 0")


def symbolic_samples() -> Iterator[SymbolicSample]:
    op = windows((2, 3), (2, 1), (1, 0))
    yield SymbolicSample(op, ("f32[b, 3, h, 8]",), {"b": 2, "h": 5})
    yield SymbolicSample(PartitionedConv(), ("f32[b, n]", "f32[3]"), {"b": 2, "n": 5})
