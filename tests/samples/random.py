"""Samples of random bits; all of them are exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.random import RngAlgorithm, RngBitGenerator, Threefry2x32
from tests.samples.base import UINTS, ErrorSample, Sample, SymbolicSample, draw

SHAPES = ((), (0,), (1,), (63,), (65,), (3, 5), (4, 6), (2, 1, 3))


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        inputs = tuple(draw(rng, DType.U32, shape, special=True) for _ in range(4))
        yield Sample(Threefry2x32(), inputs, f"{shape}")
    for shape in SHAPES:
        for algorithm in RngAlgorithm:
            op = RngBitGenerator(algorithm=algorithm, dtype=DType.U32, shape=shape)
            state = draw(rng, DType.U32, (4,), special=True)
            yield Sample(op, (rng.permutation(state),), f"{algorithm.value} {shape}")
    for dtype in UINTS:
        for algorithm in RngAlgorithm:
            op = RngBitGenerator(algorithm=algorithm, dtype=dtype, shape=(5, 3))
            states = (draw(rng, DType.U64, (2,)), np.array([7, 2**64 - 2], np.uint64))
            for state in states:
                yield Sample(op, (state,), f"{algorithm.value} {dtype}")


def error_samples() -> Iterator[ErrorSample]:
    word, two = "u32[3]", "u32[2]"
    yield ErrorSample(Threefry2x32, (word, word, word, two), ShapeError, "C1", "x2: u32[2]")
    symbolic = ("u32[b]", "u32[b]", "u32[b]", "u32[c]")
    yield ErrorSample(Threefry2x32, symbolic, InconclusiveDimError, "C1", "u32[c]")
    yield ErrorSample(Threefry2x32, ("u64[3]", word, word, word), DTypeError, "C2", "k1: u64[3]")
    yield ErrorSample(RngBitGenerator, ("u32[2]",), ShapeError, "C1", "got u32[2]")
    yield ErrorSample(RngBitGenerator, ("i64[2]",), ShapeError, "C1", "got i64[2]")
    yield ErrorSample(
        lambda: RngBitGenerator(dtype=DType.F32), ("u64[2]",), DTypeError, "C2", "got f32"
    )


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(Threefry2x32(), ("u32[b, 3]",) * 4, {"b": 2})
    yield SymbolicSample(RngBitGenerator(shape=(2, 3)), ("u32[4]",))
