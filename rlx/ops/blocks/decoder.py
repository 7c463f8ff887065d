"""Whole blocks of decoders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlx.ir.op import Level, Op, define_op
from rlx.ops.attention import MASKED, Attention, MaskKind
from rlx.ops.blocks.forms import given
from rlx.ops.blocks.layers import SwigluBlock
from rlx.ops.blocks.linear import Linear
from rlx.ops.fused import operands
from rlx.ops.position import Rope, RopeStyle
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("llama_decoder_block", level=Level.HIR)
class LlamaDecoderBlock(Op):
    """Decoder layer of the Llama family: attention, then a gated feed-forward layer.

    n = rms_norm(x, ln1_gamma, ln1_beta)
    h = x + attention(rope(n·q_weight), rope(n·k_weight), n·v_weight)·o_weight
    y = h + swiglu(rms_norm(h, ln2_gamma, ln2_beta))

    Inputs:
        x: float[B, S, E]
        ln1_gamma, ln1_beta: float[E]    the norm before attention.
        q_weight: float[E, H·D]
        k_weight: float[E, H_k·D]        H_k divides H.
        v_weight: float[E, H_k·D]
        o_weight: float[H·D, E]
        ln2_gamma, ln2_beta: float[E]    the norm before the feed-forward layer.
        gate_weight: float[E, F]
        up_weight: float[E, F]
        down_weight: float[F, E]
        cos, sin: float[P, W]            tables of `rope`.
        mask: what mask_kind calls for, as of `attention`.

    Attributes:
        num_heads: H.
        num_kv_heads: H_k.
        head_dim: D.
        eps: added to the mean squares, in units of x²; > 0.
        n_rot: how many elements of a head are turned; None for all.
        rope_style: which elements form pairs.
        mask_kind: which keys a query may see, as of `attention`.
        window: for sliding_window only.

    Result:
        Same type as x.

    Constraints:
        C1: num_heads, num_kv_heads and head_dim are ≥ 1, H_k divides H, eps is finite and > 0;
            window ≥ 0 is given for sliding_window and only there.
        C2: x is [B, S, E].
        C3: the weights have the shapes above.
        C4: the norms' vectors have shape [E].
        C5: one dtype of f32, bf16, f16, f64 (tables may be f32).

    Numerics: each layer's result is rounded to the dtype of x.
    Source: Touvron et al. 2023, arXiv:2302.13971; RLX `HirOp::LlamaDecoderBlock`.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float = 1e-6
    n_rot: int | None = None
    rope_style: RopeStyle = RopeStyle.NEOX
    mask_kind: MaskKind = MaskKind.CAUSAL
    window: int | None = None

    def infer(
        self,
        x: TensorType,
        ln1_gamma: TensorType | None = None,
        ln1_beta: TensorType | None = None,
        q_weight: TensorType | None = None,
        k_weight: TensorType | None = None,
        v_weight: TensorType | None = None,
        o_weight: TensorType | None = None,
        ln2_gamma: TensorType | None = None,
        ln2_beta: TensorType | None = None,
        gate_weight: TensorType | None = None,
        up_weight: TensorType | None = None,
        down_weight: TensorType | None = None,
        cos: TensorType | None = None,
        sin: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> TensorType:
        self._check_attributes()
        text = f"x is required to be [B, S, E]; got {x}. Reshape it."
        self.require("C2", x.rank == 3, text)
        size, width = x.shape[2], self.num_heads * self.head_dim
        narrow = self.num_kv_heads * self.head_dim
        inner = gate_weight.shape[1:2] if gate_weight is not None else ()
        shapes: dict[str, tuple[TensorType | None, Shape]] = {
            "q_weight": (q_weight, (size, width)),
            "k_weight": (k_weight, (size, narrow)),
            "v_weight": (v_weight, (size, narrow)),
            "o_weight": (o_weight, (width, size)),
            "gate_weight": (gate_weight, (size, *inner)),
            "up_weight": (up_weight, (size, *inner)),
            "down_weight": (down_weight, (*inner, size)),
        }
        others: dict[str, TensorType] = {}
        why = f"E = {size}, H·D = {width}, H_k·D = {narrow}"
        for name, (found, shape) in shapes.items():
            if found is not None:
                operands.require_shape(self, "C3", name, found, shape, why)
                others[name] = found
        vectors = {
            "ln1_gamma": ln1_gamma, "ln1_beta": ln1_beta,
            "ln2_gamma": ln2_gamma, "ln2_beta": ln2_beta,
        }  # fmt: skip
        for name, found in vectors.items():
            if found is not None:
                operands.require_shape(self, "C4", name, found, (size,), f"E of x: {x}")
                others[name] = found
        operands.require_dtype(self, "C5", "x", x, **others)
        if cos is not None and sin is not None:
            self._rope().infer(x.with_shape((*x.shape[:2], width)), cos, sin)
        if mask is not None and self.mask_kind in MASKED:
            heads, keys = (x.with_shape((*x.shape[:2], n)) for n in (width, narrow))
            self._attention().infer(heads, keys, keys, mask)
        return x

    def decompose(
        self,
        x: Value,
        ln1_gamma: Value | None = None,
        ln1_beta: Value | None = None,
        q_weight: Value | None = None,
        k_weight: Value | None = None,
        v_weight: Value | None = None,
        o_weight: Value | None = None,
        ln2_gamma: Value | None = None,
        ln2_beta: Value | None = None,
        gate_weight: Value | None = None,
        up_weight: Value | None = None,
        down_weight: Value | None = None,
        cos: Value | None = None,
        sin: Value | None = None,
        mask: Value | None = None,
    ) -> Value:
        from rlx.ops.normalization import RmsNorm

        x, *rest = given(
            self, 14 + (self.mask_kind in MASKED), x, ln1_gamma, ln1_beta, q_weight, k_weight,
            v_weight, o_weight, ln2_gamma, ln2_beta, gate_weight, up_weight, down_weight, cos, sin,
            mask,
        )  # fmt: skip
        gain1, offset1, to_q, to_k, to_v, to_out, gain2, offset2, gate, up, down, *tables = rest
        norm, linear, rope = RmsNorm(axis=2, eps=self.eps), Linear(), self._rope()
        normal = norm(x, gain1, offset1)
        q, k = (rope(linear(normal, w), *tables[:2]) for w in (to_q, to_k))
        attended: Value = self._attention()(q, k, linear(normal, to_v), *tables[2:])
        middle: Value = x + linear(attended, to_out)
        return middle + SwigluBlock()(norm(middle, gain2, offset2), up, gate, down)

    def _check_attributes(self) -> None:
        heads, groups, window = self.num_heads, self.num_kv_heads, self.window
        slides = self.mask_kind is MaskKind.SLIDING_WINDOW
        self.require(
            "C1",
            min(heads, groups, self.head_dim) >= 1
            and heads % groups == 0
            and math.isfinite(self.eps)
            and self.eps > 0
            and (window is not None and window >= 0 if slides else window is None),
            f"num_heads, num_kv_heads and head_dim are required to be ≥ 1, num_kv_heads to divide "
            f"num_heads, eps to be finite and > 0, and window to be ≥ 0 for sliding_window and "
            f"None otherwise; got {heads}, {groups}, {self.head_dim}, {self.eps} and {window} with "
            f"{self.mask_kind.value}. "
            "Change the attribute.",
        )

    def _rope(self) -> Rope:
        n_rot = self.head_dim if self.n_rot is None else self.n_rot
        return Rope(head_dim=self.head_dim, n_rot=n_rot, style=self.rope_style)

    def _attention(self) -> Attention:
        return Attention(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            mask_kind=self.mask_kind,
            window=self.window,
        )
