"""Samples of error, gamma, beta, zeta and Bessel functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.op import Op
from rlx.ops import special as ops
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw
from tests.samples.elementwise import binary_errors, elementwise, unary_errors

# XLA's own accuracy on the CPU in units in the last place (None where zeros of the function make
# it relative to the terms), with the interval that is drawn.
_UNARY: dict[type[Op], tuple[float | None, float, float]] = {
    ops.Erf: (6, -3, 3),
    ops.Erfc: (16, -3, 3),
    ops.ErfInv: (30, -0.99, 0.99),
    ops.Lgamma: (None, 3, 20),
    ops.BesselI0e: (12, -20, 20),
    ops.BesselI1e: (12, -20, 20),
}
_BINARY: dict[type[Op], tuple[float, float]] = {
    ops.Zeta: (1.5, 8),
    ops.Igamma: (0.2, 8),
    ops.Igammac: (0.2, 8),
}


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for op, (bound, low, high) in _UNARY.items():
        yield from elementwise(rng, op(), FLOATS, low=low, high=high, max_ulp=bound, special=False)
    for op, (low, high) in _BINARY.items():
        # Loops compile slowly, so these have few shapes.
        yield from elementwise(
            rng,
            op(),
            FLOATS[:2] if op is not ops.Zeta else FLOATS,
            arity=2,
            low=low,
            high=high,
            special=False,
            shapes=((0,), (5, 13)),
        )
    yield from _near_no_zero(rng)
    x, a = (draw(rng, dtype, (9,), low=0.5) for dtype in FLOATS[3:] * 2)
    yield Sample(ops.Igamma(), (a, x), "bf16")
    yield from _extremes()
    for dtype in FLOATS:
        order = np.arange(65).astype(dtype.numpy) % 5
        point = draw(rng, dtype, (65,), low=1.7, high=6)
        point[:30] = draw(rng, dtype, (30,), low=0.5, high=1.3)
        yield Sample(ops.Polygamma(), (order, point), f"{dtype}")
        # XLA's fraction in f32 ends too early where b is small beside a.
        single = dtype is DType.F32
        a = draw(rng, dtype, (65,), low=0.3, high=3 if single else 5)
        b = draw(rng, dtype, (65,), low=2 if single else 0.3, high=4 if single else 5)
        x = draw(rng, dtype, (65,), low=0, high=1)
        yield Sample(ops.RegularizedIncompleteBeta(), (a, b, x), f"{dtype}")
    empty = np.zeros((0, 2), np.float32)
    yield Sample(ops.RegularizedIncompleteBeta(), (empty, empty, empty), "empty")


def _near_no_zero(rng: np.random.Generator) -> Iterator[Sample]:
    """Digamma is zero at 1.46, where XLA's f32 loses digits, and a little above in its integral."""
    for low, high in ((0.1, 1.3), (1.7, 20)):
        yield from elementwise(rng, ops.Digamma(), FLOATS, low=low, high=high, special=False)
    for low, high in ((0.2, 1.3), (1.7, 8)):
        yield from elementwise(
            rng,
            ops.IgammaGradA(),
            FLOATS[:2],
            arity=2,
            low=low,
            high=high,
            special=False,
            shapes=((0,), (5, 13)),
        )


def _extremes() -> Iterator[Sample]:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1, -2, 0.5, -0.5, -2.5, 30], np.float32)
    for op in (*_UNARY, ops.Digamma):
        yield Sample(op(), (x,), "special")
    # Beyond these, what comes out depends on the platform's own series.
    order = [np.nan, -np.inf, -2, -0.5, 0.5, 1, 9]
    for op in (ops.Igamma, ops.Igammac, ops.IgammaGradA):
        yield _grid(op(), order, x[:-1])
    points = [np.nan, -0.0, 0.0, -1, -2, 0.5, 1, 9]
    yield _grid(ops.Zeta(), [np.nan, 1, 2, 3.5], points[1:])
    yield _grid(ops.Polygamma(), [np.nan, -1, 0.5, 0, 1, 2], points)


def _grid(op: Op, lhs: Iterable[float], rhs: Iterable[float]) -> Sample:
    pairs = np.meshgrid(np.asarray(lhs, np.float32), np.asarray(rhs, np.float32))
    return Sample(op, tuple(part.ravel() for part in pairs), "special")


def error_samples() -> Iterator[ErrorSample]:
    for op in (*_UNARY, ops.Digamma):
        yield from unary_errors(op, "i32")
    for op in (*_BINARY, ops.IgammaGradA, ops.Polygamma):
        yield from binary_errors(op, ("f32", "f16"), "i32")
    beta = ops.RegularizedIncompleteBeta
    yield ErrorSample(beta, ("f32[2]", "f32[2]", "f32[3]"), ShapeError, "C1", "f32[3]")
    yield ErrorSample(beta, ("f32[2]", "f16[2]", "f32[2]"), DTypeError, "C2", "f16[2]")
    yield ErrorSample(beta, ("i32[2]", "i32[2]", "i32[2]"), DTypeError, "C3", "i32[2]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    whole = "f32[b, 4]"
    yield SymbolicSample(ops.Erf(), (whole,), {"b": 3})
    yield SymbolicSample(ops.Igamma(), (whole, whole), {"b": 3})
    yield SymbolicSample(ops.RegularizedIncompleteBeta(), (whole, whole, whole), {"b": 3})
