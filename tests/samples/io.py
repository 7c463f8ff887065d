"""Samples of constants; inputs and params are fed by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import ShapeError
from rlx.ir.attributes import Literal
from rlx.ir.op import Op
from rlx.ops.io import Constant, Input, Param
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
    for cls in (Input, Param):

        def leaf(cls: Any = cls, **fields: Any) -> Callable[[], Op]:
            return lambda: cls(name="x", dtype=DType.F32, shape=(6, 4), **fields)

        mesh, name = (("d", 4),), cls.op_name
        yield ErrorSample(
            leaf(sharding=((), ())), (), ShapeError, "C1",
            f"{name} [C1]: mesh: axes with names of their own and sizes ≥ 1 are required; got none",
        )  # fmt: skip
        yield ErrorSample(
            leaf(mesh=mesh, sharding=((),)), (), ShapeError, "C2",
            f"{name} [C2]: the sharding of 'x' is required to have an entry for each axis, here 2",
        )  # fmt: skip
        yield ErrorSample(
            leaf(mesh=mesh, sharding=((), ("?",))), (), ShapeError, "C3",
            f"{name} [C3]: the sharding of 'x' is required to name axes of the mesh (d)",
        )  # fmt: skip
        yield ErrorSample(
            leaf(mesh=mesh, sharding=(("d",), ())), (), ShapeError, "C4",
            f"{name} [C4]: axis 0 of 'x' is required to be divisible by 4, the size of 'd'; got 6. "
            "Pad it to 8",
        )  # fmt: skip


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield from ()
