"""Samples of constants; inputs and params are fed by the caller."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.ir.attributes import Literal
from rlx.ops.io import Constant
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    INTS,
    NARROW_FLOATS,
    SIZES,
    SUB_BYTE,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*FLOATS, *NARROW_FLOATS, *INTS, *UINTS, *SUB_BYTE, *COMPLEX):
        size = SIZES[int(rng.integers(len(SIZES)))]
        data = draw(rng, dtype, (size,), special=True)
        yield Sample(Constant(value=Literal(data)), (), f"{dtype}[{size}]")
    for size in (0, 1, 3, 8, 9, 63, 65):  # bits are packed: sizes around a byte matter
        bits = rng.integers(0, 2, size).astype(np.bool_)
        yield Sample(Constant(value=Literal(bits)), (), f"bool[{size}]")
    yield Sample(Constant(value=Literal(np.array([[True, False, True]]))), (), "bool[1, 3]")
    yield Sample(Constant(value=Literal(np.float32(-0.0))), (), "f32[]")


def error_samples() -> Iterator[ErrorSample]:
    yield from ()


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield from ()
