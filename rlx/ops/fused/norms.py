"""A residual sum and the norm of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlx.ir.op import Op, define_op
from rlx.ops.fused import operands
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("fused_residual_ln")
class FusedResidualLn(Op):
    """Layer normalisation of a residual sum over the last axis.

    y = layer_norm(x + residual + bias, gamma, beta)

    Inputs:
        x: float[..., D]
        residual: float[..., D]
        gamma: float[D]   gain.
        beta: float[D]    offset.
        bias: float[D]    added to the sum; left out for none.

    Attributes:
        eps: added to the variance, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: x has at least one axis, and residual its shape.
        C2: gamma, beta and bias have shape [D].
        C3: one dtype of f32, bf16, f16, f64.
        C4: eps is finite and > 0.

    Numerics: sum and norm in f32 (f64 for f64); result rounded once.
    Source: RLX `Op::FusedResidualLN`, whose inputs have the bias before gamma.
    """

    eps: float = 1e-5

    def infer(
        self,
        x: TensorType,
        residual: TensorType,
        gamma: TensorType,
        beta: TensorType,
        bias: TensorType | None = None,
    ) -> TensorType:
        return _residual_norm(self, self.eps, x, residual, gamma, beta, bias)

    def decompose(
        self, x: Value, residual: Value, gamma: Value, beta: Value, bias: Value | None = None
    ) -> Value:
        from rlx.ops.normalization import LayerNorm

        total, gain, offset = _sum(x, residual, bias), operands.wide(gamma), operands.wide(beta)
        normal: Value = LayerNorm(axis=x.rank - 1, eps=self.eps)(total, gain, offset)
        return normal.convert(x.dtype)


@define_op("fused_residual_rms_norm")
class FusedResidualRmsNorm(Op):
    """Root-mean-square normalisation of a residual sum over the last axis.

    y = rms_norm(x + residual + bias, gamma, beta)

    Inputs:
        x: float[..., D]
        residual: float[..., D]
        gamma: float[D]   gain.
        beta: float[D]    offset; zeros when the model has none.
        bias: float[D]    added to the sum; left out for none.

    Attributes:
        eps: added to the mean square, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: x has at least one axis, and residual its shape.
        C2: gamma, beta and bias have shape [D].
        C3: one dtype of f32, bf16, f16, f64.
        C4: eps is finite and > 0.

    Numerics: sum and norm in f32 (f64 for f64); result rounded once.
    Source: RLX `Op::FusedResidualRmsNorm`, whose inputs have the bias before gamma.
    """

    eps: float = 1e-6

    def infer(
        self,
        x: TensorType,
        residual: TensorType,
        gamma: TensorType,
        beta: TensorType,
        bias: TensorType | None = None,
    ) -> TensorType:
        return _residual_norm(self, self.eps, x, residual, gamma, beta, bias)

    def decompose(
        self, x: Value, residual: Value, gamma: Value, beta: Value, bias: Value | None = None
    ) -> Value:
        from rlx.ops.normalization import RmsNorm

        total, gain, offset = _sum(x, residual, bias), operands.wide(gamma), operands.wide(beta)
        normal: Value = RmsNorm(axis=x.rank - 1, eps=self.eps)(total, gain, offset)
        return normal.convert(x.dtype)


def _residual_norm(
    op: Op,
    eps: float,
    x: TensorType,
    residual: TensorType,
    gamma: TensorType,
    beta: TensorType,
    bias: TensorType | None,
) -> TensorType:
    text = f"x is required to have at least one axis; got {x}. Reshape it."
    op.require("C1", x.rank >= 1, text)
    operands.require_shape(op, "C1", "residual", residual, x.shape, f"the shape of x: {x}")
    vectors = {"gamma": gamma, "beta": beta}
    if bias is not None:
        vectors["bias"] = bias
    for name, found in vectors.items():
        operands.require_shape(op, "C2", name, found, x.shape[-1:], f"the last axis of x: {x}")
    operands.require_dtype(op, "C3", "x", x, residual=residual, **vectors)
    op.require(
        "C4",
        math.isfinite(eps) and eps > 0,
        f"eps is required to be finite and > 0; got {eps}. Use a small positive number.",
    )
    return x


def _sum(x: Value, residual: Value, bias: Value | None) -> Value:
    total = operands.wide(x) + operands.wide(residual)
    return total if bias is None else total + operands.along(bias, -1, x.shape)
