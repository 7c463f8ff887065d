"""Running sums, products, extremes and log-sum-exps, on the CPU (``cc/cumulative.h``).

XLA makes a tree of partial results, each level with its own pass over memory; the handler goes
through memory once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.reduction import CumLogSumExp, CumMax, CumMin, CumProd, CumSum
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import bound
from rlx_xla.kernels.select import register_kernel

Cumulative = CumSum | CumProd | CumMax | CumMin | CumLogSumExp

DTYPES = (DType.F32, DType.F64, DType.BF16, DType.F16, DType.I32, DType.I64, DType.U32)

MIN_SIZE = bound("cumsum.cpu.ffi/size", 32, (8, 16, 32, 64, 128, 512))
MIN_SIZE_LOG_SUM_EXP = 8
"""Shortest axis that gains: XLA writes out shorter ones, many at once in vector lanes."""

_KINDS: dict[type[Cumulative], int] = {
    CumSum: 0, CumProd: 1, CumMax: 2, CumMin: 3, CumLogSumExp: 4
}  # fmt: skip
"""Numbers of ``rlx::Running``."""


def _check(op: Cumulative, types: Sequence[TensorType]) -> Supported | Refused:
    (x,) = types
    dtypes, least = DTYPES, MIN_SIZE.value
    if isinstance(op, CumLogSumExp):  # the handler's exponentials are exact to f32
        dtypes, least = (DType.F32, DType.BF16, DType.F16), MIN_SIZE_LOG_SUM_EXP
    if x.dtype not in dtypes:
        return Refused(f"x is {x.dtype}, and the handler takes {', '.join(map(str, dtypes))}")
    if op.exclusive:
        return Refused("exclusive results are not among the handler's")
    if not x.is_static:
        return Refused(f"{x} is not static")
    size = x.shape[op.axis]
    if not isinstance(size, int) or size < least:
        return Refused(f"an axis of {size} elements is shorter than {least}")
    return Supported()


def _symbol(op: Cumulative, types: Sequence[TensorType]) -> str:
    return f"rlx_cumulative_{types[0].dtype}_cpu"


def _attributes(op: Cumulative, types: Sequence[TensorType]) -> dict[str, int | bool]:
    return {"kind": _KINDS[type(op)], "axis": op.axis, "reverse": op.reverse}


for _op in _KINDS:
    register_kernel(
        FfiKernel(
            name=f"{_op.op_name}.cpu.ffi",
            op=_op,
            platforms=("cpu",),
            symbol=_symbol,
            check=_check,
            attributes=_attributes,
        )
    )
