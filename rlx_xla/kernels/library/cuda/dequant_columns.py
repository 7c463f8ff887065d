"""Products of a few rows with codes by columns on NVIDIA GPUs (``cuda/dequant_columns.cu``).

int8, int4, fp8 and nvfp4 weights [K, N]: the packed bytes are read once, and nothing is unpacked to
memory. At 8192² on an H200 a row takes 15 to 22 µs, where XLA's product of the packed weight takes
160 and ``jax.jit``'s of a bf16 weight 37.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx import dims
from rlx.ops.quantized import DequantMatmul
from rlx.quant.schemes import QuantScheme, SchemeKind
from rlx.types import TensorType
from rlx_xla.kernels import ptx
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.library.cuda.dequant_matmul import KINDS, MAX_COLUMNS, PARTS
from rlx_xla.kernels.ptx import Launch, PtxKernel
from rlx_xla.kernels.select import register_kernel

_FORMATS = {
    SchemeKind.INT8: 8,
    SchemeKind.INT8_ASYM: 8,
    SchemeKind.INT4: 4,
    SchemeKind.FP8_E4M3: 43,
    SchemeKind.FP8_E5M2: 52,
    SchemeKind.NVFP4: 21,
}
"""Family of a scheme → FORMAT of the source."""

_TILE = 128
"""Columns of W that a block takes."""

_TURN = 32
"""Rows of W that a warp takes at once."""

_STAGES = 2
"""Turns of a warp in shared memory; with more an H200 was slower."""


def _check(op: DequantMatmul, types: Sequence[TensorType]) -> Supported | Refused:
    x, weight = types[:2]
    scheme = QuantScheme.parse(op.scheme)
    if scheme.kind not in _FORMATS:
        known = ", ".join(kind.value for kind in _FORMATS)
        return Refused(f"scheme {op.scheme} is of none of {known}")
    if x.dtype not in KINDS:
        return Refused(f"x is {x.dtype} and none of {', '.join(map(str, KINDS))}")
    if not x.is_static or not weight.is_static:
        return Refused(f"{x} or {weight} is not static")
    *leading, inner = (dims.evaluate(size, {}) for size in x.shape)
    rows, most = math.prod(leading), MAX_COLUMNS // PARTS[x.dtype]
    if not 1 <= rows <= most:
        return Refused(f"{rows} rows of {x.dtype} are outside 1 to {most}")
    outer = _outer(op, types)
    if inner % 16 or outer % 16 or not inner or not outer:
        return Refused(f"K = {inner} or N = {outer} is no multiple of 16 above 0")
    block = _block(op, types)
    if block > 16 and block % _TURN:
        return Refused(f"{block} rows of a scale are neither 16 nor a multiple of {_TURN}")
    if 0 < block < 16:
        return Refused(f"{block} rows of a scale are under 16")
    return Supported()


def _outer(op: DequantMatmul, types: Sequence[TensorType]) -> int:
    return dims.evaluate(op.infer(*types).shape[-1], {})


def _block(op: DequantMatmul, types: Sequence[TensorType]) -> int:
    """BLOCK of the source."""
    scheme = QuantScheme.parse(op.scheme)
    if scheme.kind in (SchemeKind.FP8_E4M3, SchemeKind.FP8_E5M2):
        return 0 if len(types) > 2 else -1
    block = 16 if scheme.kind is SchemeKind.NVFP4 else scheme.block
    inner = dims.evaluate(types[0].shape[-1], {})
    return 0 if block >= inner and scheme.kind is not SchemeKind.NVFP4 else block


def launch(
    op: DequantMatmul,
    types: Sequence[TensorType],
    results: Sequence[TensorType],
    *,
    clusters: bool | None = None,
) -> Launch:
    """How it is started; ``clusters`` says whether blocks may meet (None: as the GPU has it)."""
    *leading, inner = (dims.evaluate(size, {}) for size in types[0].shape)
    rows, outer = math.prod(leading), dims.evaluate(results[0].shape[-1], {})
    parts = PARTS[types[0].dtype]
    scheme = QuantScheme.parse(op.scheme)
    if clusters is None:
        clusters = int(ptx.architecture().removeprefix("compute_")) >= 90
    cluster, warps, blocks = _shape(-(-outer // _TILE), inner, rows * parts, clusters=clusters)
    is_nvfp4 = scheme.kind is SchemeKind.NVFP4
    zero, block = len(types) > 3 and not is_nvfp4, _block(op, types)
    turn = _turn_bytes(_FORMATS[scheme.kind], block, zero=zero)
    sums = warps * _TILE * (rows * parts | 1) * 4
    return Launch(
        entry="dequant_columns",
        grid=(-(-outer // _TILE) * cluster,),
        block=(warps * 32,),
        shared_bytes=max(_STAGES * warps * turn, sums),
        defines={
            "M": rows,
            "PARTS": parts,
            "N": outer,
            "K": inner,
            "KIND": KINDS[types[0].dtype],
            "FORMAT": _FORMATS[scheme.kind],
            "BLOCK": block,
            "ZERO": int(zero),
            "GLOBAL": int(is_nvfp4),
            "WARPS": warps,
            "CLUSTER": cluster,
            "STAGES": _STAGES,
            "TILE": turn,
            "BLOCKS": blocks,
        },
    )


def _turn_bytes(number: int, block: int, *, zero: bool) -> int:
    """What a turn needs in shared memory: 32 rows of 128 codes, with their scales and zeros."""
    codes = _TURN * _TILE // (2 if number in (4, 21) else 1)
    if block <= 0:
        return codes
    scales = 2 if block == 16 else 1
    return codes + scales * (_TILE if number == 21 else 4 * _TILE * (1 + zero))


def _shape(tiles: int, inner: int, columns: int, *, clusters: bool) -> tuple[int, int, int]:
    """CLUSTER, WARPS and BLOCKS for a number of tiles, measured on an H200.

    About 16 warps for each of its 132 multiprocessors, in as few blocks as there are.
    """
    few = columns <= 8  # whose sums leave registers for 16 warps
    if not clusters or tiles >= 100:
        cluster, warps, blocks = 1, 8, 2 if few else 1
    elif tiles >= 48:
        cluster, warps, blocks = 2, 16 if few else 8, 1
    elif tiles >= 24:
        cluster, warps, blocks = 8, 4, 4 if few else 2
    else:
        cluster, warps, blocks = 8, 8, 1
    turns = -(-inner // _TURN)
    while warps > 1 and cluster * warps > turns:
        warps //= 2
    while cluster > 1 and cluster * warps > turns:
        cluster //= 2
    return cluster, warps, blocks


register_kernel(
    PtxKernel(
        name="dequant_matmul.cuda.columns",
        op=DequantMatmul,
        platforms=("cuda",),
        source="dequant_columns.cu",
        check=_check,
        configure=launch,
    )
)
