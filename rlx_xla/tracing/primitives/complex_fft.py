"""Parts of complex numbers, and Fourier transforms."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Value
from rlx.ops import complex_fft as ops
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.primitives.arithmetic import binary_rule, unary_rule
from rlx_xla.tracing.registry import traces

traces("real")(unary_rule(ops.Real))
traces("imag")(unary_rule(ops.Imag))
traces("complex")(binary_rule(ops.Complex))


@traces("conj")
def conj(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    if x.dtype.is_complex:
        return ops.Conj()(x)
    return ops.Complex()(x, ctx.full(0, x.type))


@traces("fft")
def fft(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    sizes = ctx.shape(params["fft_lengths"])
    lengths = tuple(n for n in sizes if isinstance(n, int) and n > 0)
    if len(lengths) < len(sizes):
        return NotImplemented
    kind = ops.FftType[params["fft_type"].name]
    return ops.Fft(fft_type=kind, fft_lengths=lengths, norm=ops.FftNorm.BACKWARD)(x)
