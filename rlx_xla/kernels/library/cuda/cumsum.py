"""Cumulative sums along the last axis on NVIDIA GPUs (``cuda/cumsum.cu``).

XLA sums a window for each result or goes over the data several times; one block a row reads and
writes every element once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.reduction import CumSum
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.ptx import Launch, PtxKernel
from rlx_xla.kernels.select import register_kernel

_KINDS = {DType.F32: 0, DType.BF16: 1, DType.F16: 2}
_MIN_ROWS = 128
"""Fewer rows leave most of a GPU idle; XLA spreads one row over all of it."""

_MIN_LENGTH = 256


def _check(op: CumSum, types: Sequence[TensorType]) -> Supported | Refused:
    (x,) = types
    if x.dtype not in _KINDS:
        return Refused(f"x is {x.dtype}, and only {', '.join(map(str, _KINDS))} are taken")
    if op.axis != x.rank - 1:
        return Refused(f"axis {op.axis} of {x} is not the last")
    sizes = [size for size in x.shape if isinstance(size, int)]
    if len(sizes) != x.rank:
        return Refused(f"{x} is not static")
    rows = math.prod(sizes[:-1])
    if not _MIN_ROWS <= rows < 2**31:
        return Refused(f"{rows} rows are outside {_MIN_ROWS} to {2**31 - 1}")
    if not _MIN_LENGTH <= sizes[-1] < 2**30:
        return Refused(f"rows of {sizes[-1]} elements are outside {_MIN_LENGTH} to {2**30 - 1}")
    return Supported()


def launch(op: CumSum, types: Sequence[TensorType], results: Sequence[TensorType]) -> Launch:
    """How it is started."""
    del results
    *leading, length = (dims.evaluate(size, {}) for size in types[0].shape)
    kind = _KINDS[types[0].dtype]
    return Launch(
        entry="cumsum",
        grid=(math.prod(leading),),
        block=(256,),
        defines={
            "LENGTH": length,
            "THREADS": 256,
            "EACH": 8 if kind else 4,
            "KIND": kind,
            "REVERSE": int(op.reverse),
            "EXCLUSIVE": int(op.exclusive),
        },
    )


register_kernel(
    PtxKernel(
        name="cumsum.cuda.ptx",
        op=CumSum,
        platforms=("cuda",),
        source="cumsum.cu",
        check=_check,
        configure=launch,
    )
)
