"""The selective scan on TPUs (``kernels/tpu/selective_scan.py``).

XLA runs one step of the loop after another and writes the states to memory between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.sequence import SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.pallas import PallasKernel
from rlx_xla.kernels.select import register_kernel

_CHANNELS = 128
_STEPS = 128


def _check(op: SelectiveScan, types: Sequence[TensorType]) -> Supported | Refused:
    x = types[0]
    if x.dtype is not DType.F32:
        return Refused(f"x is {x.dtype} and not f32")
    if not all(t.is_static for t in types):
        return Refused(f"{x} is not static")
    batch, length, width = (dims.evaluate(d, {}) for d in x.shape)
    if not batch or not length or length % _STEPS or not width or width % _CHANNELS:
        return Refused(
            f"length {length} and width {width} are no multiples of {_STEPS} and {_CHANNELS}"
        )
    if op.state_size % 8:
        return Refused(f"state_size {op.state_size} is no multiple of 8")
    return Supported()


def _make(op: SelectiveScan, types: Sequence[TensorType]) -> Callable[..., Any]:
    from rlx_xla.kernels.tpu import selective_scan  # Pallas takes a while to import

    return selective_scan.make(op, types)


register_kernel(
    PallasKernel(
        name="selective_scan.tpu.pallas",
        op=SelectiveScan,
        platforms=("tpu",),
        unproven="it has not been measured on a TPU",
        make=_make,
        check=_check,
    )
)
