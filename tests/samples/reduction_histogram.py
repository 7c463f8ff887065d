"""Samples of histograms; all of them are exact."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops.reduction import Histogram
from tests.samples.base import (
    FLOATS,
    INTS,
    NARROW_FLOATS,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*FLOATS, *NARROW_FLOATS, *INTS, *UINTS):
        low = float(rng.uniform(-3, 0))
        for op in (Histogram(bins=7, low=low, high=2.25), Histogram(bins=4, low=-2.0, high=2.0)):
            yield Sample(op, (draw(rng, dtype, (13, 5)),), f"{dtype} {op.low}")
        yield Sample(op, (draw(rng, dtype, (65,), special=True),), f"{dtype} special")
    for shape in ((), (0,), (1,), (63,)):
        x = draw(rng, DType.F32, shape)
        yield Sample(Histogram(bins=1, low=-3.0, high=3.0), (x,), f"{shape}")
    edges = np.array([-1, 0, 0.5, 1, 1.5, 2, 2.0000002], np.float32)
    yield Sample(Histogram(bins=4, low=0.0, high=2.0), (edges,), "edges")


def error_samples() -> Iterator[ErrorSample]:
    good = functools.partial(Histogram, bins=2, low=0.0, high=1.0)
    for dtype in ("bool", "c64"):
        yield ErrorSample(good, (f"{dtype}[3]",), DTypeError, "C1", f"got {dtype}[3]")
    for bins, low, high in (
        (0, 0.0, 1.0),
        (2, 1.0, 1.0),
        (2, float("nan"), 1.0),
        (2, 0.0, float("inf")),
        (2, -1e308, 1e308),
    ):
        build = functools.partial(Histogram, bins=bins, low=low, high=high)
        match = f"got {bins}, {low} and {high}"
        yield ErrorSample(build, ("f32[3]",), ShapeError, "C2", match)


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(Histogram(bins=3, low=0.0, high=1.0), ("f32[b, 3]",), {"b": 2})
