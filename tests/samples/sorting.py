"""Samples of sorting."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops.sorting import ApproxTopK, ArgSort, Sort, TopK, TopNan
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    INTS,
    NARROW_FLOATS,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)
from tests.samples.reduction import some

SHAPES = (((65,), 0), ((3, 63), 1), ((9, 2), 0), ((1,), 0), ((0, 2), 0))
TOPS = (((65,), 7), ((3, 63), 5), ((2, 9), 9), ((2, 1), 1), ((3, 4), 0), ((0, 4), 2))
ALL = (DType.BOOL, *INTS, *UINTS, *FLOATS, *NARROW_FLOATS)


def _with_ties(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Small whole numbers, and in floats NaN, infinities and both zeros."""
    x = np.round(draw(rng, DType.F32, shape, low=0 if dtype in UINTS else -3, high=3))
    if dtype.is_float and x.size > 8:
        x.reshape(-1)[rng.permutation(x.size)[:5]] = [np.nan, np.nan, np.inf, -np.inf, -0.0]
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in ALL:
        for shape, axis in some(rng, SHAPES, dtype):
            x = _with_ties(rng, dtype, shape)
            index = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape).copy()
            label = f"{dtype}{list(shape)}"
            yield Sample(Sort(axis=axis), (x, index), label)
            descending = bool(rng.integers(0, 2))
            yield Sample(ArgSort(axis=axis, descending=descending), (x,), label)
        for shape, k in some(rng, TOPS, dtype):
            if dtype is DType.BOOL:
                continue
            nan = TopNan.NEVER if rng.integers(0, 2) else TopNan.LARGEST
            x = _with_ties(rng, dtype, shape)
            yield Sample(TopK(k=k, nan=nan), (x,), f"{dtype}{list(shape)} {k} {nan.value}")
    for dtype in (DType.F32, DType.F16, DType.BF16, DType.F64):
        # Distinct numbers: which of equal ones is found is the device's choice.
        line = rng.permutation(195).reshape(3, 65).astype(dtype.numpy) - dtype.numpy.type(97)
        for op in (
            ApproxTopK(k=7, axis=1),
            ApproxTopK(k=2, axis=0, largest=False, recall=0.5),
            ApproxTopK(k=1, axis=1, recall=1.0, input_size=130),
            ApproxTopK(k=3, axis=1, size=65),
        ):
            yield Sample(op, (line,), f"{dtype} {op.k} {op.axis} {op.size}")
    for dtype in (*ALL, *COMPLEX):
        yield Sample(Sort(axis=0, is_stable=False), (draw(rng, dtype, (65,)),), f"{dtype} alone")
    for dtype in COMPLEX:
        parts = [_with_ties(rng, dtype.real, (65,)) for _ in range(2)]
        x = np.empty(65, dtype.numpy)
        x.real, x.imag = parts
        index = np.arange(65, dtype=np.int32)
        yield Sample(Sort(axis=0), (x, index), f"{dtype}")
        yield Sample(ArgSort(axis=0, descending=True, index_dtype=DType.I64), (x,), f"{dtype}")
    keys = (_with_ties(rng, DType.F32, (2, 65)), _with_ties(rng, DType.I32, (2, 65)))
    follower = draw(rng, DType.BF16, (2, 65))
    yield Sample(Sort(axis=1, num_keys=2), (*keys, follower), "two keys")


def error_samples() -> Iterator[ErrorSample]:
    yield ErrorSample(lambda: Sort(axis=0), (), ShapeError, "C1", "none")
    yield ErrorSample(lambda: Sort(axis=0), ("f32[2]", "f32[3]"), ShapeError, "C1", "f32[3]")
    yield ErrorSample(lambda: Sort(axis=1), ("f32[2]",), ShapeError, "C2", "f32[2]")
    yield ErrorSample(lambda: Sort(axis=0, num_keys=2), ("f32[2]",), ShapeError, "C3", "2")
    yield ErrorSample(lambda: ArgSort(axis=1), ("f32[2]",), ShapeError, "C1", "f32[2]")
    yield ErrorSample(
        lambda: ArgSort(axis=0, index_dtype=DType.F32), ("f32[2]",), DTypeError, "C2", "f32"
    )
    yield ErrorSample(lambda: TopK(k=3), ("f32[2]",), ShapeError, "C1", "f32[2]")
    yield ErrorSample(lambda: TopK(k=0), ("f32[]",), ShapeError, "C1", "f32[]")
    yield ErrorSample(lambda: TopK(k=1), ("c64[2]",), DTypeError, "C2", "c64[2]")
    yield ErrorSample(lambda: ApproxTopK(k=1, axis=1), ("f32[2]",), ShapeError, "C1", "f32[2]")
    yield ErrorSample(lambda: ApproxTopK(k=3, axis=0), ("f32[2]",), ShapeError, "C1", "got 3")
    yield ErrorSample(lambda: ApproxTopK(k=0, axis=0), ("f32[2]",), ShapeError, "C1", "got 0")
    yield ErrorSample(
        lambda: ApproxTopK(k=2, axis=0, size=1), ("f32[2]",), ShapeError, "C1", "2 and 1"
    )
    yield ErrorSample(lambda: ApproxTopK(k=1, axis=0), ("i32[2]",), DTypeError, "C2", "i32[2]")
    yield ErrorSample(
        lambda: ApproxTopK(k=1, axis=0, recall=0.0), ("f32[2]",), ShapeError, "C3", "got 0.0"
    )


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(ApproxTopK(k=1, axis=1), ("f32[b, n]",), {"b": 2, "n": 3})
    yield SymbolicSample(Sort(axis=1), ("f32[b, s]", "i32[b, s]"), {"b": 2, "s": 3})
    yield SymbolicSample(ArgSort(axis=1), ("f32[b, s]",), {"b": 2, "s": 3})
    yield SymbolicSample(TopK(k=1), ("f32[b, s]",), {"b": 2, "s": 3})
