"""Samples of stepped slices, triangles, edge padding and resizing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dims import symbol
from rlx.dtypes import DType
from rlx.errors import InconclusiveDimError, ShapeError
from rlx.ops.shape import (
    EdgeMode,
    Interpolate3d,
    PadEdges,
    ResizeNearest2x,
    StridedSlice,
    Trilu,
)
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw
from tests.samples.shape import DATA

B = symbol("b")


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DATA:
        x = draw(rng, dtype, (5, 4), special=True)
        yield Sample(StridedSlice(axis=0, start=4, length=3, step=-2), (x,), f"{dtype}")
        yield Sample(Trilu(upper=bool(rng.integers(2))), (x,), f"{dtype}")
        for mode in EdgeMode:
            op = PadEdges(low=(2, 1), high=(0, 3), mode=mode)
            yield Sample(op, (x,), f"{dtype} {mode.value}")
        image = draw(rng, dtype, (2, 1, 3, 2), special=True)
        yield Sample(ResizeNearest2x(), (image,), f"{dtype}")
        yield Sample(Interpolate3d(size=(6, 1, 5)), (image[None],), f"{dtype}")
    yield from _slices(rng)
    yield from _triangles(rng)
    for shape, low, high in (((), (), ()), ((0, 3), (0, 2), (0, 2)), ((65, 1), (64, 0), (3, 0))):
        for mode in EdgeMode:
            x = draw(rng, DType.F32, shape)
            yield Sample(PadEdges(low=low, high=high, mode=mode), (x,), f"{shape} {mode.value}")
    one = draw(rng, DType.I32, (1,))
    yield Sample(PadEdges(low=(3,), high=(5,), mode=EdgeMode.REPLICATE), (one,), "one")
    yield Sample(PadEdges(low=(1,), high=(1,), mode=EdgeMode.CIRCULAR), (one,), "one")
    for shape in ((0, 1, 3, 3), (1, 2, 0, 4), (1, 1, 1, 65)):
        yield Sample(ResizeNearest2x(), (draw(rng, DType.F32, shape),), f"{shape}")
    for _ in range(8):
        shape, size = rng.integers(1, 9, 5), rng.integers(1, 20, 3)
        x = draw(rng, DType.F32, tuple(int(n) for n in shape))
        yield Sample(Interpolate3d(size=tuple(int(n) for n in size)), (x,), f"{shape} {size}")


def _slices(rng: np.random.Generator) -> Iterator[Sample]:
    x = draw(rng, DType.I32, (65, 3))
    for _ in range(12):
        start, step = int(rng.integers(65)), int(rng.choice([-7, -2, -1, 1, 3]))
        most = (64 - start) // step + 1 if step > 0 else start // -step + 1
        length = int(rng.integers(0, most + 1))
        op = StridedSlice(axis=0, start=start, length=length, step=step)
        yield Sample(op, (x,), f"{start} {length} {step}")
    yield Sample(StridedSlice(axis=0, start=9, length=0, step=-1), (x[:0],), "nothing of nothing")
    yield Sample(StridedSlice(axis=1, start=2, length=3, step=-1), (x,), "backwards")


def _triangles(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((0, 0), (1, 1), (63, 65), (2, 3, 5), (4, 0)):
        for diagonal in (-2, 1, 2**40, -(2**40)):
            op = Trilu(upper=bool(rng.integers(2)), diagonal=diagonal)
            yield Sample(op, (draw(rng, DType.F32, shape),), f"{shape} {diagonal}")


def error_samples() -> Iterator[ErrorSample]:
    def stepped(start: int, length: int, step: int, axis: int = 0) -> StridedSlice:
        return StridedSlice(axis=axis, start=start, length=length, step=step)

    x = ("f32[5, 4]",)
    yield ErrorSample(
        lambda: stepped(0, 1, 1, 2),
        x,
        ShapeError,
        "C1",
        "in range for x: f32[5, 4], 0 ≤ axis < 2; got 2",
    )
    yield ErrorSample(lambda: stepped(0, 1, 0), x, ShapeError, "C2", "got 0 and 1")
    yield ErrorSample(lambda: stepped(0, -1, 1), x, ShapeError, "C2", "got 1 and -1")
    yield ErrorSample(lambda: stepped(1, 3, 2), x, ShapeError, "C3", "from 1 to 5 are required")
    yield ErrorSample(lambda: stepped(3, 3, -2), x, ShapeError, "C3", "from -1 to 3 are required")
    yield ErrorSample(lambda: stepped(5, 1, -1), x, ShapeError, "C3", "from 5 to 5 are required")
    unsure = ("f32[b, 4]",)
    yield ErrorSample(lambda: stepped(1, 1, 1), unsure, InconclusiveDimError, "C3", "from 1 to 1")
    yield ErrorSample(Trilu, ("f32[5]",), ShapeError, "C1", "[..., m, n]; got f32[5]")
    yield from _padding_errors()
    yield ErrorSample(ResizeNearest2x, ("f32[1, 2, 3]",), ShapeError, "C1", "got f32[1, 2, 3]")
    volume = ("f32[1, 2, 3, 4, 5]",)
    for size in ((1, 2), (1, 2, 0)):
        yield ErrorSample(
            lambda size=size: Interpolate3d(size=size), volume, ShapeError, "C1", f"and {size}"
        )
    cube = lambda: Interpolate3d(size=(2, 2, 2))  # noqa: E731  made anew for each sample
    yield ErrorSample(cube, x, ShapeError, "C1", "[N, C, D, H, W]")
    yield ErrorSample(cube, ("f32[1, 1, 2, 0, 2]",), ShapeError, "C2", "axis 3 of x")


def _padding_errors() -> Iterator[ErrorSample]:
    def padded(low: tuple[int, ...], high: tuple[int, ...], mode: EdgeMode) -> PadEdges:
        return PadEdges(low=low, high=high, mode=mode)

    x = ("f32[5, 4]",)
    reflect, replicate, circular = EdgeMode.REFLECT, EdgeMode.REPLICATE, EdgeMode.CIRCULAR
    for low, high in (((1,), (0, 0)), ((0, 0), (1,)), ((0, -1), (0, 0))):
        yield ErrorSample(
            lambda low=low, high=high: padded(low, high, reflect), x, ShapeError, "C1",
            f"got {low} and {high}",
        )  # fmt: skip
    yield ErrorSample(
        lambda: padded((0, 0), (0, 4), reflect), x, ShapeError, "C2", "got amounts (0, 4)"
    )
    yield ErrorSample(
        lambda: padded((0, 5), (0, 4), circular), x, ShapeError, "C2", "got amounts (5, 4)"
    )
    yield ErrorSample(
        lambda: padded((1,), (0,), replicate), ("f32[0]",), ShapeError, "C2", "on axis 0 of x"
    )
    yield ErrorSample(
        lambda: padded((3,), (0,), reflect), ("f32[b]",), InconclusiveDimError, "C2", "(3, 0)"
    )


def symbolic_samples() -> Iterator[SymbolicSample]:
    step = StridedSlice(axis=0, start=B - 1, length=B, step=-1)
    yield SymbolicSample(step, ("f32[b, 4]",), {"b": 3})
    yield SymbolicSample(Trilu(), ("f32[b, c]",), {"b": 3, "c": 2})
    yield SymbolicSample(PadEdges(low=(1, 0), high=(0, 0)), ("f32[b + 1, c]",), {"b": 3, "c": 2})
    replicate = PadEdges(low=(7,), high=(1,), mode=EdgeMode.REPLICATE)
    yield SymbolicSample(replicate, ("f32[b]",), {"b": 3})
    yield SymbolicSample(ResizeNearest2x(), ("f32[b, 3, h, w]",), {"b": 2, "h": 3, "w": 4})
    yield SymbolicSample(
        Interpolate3d(size=(2, 3, 4)), ("f32[b, 3, d, 2, w]",), {"b": 2, "d": 3, "w": 4}
    )
