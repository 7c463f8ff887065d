"""How far two correct results may be apart, by dtype: the one table of the project.

Its bounds are never loosened to make a test pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rlx.dtypes import DType


@final
@dataclass(frozen=True)
class Tolerance:
    """|found − wanted| ≤ atol + rtol · |wanted|, NaN in the same places, infinities equal.

    Attributes:
        atol: absolute bound, in units of the values.
        rtol: relative bound.
    """

    atol: float
    rtol: float


EXACT = Tolerance(0.0, 0.0)

TABLE = {
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
"""By dtype of the result; every other dtype is exact."""


def tolerance(dtype: DType) -> Tolerance:
    """The bound for a dtype; exact for integers, bool and the remaining narrow floats."""
    return TABLE.get(dtype, EXACT)
