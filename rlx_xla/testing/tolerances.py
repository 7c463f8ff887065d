"""How far two correct results may be apart, by dtype and by what a session computes in."""

from __future__ import annotations

from rlx.dtypes import DType
from rlx.options.precision import Precision
from rlx.tolerances import EXACT, TABLE
from rlx.tolerances import Tolerance as Tolerance

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
