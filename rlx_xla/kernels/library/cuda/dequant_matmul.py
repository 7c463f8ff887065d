"""Products of a few rows with a packed GGUF weight on NVIDIA GPUs (``cuda/dequant_matmul.cu``).

XLA unpacks the weight to memory and reads it again; here the packed bytes are all that is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.quantized import DequantMatmul
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.ptx import Launch, PtxKernel
from rlx_xla.kernels.select import register_kernel

_KINDS = {DType.F32: 0, DType.BF16: 1, DType.F16: 2}
_FORMATS = {
    "gguf_q8_0": (80, 272),
    "gguf_q4_0": (40, 144),
    "gguf_q4_1": (41, 160),
    "gguf_q5_0": (50, 176),
    "gguf_q5_1": (51, 192),
    "gguf_q4k": (4, 144),
    "gguf_q5k": (5, 176),
    "gguf_q6k": (6, 210),
}
"""Scheme → FORMAT of the source, bytes of 256 weights."""

_MAX_ROWS = 16
"""More rows of x are a product for the matrix units, which want the weight unpacked."""

_SLICE = 1024
_MAX_SLICES = 32
_SHAPES = ((4, 3), (4, 2), (2, 2), (1, 2))
"""(rows of W at a time, stages), best first."""

_SHARED = 100 * 1024
"""Most shared memory of a block, in bytes, so that two fit."""

_MULTIPROCESSORS = 132


def _check(op: DequantMatmul, types: Sequence[TensorType]) -> Supported | Refused:
    x = types[0]
    if op.scheme not in _FORMATS:
        return Refused(f"scheme {op.scheme} is none of {', '.join(_FORMATS)}")
    if x.dtype not in _KINDS:
        return Refused(f"x is {x.dtype} and none of {', '.join(map(str, _KINDS))}")
    sizes = [size for size in x.shape if isinstance(size, int)]
    if len(sizes) != x.rank:
        return Refused(f"{x} is not static")
    *leading, inner = sizes
    rows = math.prod(leading)
    if not 1 <= rows <= _MAX_ROWS:
        return Refused(f"{rows} rows of x are outside 1 to {_MAX_ROWS}")
    if inner % 256 or not 256 <= inner <= _SLICE * _MAX_SLICES:
        return Refused(f"K = {inner} is no multiple of 256 up to {_SLICE * _MAX_SLICES}")
    if _FORMATS[op.scheme][1] % 16 and inner % _SLICE:
        return Refused(f"rows of {op.scheme} are aligned where K is a multiple of {_SLICE} only")
    if types[1].shape[0] == 0:
        return Refused("the weight is empty")
    return Supported()


def _configure(
    op: DequantMatmul, types: Sequence[TensorType], results: Sequence[TensorType]
) -> Launch:
    *leading, inner = (int(str(size)) for size in types[0].shape)
    rows, outer = math.prod(leading), int(str(results[0].shape[-1]))
    number, size = _FORMATS[op.scheme]
    slices = -(-inner // _SLICE)
    # The values of x stay in registers: fewer rows where a block has many threads.
    at_once = min(rows, 4 if slices <= 8 else 2 if slices <= 16 else 1)
    pitch = -(-4 * size // 16) * 16
    shared = 0
    group, stages = _SHAPES[-1]
    for group, stages in _SHAPES:
        shared = slices * stages * group * pitch + 8 * slices * group * at_once
        if shared <= _SHARED:
            break
    turns = -(-outer // group)
    resident = max(1, min(2048 // (slices * 32), 2 * _SHARED // shared, 8))
    return Launch(
        entry="dequant_matmul",
        grid=(min(turns, _MULTIPROCESSORS * resident), -(-rows // at_once)),
        block=(slices * 32,),
        shared_bytes=shared,
        defines={
            "M": at_once,
            "ALL": rows,
            "N": outer,
            "K": inner,
            "FORMAT": number,
            "KIND": _KINDS[types[0].dtype],
            "SLICES": slices,
            "ROWS": group,
            "STAGES": stages,
        },
    )


register_kernel(
    PtxKernel(
        name="dequant_matmul.cuda.ptx",
        op=DequantMatmul,
        platforms=("cuda",),
        source="dequant_matmul.cu",
        check=_check,
        configure=_configure,
    )
)
