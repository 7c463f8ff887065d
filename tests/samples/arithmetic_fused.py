"""Samples of fused multiply-add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.arithmetic import Fma
from tests.samples.base import (
    FLOATS,
    NARROW_FLOATS,
    SIZES,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*FLOATS, *NARROW_FLOATS):
        check = _once_or_twice if dtype is DType.F64 else None
        ulp = None if dtype is DType.F64 else 0.0
        for size in SIZES:
            inputs = tuple(draw(rng, dtype, (size,), special=size > 60) for _ in range(3))
            mixed = tuple(rng.permutation(x) for x in inputs)
            yield Sample(Fma(), mixed, f"{dtype} {size}", check=check, max_ulp=ulp)
        # Sums that nearly cancel show a rounding of the product.
        a, b = (draw(rng, dtype, (65,), low=0.5, high=2) for _ in range(2))
        c = -(a.astype(np.float64) * b.astype(np.float64)).astype(a.dtype)
        yield Sample(Fma(), (a, b, c), f"{dtype} cancels", check=check, max_ulp=ulp)


def _once_or_twice(found: Any, wanted: Any, inputs: Any) -> None:
    a, b, c = inputs
    with np.errstate(all="ignore"):
        for got in (found[0], wanted[0]):
            once, twice = Fma().evaluate(a, b, c), a * b + c
            same = (got == once) | (got == twice) | (np.isnan(got) & np.isnan(once))
            same |= np.abs(got - once) < np.finfo(np.float64).tiny  # a subnormal may read as zero
            assert same.all()


def error_samples() -> Iterator[ErrorSample]:
    x, y = "f32[3]", "f32[2]"
    yield ErrorSample(Fma, (x, y, x), ShapeError, "C1", "a and b are required to have one shape")
    yield ErrorSample(Fma, (x, x, y), ShapeError, "C1", "a and c are required to have one shape")
    yield ErrorSample(Fma, ("f32[b]", x, x), InconclusiveDimError, "C1", "b")
    yield ErrorSample(Fma, (x, x, "f16[3]"), DTypeError, "C2", "one dtype; got f32[3] and f16[3]")
    for dtype in ("i32", "bool", "c64"):
        kind = (f"{dtype}[3]",) * 3
        yield ErrorSample(Fma, kind, DTypeError, "C3", f"required to be float; got {dtype}[3]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(Fma(), ("f32[b, 3]",) * 3, {"b": 2})
