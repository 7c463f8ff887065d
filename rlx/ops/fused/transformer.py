"""Whole parts of a transformer encoder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlx.ir.op import Op, define_op
from rlx.ops.activation_kinds import Activation, activate
from rlx.ops.fused import operands
from rlx.types import Dim, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("fused_attention_block")
class FusedAttentionBlock(Op):
    """Self-attention from the hidden state to its output projection.

    q, k, v = split(hidden·qkv_weight + qkv_bias); y = attention(rope(q), rope(k), v, mask)
    ·out_weight + out_bias

    Inputs:
        hidden: float[B, S, E]
        qkv_weight: float[E, 3·H·D]   columns of q, then k, then v.
        out_weight: float[H·D, F]
        mask: bool or number [B, S]; a key whose number is < 0.5 (or false) is hidden.
        extras: with has_bias qkv_bias [3·H·D] and out_bias [F]; then, with has_rope, the tables
            cos and sin [P, D/2] of `rope` (pairs i, i + D/2), P ≥ S.

    Attributes:
        num_heads: H.
        head_dim: D.
        has_bias: whether both projections have a bias.
        has_rope: whether q and k are turned by their position.

    Result:
        float[B, S, F]

    Constraints:
        C1: num_heads and head_dim are ≥ 1; head_dim is even with has_rope.
        C2: hidden is [B, S, E], qkv_weight [E, 3·H·D] and out_weight [H·D, F].
        C3: mask is [B, S].
        C4: extras are the biases and tables that has_bias and has_rope call for, of those shapes.
        C5: one dtype of f32, bf16, f16, f64 (tables may be f32).

    Numerics: each product accumulates in f32 (f64 for f64); q, k, v and the attention's result
    are rounded to the dtype of hidden.
    Source: RLX `Op::FusedAttentionBlock`.
    """

    num_heads: int
    head_dim: int
    has_bias: bool = False
    has_rope: bool = False

    def infer(
        self,
        hidden: TensorType,
        qkv_weight: TensorType,
        out_weight: TensorType,
        mask: TensorType,
        *extras: TensorType,
    ) -> TensorType:
        self.require(
            "C1",
            self.num_heads >= 1
            and self.head_dim >= 1
            and not (self.has_rope and self.head_dim % 2),
            f"num_heads and head_dim are required to be ≥ 1, and head_dim even with has_rope; got "
            f"{self.num_heads}, {self.head_dim}, has_rope = {self.has_rope}. "
            "Change the attribute.",
        )
        width = self.num_heads * self.head_dim
        text = f"hidden is required to be [B, S, E]; got {hidden}. Reshape it."
        self.require("C2", hidden.rank == 3, text)
        shape = (hidden.shape[2], 3 * width)
        why = f"[E, 3·H·D] for hidden: {hidden}"
        operands.require_shape(self, "C2", "qkv_weight", qkv_weight, shape, why)
        outward = operands.require_product(
            self, "C2", hidden.with_shape((*hidden.shape[:2], width)), out_weight
        )
        why = f"[B, S] of hidden: {hidden}"
        operands.require_shape(self, "C3", "mask", mask, hidden.shape[:2], why)
        counts = 2 * (self.has_bias + self.has_rope)
        self.require(
            "C4",
            len(extras) == counts,
            f"{counts} inputs are required after mask with has_bias = {self.has_bias} and "
            f"has_rope = {self.has_rope}; got {len(extras)}. Pass the biases, then the tables.",
        )
        given = {"qkv_weight": qkv_weight, "out_weight": out_weight}
        if self.has_bias:
            names = (("qkv_bias", shape[1]), ("out_bias", outward[-1]))
            for (name, size), found in zip(names, extras[:2], strict=True):
                why = f"one number for each column; its weight has {size}"
                operands.require_shape(self, "C4", name, found, (size,), why)
                given[name] = found
        operands.require_dtype(self, "C5", "hidden", hidden, **given)
        if self.has_rope:
            packed = hidden.with_shape((*hidden.shape[:2], width))
            self._rope().infer(packed, *extras[-2:])
        return hidden.with_shape(outward)

    def decompose(
        self, hidden: Value, qkv_weight: Value, out_weight: Value, mask: Value, *extras: Value
    ) -> Value:
        from rlx.ops.attention import Attention, MaskKind

        biases = extras[:2] if self.has_bias else (None, None)
        width = self.num_heads * self.head_dim
        joined = linear(hidden, qkv_weight, biases[0])
        q, k, v = operands.parts(joined, width, width, width)
        if self.has_rope:
            q, k = (self._rope()(x, *extras[-2:]) for x in (q, k))
        attention = Attention(
            num_heads=self.num_heads, head_dim=self.head_dim, mask_kind=MaskKind.CUSTOM
        )
        return linear(attention(q, k, v, mask), out_weight, biases[1])

    def _rope(self) -> Op:
        from rlx.ops.position import Rope

        return Rope(head_dim=self.head_dim, n_rot=self.head_dim)


@define_op("fused_transformer_layer")
class FusedTransformerLayer(Op):
    """One encoder layer with the norm after each residual sum, as in BERT.

    h = layer_norm(hidden + attention_block(hidden));
    y = layer_norm(h + act(h·fc1_weight + fc1_bias)·fc2_weight + fc2_bias)

    Inputs:
        hidden: float[B, S, E]
        qkv_weight: float[E, 3·H·D]   columns of q, then k, then v.
        out_weight: float[H·D, E]
        mask: bool or number [B, S]; a key whose number is < 0.5 (or false) is hidden.
        ln1_gamma, ln1_beta: float[E]   the norm after attention.
        fc1_weight: float[E, F]
        fc2_weight: float[F, E]
        ln2_gamma, ln2_beta: float[E]   the norm at the end.
        qkv_bias: float[3·H·D]   this and the next three: all or none.
        out_bias: float[E]
        fc1_bias: float[F]
        fc2_bias: float[E]

    Attributes:
        num_heads: H.
        head_dim: D.
        eps: added to the variances, in units of x²; > 0.
        activation: between the two last products.

    Result:
        Same type as hidden.

    Constraints:
        C1: num_heads and head_dim are ≥ 1; eps is finite and > 0.
        C2: hidden is [B, S, E]; the weights have the shapes above.
        C3: mask is [B, S].
        C4: the norms' vectors are [E]; there are four biases of the shapes above, or none.
        C5: one dtype of f32, bf16, f16, f64.

    Numerics: each product accumulates in f32 (f64 for f64) and is rounded to the dtype of hidden,
    as are the attention's operands and the first norm.
    Source: Devlin et al. 2018, arXiv:1810.04805; RLX `Op::FusedTransformerLayer`.
    """

    num_heads: int
    head_dim: int
    eps: float = 1e-12
    activation: Activation = Activation.GELU

    def infer(
        self,
        hidden: TensorType,
        qkv_weight: TensorType,
        out_weight: TensorType,
        mask: TensorType,
        ln1_gamma: TensorType,
        ln1_beta: TensorType,
        fc1_weight: TensorType,
        fc2_weight: TensorType,
        ln2_gamma: TensorType,
        ln2_beta: TensorType,
        qkv_bias: TensorType | None = None,
        out_bias: TensorType | None = None,
        fc1_bias: TensorType | None = None,
        fc2_bias: TensorType | None = None,
    ) -> TensorType:
        self.require(
            "C1",
            min(self.num_heads, self.head_dim) >= 1 and math.isfinite(self.eps) and self.eps > 0,
            f"num_heads and head_dim are required to be ≥ 1, and eps finite and > 0; got "
            f"{self.num_heads}, {self.head_dim}, {self.eps}. Change the attribute.",
        )
        text = f"hidden is required to be [B, S, E]; got {hidden}. Reshape it."
        self.require("C2", hidden.rank == 3, text)
        width, size = self.num_heads * self.head_dim, hidden.shape[2]
        text = f"fc1_weight is required to be [E, F]; got {fc1_weight}. Reshape it."
        self.require("C2", fc1_weight.rank == 2, text)
        inner = fc1_weight.shape[1]
        weights: dict[str, tuple[TensorType, tuple[Dim, ...]]] = {
            "qkv_weight": (qkv_weight, (size, 3 * width)),
            "out_weight": (out_weight, (width, size)),
            "fc1_weight": (fc1_weight, (size, inner)),
            "fc2_weight": (fc2_weight, (inner, size)),
        }
        why = f"H·D = {width}, E = {size}, F = {inner}"
        for name, (found, shape) in weights.items():
            operands.require_shape(self, "C2", name, found, shape, why)
        operands.require_shape(self, "C3", "mask", mask, hidden.shape[:2], f"hidden: {hidden}")
        vectors: dict[str, tuple[TensorType | None, Dim]] = {
            "ln1_gamma": (ln1_gamma, size),
            "ln1_beta": (ln1_beta, size),
            "ln2_gamma": (ln2_gamma, size),
            "ln2_beta": (ln2_beta, size),
            "qkv_bias": (qkv_bias, 3 * width),
            "out_bias": (out_bias, size),
            "fc1_bias": (fc1_bias, inner),
            "fc2_bias": (fc2_bias, size),
        }
        given = {name: found for name, (found, _) in weights.items()}
        for name, (found, length) in vectors.items():
            if found is not None:
                operands.require_shape(self, "C4", name, found, (length,), why)
                given[name] = found
        count = len(given) + 2
        self.require(
            "C4",
            count in (10, 14),
            f"10 inputs, or 14 with biases, are required; got {count}. Pass all four biases.",
        )
        operands.require_dtype(self, "C5", "hidden", hidden, **given)
        return hidden

    def decompose(
        self,
        hidden: Value,
        qkv_weight: Value,
        out_weight: Value,
        mask: Value,
        ln1_gamma: Value,
        ln1_beta: Value,
        fc1_weight: Value,
        fc2_weight: Value,
        ln2_gamma: Value,
        ln2_beta: Value,
        qkv_bias: Value | None = None,
        out_bias: Value | None = None,
        fc1_bias: Value | None = None,
        fc2_bias: Value | None = None,
    ) -> Value:
        from rlx.ops.fused.norms import FusedResidualLn

        biases = () if qkv_bias is None or out_bias is None else (qkv_bias, out_bias)
        block = FusedAttentionBlock(
            num_heads=self.num_heads, head_dim=self.head_dim, has_bias=bool(biases)
        )
        norm = FusedResidualLn(eps=self.eps)
        attended = block(hidden, qkv_weight, out_weight, mask, *biases)
        middle = norm(attended, hidden, ln1_gamma, ln1_beta)
        inner = linear(middle, fc1_weight, fc1_bias, self.activation)
        return norm(linear(inner, fc2_weight, fc2_bias), middle, ln2_gamma, ln2_beta)


def linear(
    x: Value, weight: Value, bias: Value | None, activation: Activation | None = None
) -> Value:
    """act(x·weight + bias), rounded once to the dtype of x."""
    from rlx.ops.fused.products import FusedMatmulBiasAct

    if bias is not None:
        made: Value = FusedMatmulBiasAct(activation=activation)(x, weight, bias)
        return made
    made = operands.product(x, weight)
    made = made if activation is None else activate(activation, made)
    return made.convert(x.dtype)
