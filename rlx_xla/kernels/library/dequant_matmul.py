"""Products with packed weights, on the CPU (``cc/blocks.h``, ``cc/grids.h``, ``cc/products.h``).

XLA unpacks the whole weight into memory at each call; the handler unpacks a tile at a time, which
stays in the first-level cache and serves hundreds of rows, and for few rows on CPUs with AVX-512
into registers alone (``cc/blocks_avx512.h``, ``cc/columns_avx512.h``). Activations are f32; where
the CPU multiplies bytes (VNNI), up to sixteen rows of them are held in fixed point of 24 bits for
each 32 numbers (``cc/fixed_point.h``), so that rows of codes are multiplied as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.quantized import DequantMatmul
from rlx.quant.schemes import QuantScheme, SchemeKind
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import bound
from rlx_xla.kernels.select import register_kernel

GGUF = (
    SchemeKind.GGUF_Q4_0, SchemeKind.GGUF_Q4_1, SchemeKind.GGUF_Q5_0, SchemeKind.GGUF_Q5_1,
    SchemeKind.GGUF_Q8_0, SchemeKind.GGUF_Q2K, SchemeKind.GGUF_Q3K, SchemeKind.GGUF_Q4K,
    SchemeKind.GGUF_Q5K, SchemeKind.GGUF_Q6K, SchemeKind.GGUF_Q8K, SchemeKind.GGUF_IQ4NL,
    SchemeKind.GGUF_IQ4XS, SchemeKind.GGUF_IQ2XXS, SchemeKind.GGUF_IQ2XS, SchemeKind.GGUF_IQ2S,
    SchemeKind.GGUF_IQ3XXS, SchemeKind.GGUF_IQ3S, SchemeKind.GGUF_IQ1S, SchemeKind.GGUF_IQ1M,
    SchemeKind.GGUF_TQ1_0, SchemeKind.GGUF_TQ2_0, SchemeKind.GGUF_MXFP4, SchemeKind.GGUF_NVFP4,
)  # fmt: skip
"""Schemes that are stored as rows of blocks."""

CODES = {
    SchemeKind.INT8: "int8",
    SchemeKind.INT8_ASYM: "int8",
    SchemeKind.INT4: "int4",
    SchemeKind.FP8_E4M3: "fp8e4m3",
    SchemeKind.FP8_E5M2: "fp8e5m2",
    SchemeKind.NVFP4: "nvfp4",
    SchemeKind.MLX_AFFINE: "mlx",
    SchemeKind.MLX_MXFP4: "mx4",
    SchemeKind.MLX_MXFP8: "mx8",
    SchemeKind.MXFP4X2: "mx4",
}
"""Schemes of codes with scales of their own, and their handlers."""

NIBBLES = (SchemeKind.INT4, SchemeKind.NVFP4)
"""Those with two codes a byte."""

POWERS = ("mx4", "mx8")
"""Handlers whose scales are powers of two."""

DTYPES = (DType.F32, DType.BF16, DType.F16)

MAX_ROWS = bound("dequant_matmul.cpu.ffi/rows", 512, (1, 16, 64, 256, 512, 1024), least=False)
"""The most rows that gain: beyond, XLA's own product of f32 makes up for the unpacking."""


def check(op: DequantMatmul, types: Sequence[TensorType]) -> Supported | Refused:
    """Say whether the handlers carry out a product."""
    x = types[0]
    scheme = QuantScheme.parse(op.scheme)
    if scheme.kind not in GGUF and scheme.kind not in CODES:
        return Refused(f"scheme {scheme} is not among the handlers'")
    if x.dtype not in DTYPES:
        return Refused(f"x is {x.dtype}, and f32, bf16 and f16 are taken")
    if not x.is_static:
        return Refused(f"{x} is not static")
    sizes = [d for d in op.infer(*types).shape if isinstance(d, int)]
    if scheme.kind in NIBBLES and sizes[-1] % 2:
        return Refused(f"codes of {sizes[-1]} columns begin rows in the middle of a byte")
    if CODES.get(scheme.kind) in POWERS and scheme.block % 32:
        return Refused(f"groups of {scheme.block} are no multiple of 32")
    rows = math.prod(sizes[:-1])
    if not MAX_ROWS.admits(rows):
        return Refused(f"{rows} rows are more than {MAX_ROWS}")
    return Supported()


def _symbol(op: DequantMatmul, types: Sequence[TensorType]) -> str:
    kind = QuantScheme.parse(op.scheme).kind
    if kind in GGUF:
        return "rlx_dequant_matmul_gguf_cpu"
    return f"rlx_dequant_matmul_{CODES[kind]}_cpu"


def _attributes(op: DequantMatmul, types: Sequence[TensorType]) -> dict[str, int]:
    scheme = QuantScheme.parse(op.scheme)
    number = scheme.gguf_number
    if number is not None:
        return {"scheme": number}
    if scheme.kind is SchemeKind.MLX_AFFINE:
        return {"bits": scheme.bits, "block": scheme.block}
    handler = CODES[scheme.kind]
    return {"block": scheme.block} if handler.startswith("int") or handler in POWERS else {}


register_kernel(
    FfiKernel(
        name="dequant_matmul.cpu.ffi",
        op=DequantMatmul,
        platforms=("cpu",),
        symbol=_symbol,
        check=check,
        attributes=_attributes,
    )
)
