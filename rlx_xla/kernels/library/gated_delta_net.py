"""The gated delta rule, on the CPU (``cc/recurrent_scan.h``).

XLA makes three products of a step and writes the state to memory between them; the handler goes
over a stretch of its columns once a step, and keeps it in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.sequence import GatedDeltaNet
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.select import register_kernel

DTYPES = (DType.F32, DType.BF16, DType.F16)


def _check(op: GatedDeltaNet, types: Sequence[TensorType]) -> Supported | Refused:
    del op
    q = types[0]
    if q.dtype not in DTYPES:
        return Refused(f"q is {q.dtype}, and f32, bf16 and f16 are taken")
    if not q.is_static:
        return Refused(f"{q} is not static")
    return Supported()


def _symbol(op: GatedDeltaNet, types: Sequence[TensorType]) -> str:
    del op
    return f"rlx_gated_delta_net_{types[0].dtype}_cpu"


register_kernel(
    FfiKernel(
        name="gated_delta_net.cpu.ffi",
        op=GatedDeltaNet,
        platforms=("cpu",),
        symbol=_symbol,
        check=_check,
    )
)
