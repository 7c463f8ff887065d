"""Products with one of several packed weights, on the CPU: those of one weight, which is looked up.

XLA would stack all weights at each call; the handler reads one where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ops.quantized import DequantMatmul, DequantMatmulInt8, DequantMatmulPick
from rlx.quant.schemes import QuantScheme
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.library import dequant_matmul, dequant_matmul_int8
from rlx_xla.kernels.select import register_kernel


def _check(op: DequantMatmulPick, types: Sequence[TensorType]) -> Supported | Refused:
    alone = [types[0], types[2]]
    if op.rounded:
        return dequant_matmul_int8.check(DequantMatmulInt8(scheme=op.scheme), alone)
    return dequant_matmul.check(DequantMatmul(scheme=op.scheme), alone)


def _symbol(op: DequantMatmulPick, types: Sequence[TensorType]) -> str:
    return f"rlx_dequant_matmul_{'int8' if op.rounded else 'gguf'}_pick_cpu"


def _attributes(op: DequantMatmulPick, types: Sequence[TensorType]) -> dict[str, int]:
    number = QuantScheme.parse(op.scheme).gguf_number
    return {} if number is None else {"scheme": number}


register_kernel(
    FfiKernel(
        name="dequant_matmul_pick.cpu.ffi",
        op=DequantMatmulPick,
        platforms=("cpu",),
        symbol=_symbol,
        check=_check,
        attributes=_attributes,
    )
)
