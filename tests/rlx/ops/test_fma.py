"""Fused multiply-add against rational arithmetic: no neighbour is nearer, and ties go to even."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rlx.dtypes import DType
from rlx.ir.interpret import evaluate_decomposition
from rlx.ops.arithmetic import Fma

BITS = {DType.F64: np.int64, DType.F32: np.int32, DType.F16: np.int16, DType.BF16: np.int16}


def assert_nearest(found: Any, exact: Fraction, bits: Any) -> None:
    """One number of a dtype is the nearest to an exact one."""
    code = int(found.view(bits))
    off = abs(Fraction(float(found)) - exact)
    for step in (-1, 1):
        neighbour = np.asarray(code + step, bits).view(found.dtype)
        if not np.isfinite(float(neighbour)):
            continue
        other = abs(Fraction(float(neighbour)) - exact)
        assert off < other or (off == other and code % 2 == 0), (found, neighbour)


@pytest.mark.parametrize("dtype", BITS)
def test_the_result_is_the_nearest_number(dtype: DType) -> None:
    rng = np.random.default_rng()
    a, b = (rng.uniform(0.5, 2, 300).astype(dtype.numpy) for _ in range(2))
    product = a.astype(np.float64) * b.astype(np.float64)
    # Sums that cancel, half way cases one bit away, and sums of other sizes.
    last = 2.0 ** -(24 if dtype is not DType.F64 else 53)
    c = np.where(np.arange(300) % 3 == 0, -product, rng.choice([1.0, last, 2 * last, 0.7], 300))
    c = c.astype(dtype.numpy)
    ways = [Fma().evaluate(a, b, c)]
    if dtype is not DType.F64:
        ways.append(evaluate_decomposition(Fma(), [a, b, c]))
    for found in ways:
        for x, y, z, got in zip(a, b, c, found, strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            if exact:
                assert_nearest(np.asarray(got), exact, BITS[dtype])
            else:
                assert got == 0


def test_two_roundings_would_differ() -> None:
    x = np.array([1 + 2.0**-12], np.float32)
    c = np.array([-1], np.float32)
    assert Fma().evaluate(x, x, c) == np.float32(2**-11 + 2**-24)
    assert x * x + c == np.float32(2**-11)


def test_numbers_that_are_none() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0], np.float64)
    a, b, c = (g.reshape(-1) for g in np.meshgrid(values, values, values))
    with np.errstate(all="ignore"):
        wanted = a * b + c
        for dtype in BITS:
            found = Fma().evaluate(*(v.astype(dtype.numpy) for v in (a, b, c)))
            np.testing.assert_array_equal(found.astype(np.float64), wanted)
            assert np.array_equal(np.signbit(found[wanted == 0]), np.signbit(wanted[wanted == 0]))
