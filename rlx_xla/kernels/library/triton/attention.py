"""Attention on GPUs without a matrix of scores in memory (``kernels/triton/attention.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.attention import Attention, MaskKind
from rlx.types import TensorType
from rlx_xla.kernels.attention_sizes import sizes_of
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.triton.register import register_triton_kernels

_KINDS = (MaskKind.NONE, MaskKind.CAUSAL, MaskKind.SLIDING_WINDOW, MaskKind.LENGTHS)
_DTYPES = (DType.BF16, DType.F16, DType.F32)
_WIDEST = 256
"""Most elements of a head: registers hold a block of queries of no more."""

_MOST = 65_535
"""Most programs along an axis of a launch but the first."""


def _check(op: Attention, types: Sequence[TensorType]) -> Supported | Refused:
    q = types[0]
    if q.dtype not in _DTYPES:
        return Refused(f"q is {q.dtype} and none of {', '.join(map(str, _DTYPES))}")
    if q.rank != 4 or not all(t.is_static for t in types):
        return Refused(f"q: {q} is required to be static, of rank 4")
    if op.mask_kind not in _KINDS:
        known = ", ".join(kind.value for kind in _KINDS)
        return Refused(f"mask_kind {op.mask_kind.value} is none of {known}")
    sizes = sizes_of(op, types)
    if not q.nbytes or not sizes.keys or not sizes.v_dim:
        return Refused(f"q: {q}, k: {types[1]} or v: {types[2]} is empty")
    if max(sizes.dim, sizes.v_dim) > _WIDEST:
        return Refused(f"heads of {sizes.dim} and {sizes.v_dim} elements are above {_WIDEST}")
    if max(sizes.batch, sizes.heads) > _MOST:
        return Refused(f"{sizes.batch} sequences or {sizes.heads} heads are above {_MOST}")
    if op.masked_rows == "uniform" and op.mask_kind is not MaskKind.NONE:
        return Refused("a row without keys is not the mean of all values in it")
    return Supported()


register_triton_kernels(Attention, _check)
