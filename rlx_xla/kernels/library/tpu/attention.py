"""Attention on TPUs without a matrix of scores in memory (``kernels/tpu/attention.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.attention import Attention, MaskKind
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.pallas import PallasKernel
from rlx_xla.kernels.select import register_kernel

_BLOCK = 128
_KINDS = (MaskKind.NONE, MaskKind.CAUSAL, MaskKind.SLIDING_WINDOW)


def _check(op: Attention, types: Sequence[TensorType]) -> Supported | Refused:
    q = types[0]
    if q.dtype not in (DType.BF16, DType.F32):
        return Refused(f"q is {q.dtype} and none of bf16, f32")
    if q.rank != 4 or not all(t.is_static for t in types):
        return Refused(f"q: {q} is required to be static, of rank 4")
    if op.mask_kind not in _KINDS:
        return Refused(f"mask_kind {op.mask_kind.value} is none of none, causal, sliding_window")
    axis = 1 if op.layout == "bshd" else 2
    queries, keys = (dims.evaluate(t.shape[axis], {}) for t in types[:2])
    if not q.nbytes or not keys:
        return Refused(f"q: {q} or k: {types[1]} is empty")
    if queries % _BLOCK or keys % _BLOCK:
        return Refused(f"{queries} queries and {keys} keys are no multiples of {_BLOCK}")
    if op.mask_kind is not MaskKind.NONE and keys < queries:
        return Refused("the first queries see no key where there are fewer keys than queries")
    return Supported()


def _make(op: Attention, types: Sequence[TensorType]) -> Callable[..., Any]:
    from rlx_xla.kernels.tpu import attention  # Pallas takes a while to import

    return attention.make(op, types)


register_kernel(
    PallasKernel(
        name="attention.tpu.pallas",
        op=Attention,
        platforms=("tpu",),
        unproven="it has not been measured on a TPU",
        make=_make,
        check=_check,
    )
)
