"""The selective scan, on the CPU (``cc/recurrent_scan.h``).

XLA writes the state to memory at each step; the handler keeps it in the cache from the first step
to the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.sequence import SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.select import register_kernel

DTYPES = (DType.F32, DType.BF16, DType.F16)

MIN_STEPS = 2
"""Fewest steps that gain; a single one is a handful of elementwise ops to XLA."""


def _check(op: SelectiveScan, types: Sequence[TensorType]) -> Supported | Refused:
    del op
    x = types[0]
    if x.dtype not in DTYPES:
        return Refused(f"x is {x.dtype}, and f32, bf16 and f16 are taken")
    if not x.is_static:
        return Refused(f"{x} is not static")
    steps = x.shape[1]
    if not isinstance(steps, int) or steps < MIN_STEPS:
        return Refused(f"{steps} steps are fewer than {MIN_STEPS}")
    return Supported()


def _symbol(op: SelectiveScan, types: Sequence[TensorType]) -> str:
    del op
    return f"rlx_selective_scan_{types[0].dtype}_cpu"


register_kernel(
    FfiKernel(
        name="selective_scan.cpu.ffi",
        op=SelectiveScan,
        platforms=("cpu",),
        symbol=_symbol,
        check=_check,
    )
)
