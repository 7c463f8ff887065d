"""The selective scan on NVIDIA GPUs (``cuda/selective_scan.cu``).

XLA runs one step of the loop after another, each a kernel of its own; here a block of threads
keeps the states of its channels in registers from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.sequence import SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.ptx import Launch, PtxKernel
from rlx_xla.kernels.select import register_kernel

_CHANNELS, _TILE, _STAGES = 32, 64, 3
_STATES = {4: 1, 8: 1, 16: 2, 32: 4, 64: 8, 128: 16}
"""State size → states of a thread, so that at most eight threads share a channel."""


def _check(op: SelectiveScan, types: Sequence[TensorType]) -> Supported | Refused:
    x = types[0]
    if x.dtype is not DType.F32:
        return Refused(f"x is {x.dtype} and not f32")
    if op.state_size not in _STATES:
        return Refused(f"state_size {op.state_size} is none of {', '.join(map(str, _STATES))}")
    sizes = [size for size in x.shape if isinstance(size, int)]
    if len(sizes) != x.rank:
        return Refused(f"{x} is not static")
    batch, length, width = sizes
    if width % 4:
        return Refused(f"the width {width} is not a multiple of 4")
    if not batch or not length or batch > 65_535:
        return Refused(f"{x} is empty, or its batch is above 65535")
    return Supported()


def launch(op: SelectiveScan, types: Sequence[TensorType], results: Sequence[TensorType]) -> Launch:
    """How it is started."""
    del results
    batch, length, width = (dims.evaluate(size, {}) for size in types[0].shape)
    states = _STATES[op.state_size]
    floats = _STAGES * _TILE * (2 * _CHANNELS + 2 * op.state_size)
    return Launch(
        entry="selective_scan",
        grid=(-(-width // _CHANNELS), batch),
        block=(_CHANNELS * op.state_size // states,),
        shared_bytes=4 * floats,
        defines={
            "S": length,
            "H": width,
            "N": op.state_size,
            "STATES": states,
            "TILE": _TILE,
            "CHANNELS": _CHANNELS,
            "STAGES": _STAGES,
        },
    )


register_kernel(
    PtxKernel(
        name="selective_scan.cuda.ptx",
        op=SelectiveScan,
        platforms=("cuda",),
        source="selective_scan.cu",
        check=_check,
        configure=launch,
    )
)
