"""Samples of comparisons and choices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops.compare import Compare, Direction, Select, SelectN
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    NARROW_FLOATS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)
from tests.samples.elementwise import BOOL, NUMBERS, REALS, SHAPES, TINY, binary_errors, elementwise


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    directions = list(Direction)
    for position, dtype in enumerate((*REALS, *BOOL, *TINY)):
        # Two directions for each dtype, so that all of them meet every kind of number.
        for direction in (directions[position % 6], directions[(position + 3) % 6]):
            op = Compare(direction=direction)
            yield from elementwise(rng, op, (dtype,) if position else (dtype, dtype), arity=2)
    for dtype in COMPLEX:
        x = draw(rng, dtype, (65,), special=True)
        y = np.where(rng.integers(0, 2, 65) == 0, x, x.conj())
        for direction in (Direction.EQ, Direction.NE):
            yield Sample(Compare(direction=direction), (x, y), f"{dtype} {direction.value}")
    for dtype in (*FLOATS, DType.I32, DType.U8, DType.F8E5M2):
        x = draw(rng, dtype, (16,), special=True)
        y = np.roll(np.concatenate([x[:8], -x[:8]]), int(rng.integers(8)))
        for direction in directions[:4]:
            op = Compare(direction=direction, total_order=True)
            yield Sample(op, (x, y), f"{dtype} {direction.value} total")
    yield from _choices(rng)


def _choices(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*NUMBERS, *BOOL, *TINY, *NARROW_FLOATS):
        for shape in SHAPES if dtype is DType.F32 else ((65,),):
            pred = draw(rng, DType.BOOL, shape)
            yes, no = (draw(rng, dtype, shape, special=True) for _ in range(2))
            yield Sample(Select(), (pred, yes, no), f"{dtype}{list(shape)}")
    scalar = np.asarray(rng.integers(0, 2) == 1)
    yield Sample(Select(), (scalar, yes, no), "scalar pred")
    for dtype in (DType.I32, DType.I8, DType.U8, DType.I64):
        for count in (1, 2, 3, 5):
            which = draw(rng, dtype, (2, 7), low=-2, high=6)
            cases = (draw(rng, DType.F32, (2, 7)) for _ in range(count))
            yield Sample(SelectN(), (which, *cases), f"{count} by {dtype}")
    which = draw(rng, DType.BOOL, (9,))
    yield Sample(SelectN(), (which, *(draw(rng, DType.I32, (9,)) for _ in "ab")), "bool")
    which = np.asarray(2, np.int32)
    yield Sample(SelectN(), (which, *(draw(rng, DType.BF16, (9,)) for _ in "abcd")), "scalar")


def error_samples() -> Iterator[ErrorSample]:
    yield from binary_errors(lambda: Compare(direction=Direction.LT), ("f32", "i32"), "token")
    yield ErrorSample(
        lambda: Compare(direction=Direction.LT), ("c64[2]", "c64[2]"), DTypeError, "C4", "lt of"
    )
    yield ErrorSample(Select, ("bool[]", "f32[2]", "f32[3]"), ShapeError, "C1", "f32[3]")
    yield ErrorSample(Select, ("bool[]", "f32[2]", "f16[2]"), DTypeError, "C2", "f16[2]")
    yield ErrorSample(Select, ("i32[]", "f32[2]", "f32[2]"), DTypeError, "C3", "i32[]")
    yield ErrorSample(Select, ("bool[3]", "f32[2]", "f32[2]"), ShapeError, "C4", "bool[3]")
    yield ErrorSample(SelectN, ("i32[]", "f32[2]", "f32[3]"), ShapeError, "C1", "cases[1]")
    yield ErrorSample(SelectN, ("i32[]", "f32[2]", "f16[2]"), DTypeError, "C2", "f16[2]")
    yield ErrorSample(SelectN, ("f32[]", "f32[2]", "f32[2]"), DTypeError, "C3", "f32[]")
    yield ErrorSample(SelectN, ("i32[3]", "f32[2]", "f32[2]"), ShapeError, "C4", "i32[3]")
    yield ErrorSample(SelectN, ("i32[]",), ShapeError, "C5", "got 0")
    yield ErrorSample(SelectN, ("bool[]", *["f32[]"] * 3), ShapeError, "C5", "got 3")


def symbolic_samples() -> Iterator[SymbolicSample]:
    whole = "f32[b, 4]"
    yield SymbolicSample(Compare(direction=Direction.EQ), (whole, whole), {"b": 3})
    yield SymbolicSample(Select(), ("bool[b, 4]", whole, whole), {"b": 3})
    yield SymbolicSample(SelectN(), ("i32[]", whole, whole, whole), {"b": 3})
