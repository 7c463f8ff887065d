"""Samples of exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops import transcendental as ops
from tests.samples.base import COMPLEX, FLOATS, ErrorSample, Sample, SymbolicSample
from tests.samples.elementwise import F8, binary_errors, elementwise, unary_errors

# XLA's own accuracy on the CPU in units in the last place, with the interval that is drawn.
_UNARY: dict[type[Op], tuple[float, float, float]] = {
    ops.Exp: (2, -10, 10),
    ops.Exp2: (6, -5, 5),  # the exponent is rounded once more
    ops.Expm1: (6, -3, 3),
    ops.Log: (2, 0.1, 10),
    ops.Log2: (3, 0.1, 10),
    ops.Log1p: (4, -0.9, 3),
    ops.Logistic: (4, -10, 10),
    ops.Sqrt: (1, 0, 10),
    ops.Rsqrt: (2, 0.1, 10),
    ops.Cbrt: (3, -10, 10),
    ops.Sin: (2, -10, 10),
    ops.Cos: (2, -10, 10),
    ops.Tan: (4, -1.5, 1.5),
    ops.Asin: (4, -1, 1),
    ops.Acos: (4, -1, 1),
    ops.Atan: (4, -10, 10),
    ops.Sinh: (7, -3, 3),  # of all f32 there, 111 are off by 7 and none by more
    ops.Cosh: (4, -3, 3),
    ops.Tanh: (5, -3, 3),
    ops.Asinh: (4, -10, 10),
    ops.Acosh: (4, 1, 10),
    ops.Atanh: (4, -0.9, 0.9),
}

_EIGHT_BITS = (ops.Exp, ops.Log, ops.Logistic, ops.Rsqrt, ops.Tanh)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for op, (bound, low, high) in _UNARY.items():
        ulp = dict.fromkeys(FLOATS, bound)
        if op in (ops.Log1p, ops.Atanh):
            ulp[DType.F64] = 140  # XLA's log1p starts its logarithm too close to zero
        special = op is not ops.Asin  # which goes through x / 2, and that is flushed
        yield from elementwise(rng, op(), FLOATS, low=low, high=high, special=special, max_ulp=ulp)
        if op in _EIGHT_BITS:
            yield from elementwise(rng, op(), F8[:1], low=low, high=high)
        if op is not ops.Cbrt:
            yield from elementwise(rng, op(), COMPLEX, low=max(low, -3), high=min(high, 3))
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1, 2], np.float32)
    yield Sample(ops.Asin(), (x,), "special", max_ulp=4)
    yield from elementwise(rng, ops.Atan2(), FLOATS, arity=2, max_ulp=4)
    yield from elementwise(rng, ops.Atan2(), COMPLEX, arity=2, low=0.5)


def error_samples() -> Iterator[ErrorSample]:
    for op in _UNARY:
        yield from unary_errors(op, "c64" if op is ops.Cbrt else "i32")
    yield from binary_errors(ops.Atan2, ("f32", "f16"), "i32")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(ops.Exp(), ("f32[b, 4]",), {"b": 3})
    yield SymbolicSample(ops.Atan2(), ("f32[b, 4]", "f32[b, 4]"), {"b": 3})
