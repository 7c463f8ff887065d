"""Products of rounded inputs with packed weights, on the CPU.

Rows of blocks: ``cc/dequant_int8.h``; codes by columns: ``cc/columns_int8.h``.

XLA would unpack the whole weight into memory at each call; the handler unpacks codes in registers
and multiplies bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.quantized import DequantMatmulInt8
from rlx.quant.schemes import QuantScheme, SchemeKind
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import bound
from rlx_xla.kernels.select import register_kernel

SCHEMES = (
    SchemeKind.GGUF_Q4_0, SchemeKind.GGUF_Q4_1, SchemeKind.GGUF_Q5_0, SchemeKind.GGUF_Q5_1,
    SchemeKind.GGUF_Q8_0, SchemeKind.GGUF_Q4K, SchemeKind.GGUF_Q5K, SchemeKind.GGUF_Q6K,
)  # fmt: skip

CODES = {
    SchemeKind.INT8: "rlx_dequant_matmul_int8_codes8_cpu",
    SchemeKind.INT8_ASYM: "rlx_dequant_matmul_int8_codes8_cpu",
    SchemeKind.INT4: "rlx_dequant_matmul_int8_codes4_cpu",
}
"""Schemes of codes by columns, and their handlers."""

DTYPES = (DType.F32, DType.BF16, DType.F16)

MAX_ROWS = bound("dequant_matmul_int8.cpu.ffi/rows", 256, (1, 16, 64, 256, 512), least=False)
"""The most rows that gain: beyond, XLA's own product of f32 makes up for the unpacking."""


def check(op: DequantMatmulInt8, types: Sequence[TensorType]) -> Supported | Refused:
    """Say whether the handler carries out a product."""
    x = types[0]
    scheme = QuantScheme.parse(op.scheme)
    if scheme.kind not in SCHEMES and scheme.kind not in CODES:
        return Refused(f"scheme {scheme} is not among the handler's")
    if x.dtype not in DTYPES:
        return Refused(f"x is {x.dtype}, and f32, bf16 and f16 are taken")
    if not x.is_static:
        return Refused(f"{x} is not static")
    sizes = [d for d in op.infer(*types).shape if isinstance(d, int)]
    if scheme.kind is SchemeKind.INT4 and sizes[-1] % 2:
        return Refused(f"codes of {sizes[-1]} columns begin rows in the middle of a byte")
    rows = math.prod(sizes[:-1])
    if not MAX_ROWS.admits(rows):
        return Refused(f"{rows} rows are more than {MAX_ROWS}")
    return Supported()


def _attributes(op: DequantMatmulInt8, types: Sequence[TensorType]) -> dict[str, int]:
    scheme = QuantScheme.parse(op.scheme)
    number = scheme.gguf_number
    return {"block": scheme.block} if number is None else {"scheme": number}


def _symbol(op: DequantMatmulInt8, types: Sequence[TensorType]) -> str:
    kind = QuantScheme.parse(op.scheme).kind
    return CODES.get(kind, "rlx_dequant_matmul_int8_rows_cpu")


register_kernel(
    FfiKernel(
        name="dequant_matmul_int8.cpu.ffi",
        op=DequantMatmulInt8,
        platforms=("cpu",),
        symbol=_symbol,
        check=check,
        attributes=_attributes,
    )
)
