"""Attention without a matrix of all scores, on the CPU (``cc/attention.h``).

XLA writes every score to memory, masked ones too; the handler keeps a tile of them in the cache and
passes over tiles in which every key is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rlx.dtypes import DType
from rlx.ops.attention import Attention, MaskKind
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.select import register_kernel

DTYPES = (DType.F32, DType.BF16, DType.F16)

KINDS = (
    MaskKind.NONE, MaskKind.CAUSAL, MaskKind.SLIDING_WINDOW, MaskKind.CUSTOM, MaskKind.BIAS,
    MaskKind.LENGTHS,
)  # fmt: skip
"""In the order of ``rlx::AttentionMask``."""

CAUSAL_BIAS = len(KINDS)
"""The place of a bias that is causal too, behind those."""

MASKED_ROWS = ("zeros", "nan", "uniform")
"""In the order of ``rlx::EmptyRows``."""

MASKS = (
    DType.BOOL, DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32,
    DType.U64, DType.BF16, DType.F16, DType.F32, DType.F64,
)  # fmt: skip

MIN_SCORES = 16
"""Fewest scores of a head that make up for the call."""

_MAX_KEYS = 2**31 - 1


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of an attention: batch, queries, keys, and heads of q and of k."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int


def sizes_of(op: Attention, types: Sequence[TensorType]) -> Sizes | Refused:
    """The sizes of inputs q, k, v and a mask, or why the handlers do not take them."""
    q = types[0]
    if q.dtype not in DTYPES:
        return Refused(f"q is {q.dtype}, and f32, bf16 and f16 are taken")
    for type_ in types:
        if not type_.is_static:
            return Refused(f"{type_} is not static")
    if len(types) > 3 and types[3].dtype not in MASKS:
        return Refused(f"a mask of {types[3].dtype} is not among the handler's")
    found = op.sizes(*types[:3])
    batch, queries, keys, kv_heads, _ = (n for n in found if isinstance(n, int))
    if keys > _MAX_KEYS:
        return Refused(f"{keys} keys are more than {_MAX_KEYS}")
    return Sizes(batch=batch, queries=queries, keys=keys, heads=op.num_heads, kv_heads=kv_heads)


def attributes_of(op: Attention) -> dict[str, int | float | bool]:
    """The handlers' attributes."""
    return {
        "num_heads": op.num_heads,
        "head_dim": op.head_dim,
        "mask": CAUSAL_BIAS if op.causal else KINDS.index(op.mask_kind),
        "window": min(op.window or 0, 2**31 - 1),  # no axis is longer
        "empty_rows": MASKED_ROWS.index(op.masked_rows),
        "scale": op.head_dim**-0.5 if op.score_scale is None else float(op.score_scale),
        "softcap": float(op.softcap or 0.0),
        "heads_first": op.layout == "bhsd",
    }


def _check(op: Attention, types: Sequence[TensorType]) -> Supported | Refused:
    sizes = sizes_of(op, types)
    if isinstance(sizes, Refused):
        return sizes
    scores = sizes.queries * sizes.keys
    if scores < MIN_SCORES:
        return Refused(f"{scores} scores of a head are fewer than {MIN_SCORES}")
    return Supported()


def _symbol(op: Attention, types: Sequence[TensorType]) -> str:
    del op
    return f"rlx_attention_{types[0].dtype}_cpu"


def _attributes(op: Attention, types: Sequence[TensorType]) -> dict[str, int | float | bool]:
    del types
    return attributes_of(op)


register_kernel(
    FfiKernel(
        name="attention.cpu.ffi",
        op=Attention,
        platforms=("cpu",),
        symbol=_symbol,
        check=_check,
        attributes=_attributes,
    )
)
