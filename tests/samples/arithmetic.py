"""Samples of elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.errors import DTypeError, ShapeError
from rlx.ops.arithmetic import Add
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    INTS,
    SIZES,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*FLOATS, *INTS, *UINTS, *COMPLEX):
        for size in SIZES:
            inputs = tuple(draw(rng, dtype, (size,), special=True) for _ in range(2))
            yield Sample(Add(), inputs, f"{dtype}[{size}]")


def error_samples() -> Iterator[ErrorSample]:
    yield ErrorSample(Add, ("f32[2]", "f32[3]"), ShapeError, "C1", "f32[3]")
    yield ErrorSample(Add, ("f32[2]", "f16[2]"), DTypeError, "C2", "f16[2]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(Add(), ("f32[b, 4]", "f32[b, 4]"), {"b": 3})
