"""Parts of complex numbers, and Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from jax import lax

from rlx.ops import complex_fft as ops
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule
from rlx_xla.tracing.jax_rules.arithmetic import full_like, plain_rule

to_jax_rule(ops.Real)(plain_rule(lax.real))
to_jax_rule(ops.Imag)(plain_rule(lax.imag))
to_jax_rule(ops.Complex)(plain_rule(lax.complex))
to_jax_rule(ops.Conj)(plain_rule(lax.conj))


@to_jax_rule(ops.Fft, named=lambda op, types: op.norm is not ops.FftNorm.BACKWARD)
def fft(ctx: JaxContext, op: ops.Fft, x: Any) -> Any:
    made = lax.fft(x, lax.FftType[op.fft_type.name], op.fft_lengths)
    if op.norm is ops.FftNorm.BACKWARD:
        return made
    count = float(math.prod(op.fft_lengths))
    inverse = op.fft_type in (ops.FftType.IFFT, ops.FftType.IRFFT)
    factors = {
        ops.FftNorm.ORTHO: math.sqrt(count) if inverse else 1 / math.sqrt(count),
        ops.FftNorm.FORWARD: count if inverse else 1 / count,
    }
    return lax.mul(made, full_like(factors[op.norm], made))
