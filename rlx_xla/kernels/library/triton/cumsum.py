"""Cumulative sums along the last axis on GPUs (``kernels/triton/cumsum.py``).

XLA sums a window for each result or goes over the data several times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.reduction import CumSum
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.pallas import PallasKernel
from rlx_xla.kernels.select import register_kernel

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


def _make(op: CumSum, types: Sequence[TensorType]) -> Callable[..., Any]:
    from rlx_xla.kernels.triton import cumsum  # Pallas takes a while to import

    return cumsum.make(op, types)


for _platform, _maker in (("rocm", "an AMD"), ("cuda", "an NVIDIA")):
    register_kernel(
        PallasKernel(
            name=f"cumsum.{_platform}.pallas",
            op=CumSum,
            platforms=(_platform,),
            priority=-1,
            unproven=f"it has not been measured on {_maker} GPU",
            make=_make,
            check=_check,
            triton=True,
        )
    )
