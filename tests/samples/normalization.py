"""Samples of softmax and the norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.op import Op
from rlx.ops.normalization import (
    AdaLayerNorm,
    BatchNormInference,
    GatedResidual,
    GroupNorm,
    LayerNorm,
    LayerNorm2d,
    LogSoftmax,
    RmsNorm,
    Softmax,
)
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

SHAPES = (((0, 4), 1), ((3, 0), 1), ((1, 1), 1), ((4, 63), -1), ((2, 65, 3), 1), ((5,), 0))
SMALL: dict[str, Any] = {"low": -1.2, "high": 1.2}
"""Of gains and offsets: a result near zero has the roundings of the two terms that cancel."""


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*FLOATS, DType.F8E4M3FN, DType.F8E5M2):
        for shape, axis in SHAPES:
            label = f"{dtype}{list(shape)} axis {axis}"
            special = dtype in FLOATS and shape == (4, 63)
            for op in (Softmax(axis=axis), LogSoftmax(axis=axis)):
                yield Sample(op, (draw(rng, dtype, shape, special=special),), label)
            if dtype not in FLOATS:
                continue
            for norm in (LayerNorm(axis=axis), RmsNorm(axis=axis, eps=1e-3)):
                vectors = (draw(rng, dtype, (shape[axis],), **SMALL) for _ in range(2))
                yield Sample(norm, (draw(rng, dtype, shape), *vectors), label)
    for dtype in FLOATS:
        for shape, groups in (((2, 6, 5, 3), 3), ((1, 4, 0), 2), ((0, 2), 1), ((3, 7, 2), 7)):
            vectors = (draw(rng, dtype, (shape[1],), **SMALL) for _ in range(2))
            op = GroupNorm(num_groups=groups)
            yield Sample(op, (draw(rng, dtype, shape), *vectors), f"{dtype}{list(shape)}")
        for shape, groups, axis in (((2, 5, 3, 6), 3, -1), ((1, 3, 8, 2), 2, 2)):
            vectors = (draw(rng, dtype, (shape[axis],), **SMALL) for _ in range(2))
            op = GroupNorm(num_groups=groups, axis=axis)
            arrays = (draw(rng, dtype, shape), *vectors)
            yield Sample(op, arrays, f"{dtype}{list(shape)} axis={axis}")
        for shape, axis in (((3, 63), -1), ((0, 2), -1), ((2, 1, 1), -1), ((2, 5, 3), 1)):
            vectors = (draw(rng, dtype, (shape[axis],), **SMALL) for _ in range(3))
            positive = draw(rng, dtype, (shape[axis],), low=0.5, high=2.0)
            arrays = (draw(rng, dtype, shape), *vectors, positive)
            op = BatchNormInference(axis=axis)
            yield Sample(op, arrays, f"{dtype}{list(shape)} axis={axis}")
        for shape, small in (((2, 5, 63), (2, 1, 63)), ((1, 1), (1,)), ((0, 3), (3,))):
            for rms in (False, True):
                vectors = (draw(rng, dtype, small, **SMALL) for _ in range(2))
                arrays = (draw(rng, dtype, shape), *vectors)
                yield Sample(AdaLayerNorm(rms=rms), arrays, f"{dtype}{list(shape)} rms={rms}")
        for shape in ((2, 6, 5, 3), (1, 1, 1, 1), (0, 2, 1, 1), (1, 63, 0, 2)):
            vectors = (draw(rng, dtype, (shape[1],), **SMALL) for _ in range(2))
            op = LayerNorm2d(eps=1e-3)
            yield Sample(op, (draw(rng, dtype, shape), *vectors), f"{dtype}{list(shape)}")
        for shape, gate in (((2, 5, 63), (2, 1, 63)), ((3, 65), ()), ((0, 3), (3,)), ((1,), (1,))):
            arrays = tuple(draw(rng, dtype, s) for s in (shape, shape, gate))
            yield Sample(GatedResidual(), arrays, f"{dtype}{list(shape)} gate {list(gate)}")
    yield _large(rng)


def _large(rng: np.random.Generator) -> Sample:
    """Squares that overflow f16 while the result does not."""
    values = draw(rng, DType.F16, (4, 1024), low=290.0, high=310.0)
    ones, zeros = np.ones(1024, np.float16), np.zeros(1024, np.float16)
    return Sample(RmsNorm(), (values, ones, zeros), "f16 large")


def error_samples() -> Iterator[ErrorSample]:
    for op in (Softmax, LogSoftmax):
        yield ErrorSample(_make(op, axis=2), ("f32[2, 3]",), ShapeError, "C1", "f32[2, 3]")
        yield ErrorSample(op, ("i32[2, 3]",), DTypeError, "C2", "i32[2, 3]")
    for op in (LayerNorm, RmsNorm):
        good = ("f32[2, 3]", "f32[3]", "f32[3]")
        yield ErrorSample(_make(op, axis=-3), good, ShapeError, "C1", "−2 ≤ axis < 2")
        yield ErrorSample(op, ("f32[2, 3]", "f32[2]", "f32[3]"), ShapeError, "C2", "gamma")
        yield ErrorSample(op, ("f32[2, 3]", "f32[3]", "f32[1, 3]"), ShapeError, "C2", "beta")
        symbolic = ("f32[2, d]", "f32[e]", "f32[d]")
        yield ErrorSample(op, symbolic, InconclusiveDimError, "C2", "f32[e]")
        yield ErrorSample(op, ("f32[2, 3]", "f16[3]", "f32[3]"), DTypeError, "C3", "f16[3]")
        yield ErrorSample(op, ("i32[3]", "i32[3]", "i32[3]"), DTypeError, "C3", "floating")
        yield ErrorSample(_make(op, eps=0.0), good, ShapeError, "C4", "got 0.0")
        yield ErrorSample(_make(op, eps=float("nan")), good, ShapeError, "C4", "got nan")
    group = _make(GroupNorm, num_groups=2)
    yield ErrorSample(group, ("f32[3]", "f32[3]", "f32[3]"), ShapeError, "C1", "axes N and C")
    first = _make(GroupNorm, num_groups=2, axis=-2)
    yield ErrorSample(first, ("f32[2, 4]", "f32[2]", "f32[2]"), ShapeError, "C1", "behind N")
    beyond = _make(GroupNorm, num_groups=2, axis=3)
    yield ErrorSample(beyond, ("f32[2, 4]", "f32[4]", "f32[4]"), ShapeError, "C1", "got 3")
    yield ErrorSample(group, ("f32[2, 4]", "f32[3]", "f32[4]"), ShapeError, "C2", "gamma")
    yield ErrorSample(group, ("f32[2, 4]", "f32[4]", "f64[4]"), DTypeError, "C3", "beta")
    tiny = _make(GroupNorm, num_groups=2, eps=-1.0)
    yield ErrorSample(tiny, ("f32[2, 4]", "f32[4]", "f32[4]"), ShapeError, "C4", "-1.0")
    yield ErrorSample(group, ("f32[2, 3]", "f32[3]", "f32[3]"), ShapeError, "C5", "C = 3")
    none = _make(GroupNorm, num_groups=0)
    yield ErrorSample(none, ("f32[2, 3]", "f32[3]", "f32[3]"), ShapeError, "C5", "got 0")
    symbolic = ("f32[2, c]", "f32[c]", "f32[c]")
    yield ErrorSample(group, symbolic, InconclusiveDimError, "C5", "C = c")
    vectors = ("f32[3]",) * 4
    batch = BatchNormInference
    yield ErrorSample(batch, ("f32[]", *vectors), ShapeError, "C1", "f32[]")
    yield ErrorSample(batch, ("f32[2, 4]", *vectors), ShapeError, "C2", "gamma")
    yield ErrorSample(batch, ("f16[2, 3]", *vectors), DTypeError, "C3", "f16[2, 3]")
    yield ErrorSample(_make(batch, eps=0.0), ("f32[2, 3]", *vectors), ShapeError, "C4", "eps")
    ada = AdaLayerNorm
    yield ErrorSample(ada, ("f32[]", "f32[]", "f32[]"), ShapeError, "C1", "f32[]")
    yield ErrorSample(ada, ("f32[2, 3]", "f32[3, 1]", "f32[3]"), ShapeError, "C2", "scale")
    yield ErrorSample(ada, ("f32[3]", "f32[3]", "f32[1, 3]"), ShapeError, "C2", "shift")
    yield ErrorSample(ada, ("f32[2, 3]", "f32[3]", "f16[3]"), DTypeError, "C3", "shift")
    yield ErrorSample(_make(ada, eps=0.0), ("f32[3]",) * 3, ShapeError, "C4", "eps")
    pixels = LayerNorm2d
    yield ErrorSample(pixels, ("f32[2, 3]", "f32[3]", "f32[3]"), ShapeError, "C1", "[N, C, H, W]")
    image = "f32[1, 3, 2, 2]"
    yield ErrorSample(pixels, (image, "f32[3]", "f32[2]"), ShapeError, "C2", "beta")
    yield ErrorSample(pixels, (image, "f16[3]", "f32[3]"), DTypeError, "C3", "gamma")
    yield ErrorSample(
        _make(pixels, eps=0.0), (image, "f32[3]", "f32[3]"), ShapeError, "C4", "got 0.0"
    )
    gated = GatedResidual
    yield ErrorSample(gated, ("f32[2, 3]", "f32[3]", "f32[3]"), ShapeError, "C1", "y is required")
    yield ErrorSample(gated, ("f32[2, 3]", "f32[2, 3]", "f32[2]"), ShapeError, "C2", "gate")
    yield ErrorSample(gated, ("f32[3]", "f32[3]", "f32[1, 3]"), ShapeError, "C2", "f32[1, 3]")
    yield ErrorSample(gated, ("f32[3]", "f16[3]", "f32[3]"), DTypeError, "C3", "y is required")
    yield ErrorSample(gated, ("i32[3]", "i32[3]", "i32[3]"), DTypeError, "C3", "floating")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(Softmax(), ("f32[b, s]",), {"b": 2, "s": 3})
    yield SymbolicSample(LogSoftmax(axis=0), ("f32[b, s]",), {"b": 2, "s": 3})
    vectors = ("f32[d]", "f32[d]")
    for op in (LayerNorm(), RmsNorm()):
        yield SymbolicSample(op, ("f32[b, d]", *vectors), {"b": 2, "d": 3})
    yield SymbolicSample(
        GroupNorm(num_groups=4),
        ("f32[b, 4*c, s]", "f32[4*c]", "f32[4*c]"),
        {"b": 1, "c": 2, "s": 3},
    )
    yield SymbolicSample(BatchNormInference(), ("f32[b, d]", *vectors, *vectors), {"b": 2, "d": 3})
    yield SymbolicSample(LayerNorm2d(), ("f32[b, d, 3, s]", *vectors), {"b": 2, "d": 3, "s": 2})
    yield SymbolicSample(
        GatedResidual(), ("f32[b, s, d]", "f32[b, s, d]", "f32[b, 1, d]"), {"b": 2, "s": 2, "d": 3}
    )
    yield SymbolicSample(
        AdaLayerNorm(), ("f32[b, s, d]", "f32[b, 1, d]", "f32[d]"), {"b": 2, "s": 2, "d": 3}
    )


def _make(op: type[Op], **attributes: Any) -> Callable[[], Op]:
    return lambda: op(**attributes)
