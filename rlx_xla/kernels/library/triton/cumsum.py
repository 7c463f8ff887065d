"""Cumulative sums along the last axis on GPUs (``kernels/triton/cumsum.py``).

XLA sums a window for each result or goes over the data several times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.reduction import CumSum
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.triton.register import register_triton_kernels

_DTYPES = (DType.F32, DType.BF16, DType.F16)
_MOST = 2**31 - 1
"""Rows, and elements of a row with what a last chunk goes past it."""


def _check(op: CumSum, types: Sequence[TensorType]) -> Supported | Refused:
    (x,) = types
    if x.dtype not in _DTYPES:
        return Refused(f"x is {x.dtype} and none of {', '.join(map(str, _DTYPES))}")
    if not x.is_static:
        return Refused(f"{x} is not static")
    if op.axis != x.rank - 1:
        return Refused(f"axis {op.axis} of {x} is not the last")
    if op.reverse:
        return Refused("Triton sums forward only")
    *leading, length = (dims.evaluate(d, {}) for d in x.shape)
    if not x.nbytes or math.prod(leading) > _MOST or length > _MOST // 2:
        return Refused(f"{x} is empty or too large")
    return Supported()


register_triton_kernels(CumSum, _check)
