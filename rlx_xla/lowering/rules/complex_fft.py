"""Parts of complex numbers, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.ir.op import Op
from rlx.ops import complex_fft as ops
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64_array
from rlx_xla.lowering.registry import lowers

_UNARY: dict[type[Op], Callable[..., Any]] = {
    ops.Real: stablehlo.real,
    ops.Imag: stablehlo.imag,
}


@lowers(*_UNARY)
def unary(ctx: LoweringContext, op: Op, x: ir.Value) -> ir.Value:
    return _UNARY[type(op)](x)


@lowers(ops.Complex)
def complex(ctx: LoweringContext, op: ops.Complex, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return stablehlo.complex(lhs, rhs)


@lowers(ops.Conj)
def conj(ctx: LoweringContext, op: ops.Conj, x: ir.Value) -> ir.Value:
    return stablehlo.complex(stablehlo.real(x), stablehlo.negate(stablehlo.imag(x)))


@lowers(ops.Fft)
def fft(ctx: LoweringContext, op: ops.Fft, x: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    if 0 in type_.shape:
        return ctx.full(0, type_)
    inverse_of_real = op.fft_type is ops.FftType.IRFFT and len(op.fft_lengths) > 1
    if inverse_of_real and ctx.platform in ("cuda", "rocm"):
        result = _irfft_by_axes(op, x, type_.rank)
    else:
        result = _emit(x, op.fft_type, op.fft_lengths)
    scale = op.scale()
    return result if scale == 1 else stablehlo.multiply(result, ctx.full(scale, type_))


def _emit(x: ir.Value, kind: ops.FftType, lengths: Sequence[int]) -> ir.Value:
    return stablehlo.fft(x, stablehlo.FftTypeAttr.get(kind.name), i64_array(lengths))


def _irfft_by_axes(op: ops.Fft, x: ir.Value, rank: int) -> ir.Value:
    """Complex transforms of the outer axes, then a real one of the last.

    The GPU libraries take a spectrum with several axes as symmetric in all of them.
    """
    first = rank - len(op.fft_lengths)
    last_to_front = [*range(first), rank - 1, *range(first, rank - 1)]
    front_to_last = [*range(first), *range(first + 1, rank), first]
    x = stablehlo.transpose(x, i64_array(last_to_front))
    x = _emit(x, ops.FftType.IFFT, op.fft_lengths[:-1])
    x = stablehlo.transpose(x, i64_array(front_to_last))
    return _emit(x, ops.FftType.IRFFT, op.fft_lengths[-1:])
