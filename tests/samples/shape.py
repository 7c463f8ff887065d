"""Samples of layouts, slices, joins and counters."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from rlx.dims import symbol
from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.op import Op
from rlx.ops.shape import (
    BroadcastInDim,
    Concatenate,
    DimValue,
    Expand,
    Iota,
    Narrow,
    Pad,
    Reshape,
    Reverse,
    Roll,
    Slice,
    Split,
    Tile,
    Transpose,
)
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    INTS,
    NARROW_FLOATS,
    SUB_BYTE,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)


def _jaxlib() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version("jaxlib").split(".")[:2])
    except PackageNotFoundError:  # NumPy's meaning is tested without it
        return (99,)


# Before 0.8, XLA's CPU returns wrong elements of two bits, or aborts.
_WHOLE = SUB_BYTE if _jaxlib() >= (0, 8) else tuple(d for d in SUB_BYTE if d.bits != 2)

DATA = (DType.BOOL, *FLOATS, *INTS, *UINTS, *COMPLEX, *_WHOLE, *NARROW_FLOATS)
"""Every dtype whose elements XLA's CPU moves."""

B = symbol("b")


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for op, shape in _moves():
        yield _sample(rng, op, DType.F32, shape)
    # One drawn dtype is not enough where a backend stores it in its own way.
    for dtype in DATA:
        for op in (
            BroadcastInDim(shape=(3, 5, 2), broadcast_dimensions=(1,)),
            Reverse(axes=(0,)),
            Slice(start_indices=(1,), limit_indices=(5,), strides=(2,)),
        ):
            yield _sample(rng, op, dtype, (5,))
        yield Sample(
            Pad(low=(1,), high=(-1,), interior=(1,)),
            (draw(rng, dtype, (3,), special=True), draw(rng, dtype, ())),
            f"{dtype}",
        )
        xs = tuple(draw(rng, dtype, (2, n), special=True) for n in (3, 1, 0))
        yield Sample(Concatenate(axis=1), xs, f"{dtype}")
        yield _sample(rng, Transpose(permutation=(1, 0)), dtype, (5, 7))
        yield _sample(rng, Reshape(shape=(7, 5)), dtype, (5, 7))
    yield from _pads(rng)
    yield from _joins(rng)
    yield from _counters()


def _moves() -> Iterator[tuple[Op, tuple[int, ...]]]:
    """Ops of one input with its shape."""
    yield BroadcastInDim(shape=(2, 3), broadcast_dimensions=()), ()
    yield BroadcastInDim(shape=(2, 0), broadcast_dimensions=(0,)), (2,)
    yield BroadcastInDim(shape=(65, 3, 63), broadcast_dimensions=(0, 2)), (1, 63)
    yield BroadcastInDim(shape=(4, 2, 3), broadcast_dimensions=(2, 0)), (3, 4)
    yield Expand(shape=(2, 3, 65)), (3, 1)
    yield Expand(shape=(0, 4)), (1, 1)
    yield Expand(shape=(5,)), ()
    yield Reshape(shape=()), (1, 1)
    yield Reshape(shape=(9, 7)), (63,)
    yield Reshape(shape=(5, 0)), (0, 3)
    yield Transpose(permutation=()), ()
    yield Transpose(permutation=(2, 0, 1)), (3, 65, 2)
    yield Transpose(permutation=(1, 0)), (0, 3)
    yield Reverse(axes=()), (3,)
    yield Reverse(axes=(0, 2)), (65, 3, 2)
    yield Reverse(axes=(1,)), (2, 0)
    yield Slice(start_indices=(), limit_indices=(), strides=()), ()
    yield Slice(start_indices=(3, 0), limit_indices=(63, 2), strides=(7, 1)), (65, 2)
    yield Slice(start_indices=(65,), limit_indices=(65,), strides=(1,)), (65,)
    yield Slice(start_indices=(0,), limit_indices=(0,), strides=(3,)), (0,)
    yield Narrow(axis=0, start=62, length=1), (63,)
    yield Narrow(axis=1, start=1, length=2), (5, 4)
    yield Narrow(axis=0, start=0, length=0), (0, 2)
    yield Split(axis=1, sizes=(1, 0, 4)), (3, 5)
    yield Split(axis=0, sizes=(65,)), (65,)
    yield Split(axis=0, sizes=(0, 0)), (0, 2)
    yield Roll(shifts=(2,), axes=(0,)), (65,)
    yield Roll(shifts=(-3, 7, 1), axes=(1, 0, 1)), (3, 5)
    yield Roll(shifts=(4,), axes=(0,)), (0, 2)
    yield Roll(shifts=(1,), axes=(0,)), (1,)
    yield Tile(reps=()), ()
    yield Tile(reps=(2, 3)), (3, 2)
    yield Tile(reps=(1, 0)), (3, 2)
    yield Tile(reps=(65,)), (0,)


