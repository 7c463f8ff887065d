"""The largest elements of each row, on the CPU (``cc/top_k.h``).

XLA keeps a heap and compares element by element; the handler passes over blocks that hold nothing
above the least candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.sorting import TopK, TopNan
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import bound
from rlx_xla.kernels.select import register_kernel

MIN_SIZE = {
    DType.F32: bound("top_k.cpu.ffi/f32", 64, (16, 32, 64, 128, 512, 4096)),
    **{
        dtype: bound(f"top_k.cpu.ffi/{dtype}", 16, (8, 16, 32, 64, 128, 512))
        for dtype in (DType.BF16, DType.F16, DType.I32, DType.U32)
    },
}
"""Shortest row that gains: XLA has a selection of its own for f32, and sorts other dtypes."""

_MAX_SIZE = 2**31 - 1


def _check(op: TopK, types: Sequence[TensorType]) -> Supported | Refused:
    (x,) = types
    least = MIN_SIZE.get(x.dtype)
    if least is None:
        return Refused(f"x is {x.dtype}, and the handler takes {', '.join(map(str, MIN_SIZE))}")
    if not x.is_static:
        return Refused(f"{x} is not static")
    if op.k < 1:
        return Refused("k is 0")
    size = x.shape[-1]
    if not isinstance(size, int) or not least.value <= size <= _MAX_SIZE:
        return Refused(f"rows of {size} elements are outside {least} to {_MAX_SIZE}")
    return Supported()


def _symbol(op: TopK, types: Sequence[TensorType]) -> str:
    return f"rlx_top_k_{types[0].dtype}_cpu"


def _attributes(op: TopK, types: Sequence[TensorType]) -> dict[str, bool]:
    return {"nan_is_lowest": op.nan is TopNan.NEVER}


register_kernel(
    FfiKernel(
        name="top_k.cpu.ffi",
        op=TopK,
        platforms=("cpu",),
        symbol=_symbol,
        check=_check,
        attributes=_attributes,
    )
)
