"""Products of a few rows with a packed GGUF weight on NVIDIA GPUs (``cuda/dequant_matmul.cu``).

XLA unpacks the weight to memory and reads it again; here the packed bytes are all that is read.
The matrix units take x as bf16, so wider x goes in as a sum of bf16 parts: 3 for f32, 2 for f16.
The launch makes the parts, but for the formats and sizes where an H200 was faster with XLA making
them before it (`_splits`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx import dims
from rlx.dtypes import DType
from rlx.ops.quantized import DequantMatmul
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.ptx import Launch, PtxKernel
from rlx_xla.kernels.select import register_kernel
from rlx_xla.lowering.rules.reduction import convert

if TYPE_CHECKING:
    from rlx_xla.lowering.context import LoweringContext

KINDS = {DType.F32: 0, DType.BF16: 1, DType.F16: 2}
"""Dtype of x → KIND of the sources."""

PARTS = {DType.F32: 3, DType.BF16: 1, DType.F16: 2}
"""Dtype of x → bf16 numbers that add up to one of it."""

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

MAX_COLUMNS = 16
"""Most parts of rows of x; with more, XLA's product of an unpacked weight gains on it."""

_MAX_INNER = 1 << 17
_SHARED = 224 * 1024
"""Shared memory of a multiprocessor that kernels get, in bytes (H100, H200; A100 has 160 KiB)."""

_MULTIPROCESSORS = 132
_STAGES = 2
PARTS_PITCH = 544
"""Bytes of 256 parts in shared memory, as in the source."""


def _check(op: DequantMatmul, types: Sequence[TensorType]) -> Supported | Refused:
    x = types[0]
    if op.scheme not in _FORMATS:
        return Refused(f"scheme {op.scheme} is none of {', '.join(_FORMATS)}")
    if x.dtype not in KINDS:
        return Refused(f"x is {x.dtype} and none of {', '.join(map(str, KINDS))}")
    sizes = [size for size in x.shape if isinstance(size, int)]
    if len(sizes) != x.rank:
        return Refused(f"{x} is not static")
    *leading, inner = sizes
    rows, most = math.prod(leading), MAX_COLUMNS // PARTS[x.dtype]
    if not 1 <= rows <= most:
        return Refused(f"{rows} rows of {x.dtype} are outside 1 to {most}")
    if inner % 256 or not 256 <= inner <= _MAX_INNER:
        return Refused(f"K = {inner} is no multiple of 256 up to {_MAX_INNER}")
    if types[1].shape[0] == 0:
        return Refused("the weight is empty")
    return Supported()


def _splits(op: DequantMatmul, x: TensorType) -> bool:
    """Whether the launch makes the parts of x: not for many rows of bf16."""
    return x.dtype is not DType.BF16 or dims.evaluate(dims.product(x.shape[:-1]), {}) <= 4


def launch(op: DequantMatmul, types: Sequence[TensorType], results: Sequence[TensorType]) -> Launch:
    """How it is started."""
    split = _splits(op, types[0])
    *leading, inner = (dims.evaluate(size, {}) for size in types[0].shape)
    rows, outer = math.prod(leading), dims.evaluate(results[0].shape[-1], {})
    number, size = _FORMATS[op.scheme]
    units = inner // 256
    pieces = -(-(size + (14 if size % 16 else 0)) // 16)
    pitch = (16 * pieces + 31) // 32 * 32 + 16
    columns = rows * PARTS[types[0].dtype]
    own = columns * PARTS_PITCH if split else 0
    tile = _rows(columns, outer, split=split)
    warps, least = _shape(-(-outer // tile), units, columns, _STAGES * tile * pitch + own)
    sums = warps * tile * (8 * -(-columns // 8) + 1) * 4
    return Launch(
        entry="dequant_matmul",
        grid=(-(-outer // tile),),
        block=(warps * 32,),
        shared_bytes=max(warps * (_STAGES * tile * pitch + own), sums),
        defines={
            "M": rows,
            "PARTS": PARTS[types[0].dtype],
            "N": outer,
            "K": inner,
            "FORMAT": number,
            "KIND": KINDS[types[0].dtype],
            "ROWS": tile,
            "WARPS": warps,
            "STAGES": _STAGES,
            "SPLIT": int(split),
            "BLOCKS": least,
        },
    )


def _rows(columns: int, outer: int, *, split: bool) -> int:
    """Rows of the weight of a block, as measured.

    32 share what many rows of x have to be read, where that leaves a block for almost every
    multiprocessor; two for most of them where x is split inside.
    """
    if split:
        return 32 if columns > 8 and outer >= 48 * _MULTIPROCESSORS else 16
    return 32 if outer >= 28 * _MULTIPROCESSORS else 16


def _shape(blocks: int, units: int, columns: int, room: int) -> tuple[int, int]:
    """Warps of a block, each with ``room`` bytes of shared memory, and BLOCKS, as measured.

    Eight warps where all blocks are on the GPU at once with them, and registers have room for their
    sums; no more than half the units of K. Registers are to leave room for 16 warps, or 8 where
    each holds the sums of more than 8 columns.
    """
    wanted = 8 if columns <= 4 and blocks <= 2 * _MULTIPROCESSORS else 4
    resident = min(4, math.ceil(blocks / _MULTIPROCESSORS))
    while wanted > 1 and (2 * wanted > units or wanted * room * resident > _SHARED):
        wanted //= 2
    return wanted, (16 if columns <= 8 else 8) // wanted


def _prepare(ctx: LoweringContext, op: DequantMatmul, *operands: ir.Value) -> Sequence[ir.Value]:
    """X in bf16[rows · parts, K]: of each row what bf16 takes, then what it takes of the rest."""
    x, packed = operands
    type_ = ctx.input_types[0]
    parts = PARTS[type_.dtype]
    if _splits(op, type_):
        return _flat(ctx, x, packed)
    *leading, inner = (dims.evaluate(size, {}) for size in type_.shape)
    rows = math.prod(leading)
    flat = stablehlo.reshape(ctx.tensor(type_.dtype, (rows, 1, inner)), x)
    if parts == 1:
        return stablehlo.reshape(ctx.tensor(DType.BF16, (rows, inner)), flat), packed
    left = convert(ctx, flat, DType.F32)
    pieces: list[ir.Value] = []
    for _ in range(parts):
        # An explicit rounding: XLA may drop a conversion to bf16 and back.
        wide = stablehlo.reduce_precision(left, 8, 7)
        pieces.append(convert(ctx, wide, DType.BF16))
        left = stablehlo.subtract(left, wide)
    joined = stablehlo.concatenate(pieces, 1)
    return stablehlo.reshape(ctx.tensor(DType.BF16, (rows * parts, inner)), joined), packed


def _flat(ctx: LoweringContext, *operands: ir.Value) -> Sequence[ir.Value]:
    """X in its dtype as [rows, K]."""
    x, packed = operands
    type_ = ctx.input_types[0]
    *leading, inner = (dims.evaluate(size, {}) for size in type_.shape)
    return stablehlo.reshape(ctx.tensor(type_.dtype, (math.prod(leading), inner)), x), packed


register_kernel(
    PtxKernel(
        name="dequant_matmul.cuda.ptx",
        op=DequantMatmul,
        platforms=("cuda",),
        source="dequant_matmul.cu",
        check=_check,
        configure=launch,
        prepare=_prepare,
    )
)
