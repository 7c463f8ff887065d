"""Index of the extreme along an axis, on the CPU (``cc/argreduce.h``).

XLA's loop compares pairs of value and index one at a time; the handler looks for the value in
vector lanes and searches its position afterwards. Along another axis it takes the columns of
a stretch down the rows together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.reduction import Argmax, Argmin
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import bound
from rlx_xla.kernels.select import register_kernel

MIN_COLS = {
    DType.F32: bound("argmax.cpu.ffi/f32", 32, (8, 16, 32, 64, 128, 512)),
    DType.F64: bound("argmax.cpu.ffi/f64", 32, (8, 16, 32, 64, 128, 512)),
    DType.I32: bound("argmax.cpu.ffi/i32", 128, (16, 32, 64, 128, 256, 512)),
}
"""Shortest row that gains, however many there are, as ``bench_argreduce`` measures it.

XLA writes out rows of fewer than 32 elements and does many of them at once in vector lanes, 3 to
10 times faster than the handler; from 32 on it goes element by element.
"""

MIN_ALONG = 32
MIN_INNER = 8
"""Fewest elements along an axis that is not the last, and after it, that gain."""

_MAX_COLS = 2**31 - 1


def _check(op: Argmax | Argmin, types: Sequence[TensorType]) -> Supported | Refused:
    (x,) = types
    least = MIN_COLS.get(x.dtype)
    if least is None:
        return Refused(f"x is {x.dtype}, and only {', '.join(map(str, MIN_COLS))} gain")
    if op.index_dtype is not DType.I32:
        return Refused(f"index_dtype is {op.index_dtype} and not i32")
    cols = x.shape[op.axis]
    if not isinstance(cols, int) or not x.is_static:
        return Refused(f"{x} is not static")
    inner = math.prod(d for d in x.shape[op.axis + 1 :] if isinstance(d, int))
    if inner == 1:
        if not least.value <= cols <= _MAX_COLS:
            return Refused(f"rows of {cols} elements are outside {least} to {_MAX_COLS}")
    elif inner < MIN_INNER or not MIN_ALONG <= cols <= _MAX_COLS:
        return Refused(
            f"axis {op.axis} of {x} has {cols} elements with {inner} after each; {MIN_ALONG} to "
            f"{_MAX_COLS} with at least {MIN_INNER} gain"
        )
    return Supported()


def _symbol(op: Argmax | Argmin, types: Sequence[TensorType]) -> str:
    return f"rlx_argreduce_{types[0].dtype}_cpu"


def _attributes(op: Argmax | Argmin, types: Sequence[TensorType]) -> dict[str, int | bool]:
    return {"axis": op.axis, "minimum": isinstance(op, Argmin)}


for _op in (Argmax, Argmin):
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
