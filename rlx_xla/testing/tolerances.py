"""How far two correct results may be apart, by dtype and precision: one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rlx.dtypes import DType
from rlx.options.precision import Precision


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

_COMPUTED_IN = {Precision.F16: DType.F16, Precision.BF16: DType.BF16}

GRADIENTS = 4.0
"""A gradient's bounds are this many times those of its dtype, and its absolute one is in units of
its largest element: it sums over many of the function's results."""


def tolerance(dtype: DType, precision: Precision = Precision.F32) -> Tolerance:
    """Return the bounds for a result.

    Args:
        dtype: of the result.
        precision: what the session computes in; a float result is no more exact than that.

    Example:
        >>> from rlx import DType, Precision
        >>> tolerance(DType.F32).rtol
        1e-05
        >>> tolerance(DType.F32, Precision.BF16).rtol
        0.016
        >>> tolerance(DType.I32)
        Tolerance(atol=0.0, rtol=0.0)
    """
    own = TABLE.get(dtype, EXACT)
    low = _COMPUTED_IN.get(precision)
    if low is None or own is EXACT:
        return own
    bound = TABLE[low]
    return Tolerance(max(own.atol, bound.atol), max(own.rtol, bound.rtol))