def _pads(rng: np.random.Generator) -> Iterator[Sample]:
    cases = (
        ((), (), (), ()),
        ((1, 2), (0, 3), (0, 0), (63, 2)),
        ((0,), (0,), (3,), (0,)),
        ((2,), (1,), (2,), (0,)),
        ((-1, 0), (-2, 0), (2, 1), (5, 4)),
        ((-4,), (6,), (0,), (3,)),  # every element is cut
        ((6,), (-5,), (1,), (2,)),
        ((-2,), (-2,), (1,), (3,)),
        ((-3,), (2,), (1,), (3,)),
    )
    for low, high, interior, shape in cases:
        inputs = (draw(rng, DType.F32, shape, special=True), draw(rng, DType.F32, ()))
        yield Sample(Pad(low=low, high=high, interior=interior), inputs, f"{low} {high} {shape}")


def _joins(rng: np.random.Generator) -> Iterator[Sample]:
    for axis, shapes in ((0, [(0,)]), (0, [(1,), (0,), (65,)]), (1, [(2, 3, 4), (2, 1, 4)])):
        xs = tuple(draw(rng, DType.F32, shape, special=True) for shape in shapes)
        yield Sample(Concatenate(axis=axis), xs, f"{shapes}")


def _counters() -> Iterator[Sample]:
    for dtype in DATA[1:]:
        yield Sample(Iota(dtype=dtype, shape=(3, 20), axis=1), (), f"{dtype}")
    yield Sample(Iota(dtype=DType.I8, shape=(300,), axis=0), (), "wraps around")
    yield Sample(Iota(dtype=DType.BF16, shape=(1000,), axis=0), (), "rounds")
    yield Sample(Iota(dtype=DType.F16, shape=(2, 0, 65), axis=2), (), "empty")
    yield Sample(Iota(dtype=DType.I32, shape=(63, 2), axis=0), (), "first axis")
    yield Sample(DimValue(dim=7), (), "i32")
    yield Sample(DimValue(dim=2**40, dtype=DType.I64), (), "i64")


def _sample(rng: np.random.Generator, op: Op, dtype: DType, shape: tuple[int, ...]) -> Sample:
    return Sample(op, (draw(rng, dtype, shape, special=True),), f"{dtype}{list(shape)}")


