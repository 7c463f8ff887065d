"""Products of rounded inputs with packed weights, on the CPU (``cc/dequant_int8.h``).

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

DTYPES = (DType.F32, DType.BF16, DType.F16)

MAX_ROWS = bound("dequant_matmul_int8.cpu.ffi/rows", 256, (1, 16, 64, 256, 512), least=False)
"""The most rows that gain: beyond, XLA's own product of f32 makes up for the unpacking."""


def check(op: DequantMatmulInt8, types: Sequence[TensorType]) -> Supported | Refused:
    """Say whether the handler carries out a product."""
    x = types[0]
    scheme = QuantScheme.parse(op.scheme)
    if scheme.kind not in SCHEMES:
        return Refused(f"scheme {scheme} is not among the handler's")
    if x.dtype not in DTYPES:
        return Refused(f"x is {x.dtype}, and f32, bf16 and f16 are taken")
    if not x.is_static:
        return Refused(f"{x} is not static")
    rows = math.prod(d for d in x.shape[:-1] if isinstance(d, int))
    if not MAX_ROWS.admits(rows):
        return Refused(f"{rows} rows are more than {MAX_ROWS}")
    return Supported()


def _attributes(op: DequantMatmulInt8, types: Sequence[TensorType]) -> dict[str, int]:
    number = QuantScheme.parse(op.scheme).gguf_number
    return {} if number is None else {"scheme": number}


register_kernel(
    FfiKernel(
        name="dequant_matmul_int8.cpu.ffi",
        op=DequantMatmulInt8,
        platforms=("cpu",),
        symbol=lambda op, types: "rlx_dequant_matmul_int8_rows_cpu",
        check=check,
        attributes=_attributes,
    )
)
