"""The gated delta rule on GPUs (``kernels/triton/gated_delta_net.py``).

XLA runs one token after another and writes the states to memory between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.sequence import GatedDeltaNet
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.triton.register import register_triton_kernels

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


register_triton_kernels(GatedDeltaNet, _check)