def error_samples() -> Iterator[ErrorSample]:
    def bid(shape: tuple[int, ...], axes: tuple[int, ...]) -> BroadcastInDim:
        return BroadcastInDim(shape=shape, broadcast_dimensions=axes)

    yield ErrorSample(lambda: bid((2, 3), (0,)), ("f32[2, 3]",), ShapeError, "C1", "(0,)")
    yield ErrorSample(lambda: bid((2, 3), (0, 2)), ("f32[2, 3]",), ShapeError, "C2", "(0, 2)")
    yield ErrorSample(lambda: bid((2, 2), (0, 0)), ("f32[2, 2]",), ShapeError, "C2", "distinct")
    yield ErrorSample(lambda: bid((2, 3), (1,)), ("f32[2]",), ShapeError, "C3", "got 2")
    yield ErrorSample(lambda: Expand(shape=(3,)), ("f32[2, 3]",), ShapeError, "C1", "got 1")
    yield ErrorSample(lambda: Expand(shape=(3,)), ("f32[2]",), ShapeError, "C2", "got 2")
    yield ErrorSample(lambda: Reshape(shape=(4,)), ("f32[2, 3]",), ShapeError, "C1", "[4]")
    swap = Transpose(permutation=(0, 0))
    yield ErrorSample(lambda: swap, ("f32[2, 3]",), ShapeError, "C1", "(0, 0)")
    yield ErrorSample(lambda: Reverse(axes=(1,)), ("f32[2]",), ShapeError, "C1", "(1,)")

    def cut(start: int, limit: int, stride: int) -> Slice:
        return Slice(start_indices=(start,), limit_indices=(limit,), strides=(stride,))

    yield ErrorSample(lambda: cut(0, 1, 1), ("f32[2, 3]",), ShapeError, "C1", "1, 1 and 1")
    yield ErrorSample(lambda: cut(0, 1, 0), ("f32[2]",), ShapeError, "C2", "(0,)")
    yield ErrorSample(lambda: cut(0, 3, 1), ("f32[2]",), ShapeError, "C3", "end 3")
    yield ErrorSample(lambda: cut(-1, 1, 1), ("f32[2]",), ShapeError, "C3", "start -1")
    yield ErrorSample(
        lambda: Narrow(axis=1, start=0, length=1), ("f32[2]",), ShapeError, "C1", "got 1"
    )
    yield ErrorSample(
        lambda: Narrow(axis=0, start=1, length=2), ("f32[2]",), ShapeError, "C2", "end 3"
    )
    yield ErrorSample(lambda: Split(axis=1, sizes=(2,)), ("f32[2]",), ShapeError, "C1", "got 1")
    yield ErrorSample(lambda: Split(axis=0, sizes=()), ("f32[0]",), ShapeError, "C2", "[]")
    yield ErrorSample(lambda: Split(axis=0, sizes=(3, -1)), ("f32[2]",), ShapeError, "C2", "-1")
    yield ErrorSample(lambda: Split(axis=0, sizes=(2, 1)), ("f32[2]",), ShapeError, "C3", "[2, 1]")
    yield ErrorSample(lambda: Roll(shifts=(1,), axes=()), ("f32[2]",), ShapeError, "C1", "(1,)")
    yield ErrorSample(lambda: Roll(shifts=(1,), axes=(1,)), ("f32[2]",), ShapeError, "C2", "got 1")

    yield ErrorSample(lambda: Concatenate(axis=0), (), ShapeError, "C1", "got none")
    pair = ("f32[2]", "f16[2]")
    yield ErrorSample(lambda: Concatenate(axis=0), pair, DTypeError, "C2", "f16[2]")
    yield ErrorSample(lambda: Concatenate(axis=1), ("f32[2]",), ShapeError, "C3", "got 1")
    pair = ("f32[2, 3]", "f32[2, 4]")
    yield ErrorSample(lambda: Concatenate(axis=0), pair, ShapeError, "C4", "f32[2, 4]")
    pair = ("f32[2, 3]", "f32[2]")
    yield ErrorSample(lambda: Concatenate(axis=0), pair, ShapeError, "C4", "f32[2]")

    def pad(low: int, high: int, interior: int) -> Pad:
        return Pad(low=(low,), high=(high,), interior=(interior,))

    ok = ("f32[2]", "f32[]")
    yield ErrorSample(lambda: pad(0, 0, 0), ("f32[2, 2]", "f32[]"), ShapeError, "C1", "1, 1 and 1")
    yield ErrorSample(lambda: pad(0, 0, -1), ok, ShapeError, "C2", "(-1,)")
    yield ErrorSample(lambda: pad(0, 0, 0), ("f32[2]", "f32[1]"), ShapeError, "C3", "f32[1]")
    yield ErrorSample(lambda: pad(0, 0, 0), ("f32[2]", "f16[]"), DTypeError, "C4", "f16[]")
    yield ErrorSample(lambda: pad(-2, -1, 0), ok, ShapeError, "C5", "got -1")
    yield ErrorSample(lambda: Tile(reps=(2,)), ("f32[2, 3]",), ShapeError, "C1", "[2]")
    yield ErrorSample(lambda: Tile(reps=(-2,)), ("f32[2]",), ShapeError, "C2", "[-2]")
    yield ErrorSample(lambda: Iota(dtype=DType.I32, shape=(2,), axis=1), (), ShapeError, "C1", "1")
    yield ErrorSample(lambda: Iota(dtype=DType.BOOL, shape=(2,)), (), DTypeError, "C2", "bool")
    yield ErrorSample(lambda: DimValue(dim=2, dtype=DType.F32), (), DTypeError, "C1", "f32")


def symbolic_samples() -> Iterator[SymbolicSample]:
    bind = {"b": 3}
    for op, *types in (
        (BroadcastInDim(shape=(2, B, 4), broadcast_dimensions=(1,)), "f32[b]"),
        (BroadcastInDim(shape=(B, B), broadcast_dimensions=(0, 1)), "f32[1, b]"),
        (Expand(shape=(B, 4, B)), "f32[1, b]"),
        (Reshape(shape=(4 * B,)), "f32[b, 4]"),
        (Reshape(shape=(2, 2 * B)), "f32[b, 4]"),
        (Transpose(permutation=(1, 0)), "f32[b, 4]"),
        (Reverse(axes=(0,)), "f32[b, 4]"),
        (Slice(start_indices=(0, 1), limit_indices=(B, 4), strides=(2, 1)), "f32[b, 4]"),
        (Slice(start_indices=(B - 1,), limit_indices=(B,), strides=(1,)), "f32[b]"),
        (Narrow(axis=0, start=1, length=B), "f32[b + 1]"),
        (Split(axis=0, sizes=(B, 2)), "f32[b + 2]"),
        (Roll(shifts=(2,), axes=(0,)), "f32[b]"),
        (Concatenate(axis=0), "f32[b, 4]", "f32[2*b, 4]", "f32[3, 4]"),
        (Pad(low=(1,), high=(B,), interior=(2,)), "f32[b]", "f32[]"),
        (Pad(low=(-1,), high=(0,), interior=(0,)), "f32[b]", "f32[]"),
        (Tile(reps=(2, B)), "f32[b, 4]"),
        (DimValue(dim=B * 2),),
    ):
        yield SymbolicSample(op, tuple(types), bind)
