"""The tolerances of every numerical test, per dtype. They are never loosened to make a test pass.

A result passes when |found − wanted| ≤ atol + rtol·|wanted|, with NaN in the same places and equal
infinities. Integers and bool are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.dtypes import DType


@dataclass(frozen=True)
class Tolerance:
    """Absolute and relative bound of the difference."""

    atol: float
    rtol: float


EXACT = Tolerance(0.0, 0.0)

TOLERANCES = {
    DType.F64: Tolerance(1e-12, 1e-11),
    DType.F32: Tolerance(1e-6, 1e-5),
    DType.F16: Tolerance(1e-3, 2e-3),
    DType.BF16: Tolerance(8e-3, 1.6e-2),
    DType.F8E3M4: Tolerance(0.032, 0.063),
    DType.F8E4M3: Tolerance(0.032, 0.126),
    DType.F8E4M3B11FNUZ: Tolerance(0.032, 0.126),
    DType.F8E4M3FN: Tolerance(0.032, 0.126),
    DType.F8E4M3FNUZ: Tolerance(0.032, 0.126),
    DType.F8E5M2: Tolerance(0.063, 0.26),
    DType.F8E5M2FNUZ: Tolerance(0.063, 0.26),
    DType.C64: Tolerance(1e-6, 1e-5),
    DType.C128: Tolerance(1e-12, 1e-11),
}


def tolerance(dtype: DType) -> Tolerance:
    """The bound for a dtype; exact for integers, bool and the remaining narrow floats."""
    return TOLERANCES.get(dtype, EXACT)
