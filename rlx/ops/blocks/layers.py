"""Feed-forward, norm, attention and convolution layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlx import dims
from rlx.ir.op import Level, Op, define_op
from rlx.ops.activation_kinds import Activation, activate
from rlx.ops.attention import MASKED, Attention, MaskKind
from rlx.ops.blocks.forms import are_constants, direct, given
from rlx.ops.fused import operands
from rlx.ops.fused.norms import FusedResidualRmsNorm
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("swiglu_block", level=Level.HIR)
class SwigluBlock(Op):
    """Feed-forward layer with a gated linear unit.

    y = (silu(x·gate_weight) * (x·up_weight))·down_weight

    Inputs:
        x: float[..., E]
        up_weight: float[E, F]
        gate_weight: float[E, F]
        down_weight: float[F, G]

    Result:
        float[..., G]

    Constraints:
        C1: x is [..., E], up_weight [E, F] and down_weight [F, G].
        C2: gate_weight has the shape of up_weight.
        C3: one dtype of f32, bf16, f16, f64.

    Numerics: under the direct policy the gate is `fused_swiglu`, and constant weights are joined
    to one product.
    Source: Shazeer 2020, arXiv:2002.05202; RLX `HirOp::SwiGLU`.
    """

    def infer(
        self,
        x: TensorType,
        up_weight: TensorType | None = None,
        gate_weight: TensorType | None = None,
        down_weight: TensorType | None = None,
    ) -> TensorType:
        if up_weight is None or gate_weight is None or down_weight is None:
            return x
        inner = operands.require_product(self, "C1", x, up_weight)
        outer = operands.require_product(self, "C1", x.with_shape(inner), down_weight)
        why = f"the shape of up_weight: {up_weight}"
        operands.require_shape(self, "C2", "gate_weight", gate_weight, up_weight.shape, why)
        operands.require_dtype(
            self, "C3", "x", x, up_weight=up_weight, gate_weight=gate_weight,
            down_weight=down_weight,
        )  # fmt: skip
        return x.with_shape(outer)

    def decompose(
        self,
        x: Value,
        up_weight: Value | None = None,
        gate_weight: Value | None = None,
        down_weight: Value | None = None,
    ) -> Value:
        from rlx.ops.dot import Matmul

        x, up, gate, down = given(self, 4, x, up_weight, gate_weight, down_weight)
        gated = activate(Activation.SILU, Matmul()(x, gate)) * Matmul()(x, up)
        made: Value = Matmul()(gated, down)
        return made


@direct(SwigluBlock)
def _swiglu_block(
    op: SwigluBlock,
    x: Value,
    up_weight: Value | None = None,
    gate_weight: Value | None = None,
    down_weight: Value | None = None,
) -> Value:
    from rlx.ops.dot import Matmul
    from rlx.ops.shape import Concatenate

    x, up, gate, down = given(op, 4, x, up_weight, gate_weight, down_weight)
    if are_constants(up, gate):
        return fused_swiglu_ffn(x, up, gate, down)
    # Other weights stay as they are: joining them would copy them on every call.
    halves = Concatenate(axis=x.rank - 1)(Matmul()(x, up), Matmul()(x, gate))
    return _gated(halves, down)


def fused_swiglu_ffn(x: Value, up: Value, gate: Value, down: Value) -> Value:
    """The gated layer with the up and gate weights joined to one product."""
    from rlx.ops.dot import Matmul
    from rlx.ops.shape import Concatenate

    return _gated(Matmul()(x, Concatenate(axis=1)(up, gate)), down)


def _gated(halves: Value, down: Value) -> Value:
    from rlx.ops.dot import Matmul
    from rlx.ops.fused.products import FusedSwiglu

    made: Value = Matmul()(FusedSwiglu()(halves), down)
    return made


@define_op("residual_rms_norm", level=Level.HIR)
class ResidualRmsNorm(Op):
    """Root-mean-square normalisation of a residual sum over the last axis.

    y = rms_norm(x + residual, gamma, beta)

    Inputs:
        x: float[..., D]
        residual: float[..., D]
        gamma: float[D]   gain.
        beta: float[D]    offset; zeros when the model has none.

    Attributes:
        eps: added to the mean square, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: x has at least one axis, and residual its shape.
        C2: gamma and beta have shape [D].
        C3: one dtype of f32, bf16, f16, f64.
        C4: eps is finite and > 0.

    Source: RLX `HirOp::ResidualRmsNorm`.
    """

    eps: float = 1e-6

    def infer(
        self,
        x: TensorType,
        residual: TensorType | None = None,
        gamma: TensorType | None = None,
        beta: TensorType | None = None,
    ) -> TensorType:
        text = f"x is required to have at least one axis; got {x}. Reshape it."
        self.require("C1", x.rank >= 1, text)
        others: dict[str, TensorType] = {}
        if residual is not None:
            why = f"the shape of x: {x}"
            operands.require_shape(self, "C1", "residual", residual, x.shape, why)
            others["residual"] = residual
        for name, vector in (("gamma", gamma), ("beta", beta)):
            if vector is not None:
                why = f"the last axis of x: {x}"
                operands.require_shape(self, "C2", name, vector, x.shape[-1:], why)
                others[name] = vector
        operands.require_dtype(self, "C3", "x", x, **others)
        self.require(
            "C4",
            math.isfinite(self.eps) and self.eps > 0,
            f"eps is required to be finite and > 0; got {self.eps}. Use a small positive number.",
        )
        return x

    def decompose(
        self,
        x: Value,
        residual: Value | None = None,
        gamma: Value | None = None,
        beta: Value | None = None,
    ) -> Value:
        from rlx.ops.normalization import RmsNorm

        x, other, gain, offset = given(self, 4, x, residual, gamma, beta)
        made: Value = RmsNorm(axis=x.rank - 1, eps=self.eps)(x + other, gain, offset)
        return made


@direct(ResidualRmsNorm)
def _residual_rms_norm(
    op: ResidualRmsNorm,
    x: Value,
    residual: Value | None = None,
    gamma: Value | None = None,
    beta: Value | None = None,
) -> Value:
    inputs = given(op, 4, x, residual, gamma, beta)
    made: Value = FusedResidualRmsNorm(eps=op.eps)(*inputs)
    return made


@define_op("attention_block", level=Level.HIR)
class AttentionBlock(Op):
    """Attention of queries, keys and values that are already projected.

    y = attention(q, k, v, mask)

    Inputs:
        q: float[B, S_q, H, D]       as `attention` takes it, in any of its layouts.
        k: float[B, S_k, H_k, D]
        v: float[B, S_k, H_k, D_v]
        mask: what the kind of mask calls for.

    Attributes:
        num_heads: H.
        head_dim: D.
        mask_kind: which keys a query may see, as of `attention`.
        window: for sliding_window only.
        layout: ``bshd`` or ``bhsd``.

    Result:
        float[B, S_q, H, D_v] in the layout of q; its constraints are those of `attention`.

    Source: RLX `HirOp::Attention`.
    """

    num_heads: int
    head_dim: int
    mask_kind: MaskKind = MaskKind.NONE
    window: int | None = None
    layout: str = "bshd"

    def infer(
        self,
        q: TensorType,
        k: TensorType | None = None,
        v: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> TensorType:
        if k is None or v is None or (mask is not None) != (self.mask_kind in MASKED):
            return q
        return self._attention().infer(q, k, v, mask)

    def decompose(
        self,
        q: Value,
        k: Value | None = None,
        v: Value | None = None,
        mask: Value | None = None,
    ) -> Value:
        inputs = given(self, 3 + (self.mask_kind in MASKED), q, k, v, mask)
        made: Value = self._attention()(*inputs)
        return made

    def _attention(self) -> Attention:
        return Attention(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            mask_kind=self.mask_kind,
            window=self.window,
            layout=self.layout,
        )


@define_op("depthwise_conv1d_causal", level=Level.HIR)
class DepthwiseConv1dCausal(Op):
    """Convolution of each channel over the past of a sequence.

    y[b, s, c] = Σ_k weight[c, k] · p[b, s + k, c],  p = concatenate(left_pad, x) along S

    Inputs:
        x: float[B, S, C]
        weight: float[C, K]            or float[C, 1, K].
        left_pad: float[B, K − 1, C]   what came before x; zeros at the start.

    Attributes:
        kernel_size: K.

    Result:
        Same type as x.

    Constraints:
        C1: x is [B, S, C], and C is a number.
        C2: kernel_size ≥ 1, and weight is [C, K] or [C, 1, K].
        C3: left_pad is [B, K − 1, C].
        C4: one dtype of f32, bf16, f16, f64.

    Source: RLX `HirOp::DepthwiseConv1dCausal`.
    """

    kernel_size: int

    def infer(
        self,
        x: TensorType,
        weight: TensorType | None = None,
        left_pad: TensorType | None = None,
    ) -> TensorType:
        self.require(
            "C1",
            x.rank == 3 and isinstance(x.shape[2], int),
            f"x is required to be [B, S, C] with C a number; got {x}. Reshape or bind it.",
        )
        size = self.kernel_size
        text = f"kernel_size is required to be ≥ 1; got {size}. Change the attribute."
        self.require("C2", size >= 1, text)
        batch, _, channels = x.shape
        others: dict[str, TensorType] = {}
        if weight is not None:
            shape = (channels, size) if weight.rank != 3 else (channels, 1, size)
            operands.require_shape(self, "C2", "weight", weight, shape, f"C = {channels} of x: {x}")
            others["weight"] = weight
        if left_pad is not None:
            shape = (batch, size - 1, channels)
            why = f"[B, K − 1, C] for x: {x}"
            operands.require_shape(self, "C3", "left_pad", left_pad, shape, why)
            others["left_pad"] = left_pad
        operands.require_dtype(self, "C4", "x", x, **others)
        return x

    def decompose(
        self, x: Value, weight: Value | None = None, left_pad: Value | None = None
    ) -> Value:
        from rlx.ops.convolution import Conv
        from rlx.ops.shape import Concatenate

        x, kernel, past = given(self, 3, x, weight, left_pad)
        channels = dims.evaluate(x.shape[2], {})
        conv = Conv(stride=(1,), padding=(0,), dilation=(1,), groups=channels)
        whole = Concatenate(axis=1)(past, x).transpose(0, 2, 1)
        made: Value = conv(whole, kernel.reshape(channels, 1, self.kernel_size))
        return made.transpose(0, 2, 1)
