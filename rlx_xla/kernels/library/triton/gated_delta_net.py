"""The gated delta rule on GPUs (``kernels/triton/gated_delta_net.py``).

XLA runs one token after another and writes the states to memory between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.sequence import GatedDeltaNet
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.pallas import PallasKernel
from rlx_xla.kernels.select import register_kernel

_DTYPES = (DType.F32, DType.BF16, DType.F16)
_MOST_STATES = 256
_MOST = 65_535
"""Most programs along an axis of a launch but the first."""


def _check(op: GatedDeltaNet, types: Sequence[TensorType]) -> Supported | Refused:
    q = types[0]
    if q.dtype not in _DTYPES:
        return Refused(f"q is {q.dtype} and none of {', '.join(map(str, _DTYPES))}")
    if not all(t.is_static for t in types):
        return Refused(f"{q} is not static")
    batch, _, heads, size = (dims.evaluate(d, {}) for d in q.shape)
    if not q.nbytes or max(batch, heads) > _MOST:
        return Refused(f"{q} is empty, or has more than {_MOST} sequences or heads")
    if size > _MOST_STATES:
        return Refused(f"state_size {size} is above {_MOST_STATES}")
    return Supported()


def _make(op: GatedDeltaNet, types: Sequence[TensorType]) -> Callable[..., Any]:
    from rlx_xla.kernels.triton import gated_delta_net  # Pallas takes a while to import

    return gated_delta_net.make(op, types)


for _platform, _maker in (("rocm", "an AMD"), ("cuda", "an NVIDIA")):
    register_kernel(
        PallasKernel(
            name=f"gated_delta_net.{_platform}.pallas",
            op=GatedDeltaNet,
            platforms=(_platform,),
            priority=-1,
            unproven=f"it has not been measured on {_maker} GPU",
            make=_make,
            check=_check,
            triton=True,
        )
    )
