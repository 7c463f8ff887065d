"""Products with a bias and an activation, and norms of residual sums, on the CPU.

XLA passes over a product again for its bias and its activation, and over a residual sum four times
for its norm, each pass on one thread where the sizes are small. The handlers finish what they have
in the cache (``cc/epilogue.h``).

Numerics: f32 throughout; the exact gelu keeps the digits of its tail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rlx.dtypes import DType
from rlx.ops.activation_kinds import Activation
from rlx.ops.dot import DotGeneral
from rlx.ops.fused import FusedMatmulBiasAct, FusedResidualLn
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.library import matmul
from rlx_xla.kernels.select import register_kernel

ACTIVATIONS = (None, Activation.RELU, Activation.GELU, Activation.GELU_APPROX, Activation.SILU)
"""In the order of ``rlx::Activation``."""


@final
@dataclass(frozen=True, kw_only=True)
class Gain:
    """Sizes that gain, as measured on a quiet machine against the same graph without.

    Attributes:
        rows: fewest and most rows.
        elements: fewest and most elements of the matrix.
        terms: most terms, rows times elements.
    """

    rows: tuple[int, int]
    elements: tuple[int, int]
    terms: int

    def holds(self, rows: int, elements: int) -> bool:
        """Whether a product lies in the range."""
        return (
            self.rows[0] <= rows <= self.rows[1]
            and self.elements[0] <= elements <= self.elements[1]
            and rows * elements <= self.terms
        )


FINISHED = Gain(rows=(8, 64), elements=(2**14, 2**22), terms=2**24)
"""Products that gain with a bias where the CPU has AVX-512: 0.5 to 0.8 of XLA's time."""

NORMS = (2**9, 2**20)
"""Fewest and most elements of a residual sum whose norm gains."""


def _check_product(op: FusedMatmulBiasAct, types: Sequence[TensorType]) -> Supported | Refused:
    x, weight, bias = types
    if x.dtype is not DType.F32:
        return Refused(f"x is {x.dtype}, and f32 is taken")
    if not (x.is_static and weight.is_static and bias.is_static):
        return Refused(f"{weight if x.is_static else x} is not static")
    if op.activation not in ACTIVATIONS:
        kinds = ", ".join(a.value for a in ACTIVATIONS if a is not None)
        assert op.activation is not None
        return Refused(f"the activation is {op.activation.value}, and {kinds} are taken")
    product = matmul.product_of(_product(x), types[:2])
    if isinstance(product, Refused):
        return product
    if FINISHED.holds(product.rows, product.k * product.n):
        return Supported()
    return Refused(
        f"{product.rows} rows times {product.k * product.n} elements gain nothing "
        f"({FINISHED.rows[0]} to {FINISHED.rows[1]} rows and {FINISHED.elements[0]} to "
        f"{FINISHED.elements[1]} elements with at most {FINISHED.terms} terms do)"
    )


def _product(x: TensorType) -> DotGeneral:
    return DotGeneral(lhs_contracting=(x.rank - 1,), rhs_contracting=(0,))


def _check_norm(op: FusedResidualLn, types: Sequence[TensorType]) -> Supported | Refused:
    x = types[0]
    if x.dtype is not DType.F32:
        return Refused(f"x is {x.dtype}, and f32 is taken")
    if not x.is_static:
        return Refused(f"{x} is not static")
    elements = math.prod(d for d in x.shape if isinstance(d, int))
    least, most = NORMS
    if not least <= elements <= most:
        return Refused(f"{elements} elements are not from {least} to {most}, which gain")
    return Supported()


register_kernel(
    FfiKernel(
        name="fused_matmul_bias_act.cpu.ffi",
        op=FusedMatmulBiasAct,
        platforms=("cpu",),
        unproven=None if matmul.WIDE else "its gain was measured with AVX-512 alone",
        symbol=lambda op, types: "rlx_fused_matmul_bias_act_f32_cpu",
        check=_check_product,
        attributes=lambda op, types: {"activation": ACTIVATIONS.index(op.activation)},
    )
)
register_kernel(
    FfiKernel(
        name="fused_residual_ln.cpu.ffi",
        op=FusedResidualLn,
        platforms=("cpu",),
        symbol=lambda op, types: "rlx_fused_residual_ln_f32_cpu",
        check=_check_norm,
        attributes=lambda op, types: {"eps": float(op.eps)},
    )
)
