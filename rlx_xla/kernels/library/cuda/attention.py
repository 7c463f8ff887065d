"""Attention on NVIDIA GPUs by cuDNN, through the call that JAX makes of it.

cuDNN never writes the scores to memory; its causal, window and length masks cost no mask tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx.dtypes import DType
from rlx.ops.attention import Attention, MaskKind
from rlx.types import TensorType
from rlx_xla._jax_compat import gpu
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.pallas import PallasKernel
from rlx_xla.kernels.select import register_kernel

_MIN_QUERIES = 128
"""With fewer, XLA's form is as fast and stays inside CUDA graphs."""


def _check(op: Attention, types: Sequence[TensorType]) -> Supported | Refused:
    q, k, v = types[:3]
    if q.dtype not in (DType.BF16, DType.F16):
        return Refused(f"q is {q.dtype}, and cuDNN takes bf16 and f16")
    if q.rank != 4 or not all(t.is_static for t in types):
        return Refused(f"q: {q} is required to be static, of rank 4")
    if op.softcap is not None:
        return Refused("cuDNN has no softcap")
    if op.head_dim % 8 or op.head_dim > 256 or v.shape[3] != op.head_dim:
        return Refused(f"heads of {op.head_dim} and {v.shape[3]}: equal multiples of 8 up to 256")
    sequence = 1 if op.layout == "bshd" else 2
    queries, keys = q.shape[sequence], k.shape[sequence]
    if not isinstance(queries, int) or queries < _MIN_QUERIES:
        return Refused(f"{queries} queries are fewer than {_MIN_QUERIES}")
    refused = _mask_refused(op, types, queries == keys)
    if refused is not None:
        return refused
    if gpu.compute_capability() is None:
        return Refused("no GPU is attached whose cuDNN could be asked")
    return Supported()


def _mask_refused(op: Attention, types: Sequence[TensorType], square: bool) -> Refused | None:
    kind = op.mask_kind
    if kind in (MaskKind.CAUSAL, MaskKind.SLIDING_WINDOW) and not square:
        return Refused("cuDNN aligns a causal mask with the first query where S_q ≠ S_k")
    if kind is MaskKind.CUSTOM:
        return Refused("cuDNN turns a mask tensor into a bias, which costs more than it saves")
    if kind is MaskKind.LENGTHS and op.masked_rows != "zeros":
        return Refused(f"a row without keys is zeros in cuDNN, and masked_rows={op.masked_rows!r}")
    if kind is MaskKind.BIAS:
        return Refused("a bias tensor is left to XLA")
    return None


def _make(op: Attention, types: Sequence[TensorType]) -> Callable[..., Any]:
    del types
    sliding = op.mask_kind is MaskKind.SLIDING_WINDOW
    options: dict[str, Any] = {
        "scale": op.head_dim**-0.5 if op.score_scale is None else op.score_scale,
        "is_causal": op.mask_kind is MaskKind.CAUSAL or sliding,
        "local_window_size": (op.window, 0) if sliding else None,
        "implementation": "cudnn",
    }

    def attention(q: Any, k: Any, v: Any, lengths: Any = None) -> Any:
        if op.layout == "bhsd":
            q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
        seen = None if lengths is None else lengths.astype(jnp.int32)
        y = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=seen, **options)
        return jnp.swapaxes(y, 1, 2) if op.layout == "bhsd" else y

    return attention


register_kernel(
    PallasKernel(
        name="attention.cuda.cudnn",
        op=Attention,
        platforms=("cuda",),
        make=_make,
        check=_check,
    )
)
