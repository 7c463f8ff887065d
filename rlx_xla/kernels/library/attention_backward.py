"""Gradients of attention without a matrix of all scores, on the CPU (``cc/attention_backward.h``).

XLA keeps every weight and the gradient of every score in memory; the handler makes the weights
again, tile by tile, and passes over tiles in which every key is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.ops.attention import Attention
from rlx.ops.backward import AttentionBackward, AttentionBackwardAll, AttentionBackwardWrt
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.library.attention import attributes_of, sizes_of
from rlx_xla.kernels.select import register_kernel

Backward = AttentionBackward | AttentionBackwardAll

MIN_SCORES = 16
"""Fewest scores of a head that make up for the call."""

_WRT = (AttentionBackwardWrt.QUERY, AttentionBackwardWrt.KEY, AttentionBackwardWrt.VALUE)
_ALL = 3


def _forward(op: Backward) -> Attention:
    attributes: dict[str, Any] = {n: v for n, v in op.attributes().items() if n != "wrt"}
    return Attention(**attributes)


def _check(op: Backward, types: Sequence[TensorType]) -> Supported | Refused:
    q, k, v, dy, *mask = types
    del dy
    sizes = sizes_of(_forward(op), (q, k, v, *mask))
    if isinstance(sizes, Refused):
        return sizes
    if isinstance(op, AttentionBackward) and op.wrt not in _WRT:
        return Refused("the gradient by the mask is a matrix of all scores")
    scores = sizes.queries * sizes.keys
    if scores < MIN_SCORES:
        return Refused(f"{scores} scores of a head are fewer than {MIN_SCORES}")
    return Supported()


def _symbol(op: Backward, types: Sequence[TensorType]) -> str:
    del op
    return f"rlx_attention_backward_{types[0].dtype}_cpu"


def _attributes(op: Backward, types: Sequence[TensorType]) -> dict[str, int | float | bool]:
    del types
    wrt = _WRT.index(op.wrt) if isinstance(op, AttentionBackward) else _ALL
    return {**attributes_of(_forward(op)), "wrt": wrt}


for _op in (AttentionBackward, AttentionBackwardAll):
    register_kernel(
        FfiKernel(
            name=f"{_op.op_name}.cpu.ffi",
            op=_op,
            platforms=("cpu",),
            symbol=_symbol,
            check=_check,
            attributes=_attributes,
        )
    )
