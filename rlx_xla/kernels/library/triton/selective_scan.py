"""The selective scan on GPUs (``kernels/triton/selective_scan.py``).

XLA runs one step of the loop after another, each as kernels that read and write the states.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.sequence import SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.triton.register import register_triton_kernels

_DTYPES = (DType.F32, DType.BF16, DType.F16)
_MOST_STATES = 256
_MOST_SEQUENCES = 65_535


def _check(op: SelectiveScan, types: Sequence[TensorType]) -> Supported | Refused:
    x = types[0]
    if x.dtype not in _DTYPES:
        return Refused(f"x is {x.dtype} and none of {', '.join(map(str, _DTYPES))}")
    if not all(t.is_static for t in types):
        return Refused(f"{x} is not static")
    batch = dims.evaluate(x.shape[0], {})
    if not x.nbytes or batch > _MOST_SEQUENCES:
        return Refused(f"{x} is empty, or has more than {_MOST_SEQUENCES} sequences")
    if op.state_size > _MOST_STATES:
        return Refused(f"state_size {op.state_size} is above {_MOST_STATES}")
    return Supported()


register_triton_kernels(SelectiveScan, _check)
