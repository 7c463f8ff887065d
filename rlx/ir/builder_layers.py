"""RLX's builder names for products, norms, attention, positions and whole layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import RegistryError
from rlx.ir import operators
from rlx.ir.builder_names import as_activation, listed, value_of

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.ops.activation_kinds import Activation
    from rlx.ops.attention import MaskKind
    from rlx.ops.position import RopeStyle


class AbstractLayerNames:
    """Methods of ``GraphBuilder`` that make layers of MIR ops; blocks are made by their class."""

    # Products and solves.
    def matmul(self, lhs: Value, rhs: Value) -> Value:
        """Batched matrix product."""
        from rlx.ops.dot import Matmul

        made: Value = Matmul()(lhs, rhs)
        return made

    def mm(self, lhs: Value, rhs: Value) -> Value:
        """Batched matrix product, by RLX's short name."""
        return self.matmul(lhs, rhs)

    def dense_solve(self, a: Value, b: Value) -> Value:
        """The x of a·x = b."""
        from rlx.ops.solve import DenseSolve

        made: Value = DenseSolve()(a, b)
        return made

    def conv2d(
        self,
        x: Value,
        weight: Value,
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Value:
        """Cross-correlation of x [N, C, H, W] with weight [O, C / groups, h, w]."""
        from rlx.ops.convolution import Conv

        strides = _pair("conv2d", "stride", stride)
        pads, spread = _pair("conv2d", "padding", padding), _pair("conv2d", "dilation", dilation)
        made: Value = Conv(stride=strides, padding=pads, dilation=spread, groups=groups)(x, weight)
        return made

    def conv_transpose2d(
        self,
        x: Value,
        weight: Value,
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Value:
        """The gradient of conv2d by its input: x [N, C, H, W], weight [C, O / groups, h, w]."""
        from rlx.ops.convolution import ConvTranspose

        made: Value = ConvTranspose(
            stride=_pair("conv_transpose2d", "stride", stride),
            padding=_pair("conv_transpose2d", "padding", padding),
            output_padding=_pair("conv_transpose2d", "output_padding", output_padding),
            dilation=_pair("conv_transpose2d", "dilation", dilation),
            groups=groups,
        )(x, weight)
        return made

    # Norms.
    def layer_norm(
        self, x: Value, gamma: Value, beta: Value, *, axis: int = -1, eps: float = 1e-5
    ) -> Value:
        """Layer normalisation along one axis."""
        from rlx.ops.normalization import LayerNorm

        axis = operators.normalise_axis(axis, value_of("layer_norm", x).rank, "layer_norm")
        return LayerNorm(axis=axis, eps=eps)(x, gamma, beta)

    def ln(self, x: Value, gamma: Value, beta: Value, eps: float = 1e-5) -> Value:
        """Layer normalisation along the last axis, by RLX's short name."""
        return self.layer_norm(x, gamma, beta, eps=eps)

    def layer_norm2d(self, x: Value, gamma: Value, beta: Value, eps: float = 1e-6) -> Value:
        """Layer normalisation over the channels of each pixel of x [N, C, H, W]."""
        from rlx.ops.normalization import LayerNorm2d

        made: Value = LayerNorm2d(eps=eps)(x, gamma, beta)
        return made

    def group_norm(
        self, x: Value, gamma: Value, beta: Value, num_groups: int, eps: float = 1e-5
    ) -> Value:
        """Normalisation over each group of channels of x [N, C, …]."""
        from rlx.ops.normalization import GroupNorm

        made: Value = GroupNorm(num_groups=num_groups, eps=eps)(x, gamma, beta)
        return made

    def rms_norm(
        self, x: Value, gamma: Value, beta: Value, *, axis: int = -1, eps: float = 1e-6
    ) -> Value:
        """Root-mean-square normalisation along one axis."""
        from rlx.ops.normalization import RmsNorm

        axis = operators.normalise_axis(axis, value_of("rms_norm", x).rank, "rms_norm")
        return RmsNorm(axis=axis, eps=eps)(x, gamma, beta)

    def fused_residual_ln(
        self,
        x: Value,
        residual: Value,
        gamma: Value,
        beta: Value,
        *,
        bias: Value | None = None,
        eps: float = 1e-5,
    ) -> Value:
        """Layer normalisation of x + residual + bias as one op."""
        from rlx.ops.fused import FusedResidualLn

        extra = () if bias is None else (bias,)
        made: Value = FusedResidualLn(eps=eps)(x, residual, gamma, beta, *extra)
        return made

    def fused_residual_rms_norm(
        self,
        x: Value,
        residual: Value,
        gamma: Value,
        beta: Value,
        *,
        bias: Value | None = None,
        eps: float = 1e-6,
    ) -> Value:
        """Root-mean-square normalisation of x + residual + bias as one op."""
        from rlx.ops.fused import FusedResidualRmsNorm

        extra = () if bias is None else (bias,)
        made: Value = FusedResidualRmsNorm(eps=eps)(x, residual, gamma, beta, *extra)
        return made

    # Attention and positions.
    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        mask: Value | None,
        num_heads: int,
        head_dim: int,
        **attributes: Any,
    ) -> Value:
        """Attention with a padding mask [B, S_k], or without any mask.

        Args:
            q: queries, in any layout of `rlx.ops.Attention`.
            k: keys.
            v: values.
            mask: numbers < 0.5 (or false) hide a key; None hides nothing.
            num_heads: heads of q.
            head_dim: elements of a head.
            attributes: the op's others: score_scale, softcap, layout, masked_rows, …
        """
        from rlx.ops.attention import MaskKind

        kind = MaskKind.NONE if mask is None else MaskKind.CUSTOM
        given = () if mask is None else (mask,)
        return _attention((q, k, v, *given), num_heads, head_dim, kind, attributes)

    attention_ = attention

    def attention_kind(
        self,
        q: Value,
        k: Value,
        v: Value,
        num_heads: int,
        head_dim: int,
        kind: MaskKind | str,
        **attributes: Any,
    ) -> Value:
        """Attention whose mask follows from positions.

        Args:
            q: queries, in any layout of `rlx.ops.Attention`.
            k: keys.
            v: values.
            num_heads: heads of q.
            head_dim: elements of a head.
            kind: ``none``, ``causal``, or ``sliding:N`` for a window of N keys before the query.
            attributes: the op's others: score_scale, softcap, layout, masked_rows, …

        Raises:
            RegistryError: the kind is unknown.
        """
        from rlx.ops.attention import MaskKind

        if isinstance(kind, str):
            name, _, window = kind.partition(":")
            plain = kind in ("none", "causal")
            if not plain and not (name == "sliding" and window.isascii() and window.isdigit()):
                raise RegistryError(
                    f"attention_kind: required 'none', 'causal' or 'sliding:N'; got {kind!r}."
                )
            if not plain:
                attributes = {**attributes, "window": int(window)}
            kind = MaskKind(kind) if plain else MaskKind.SLIDING_WINDOW
        return _attention((q, k, v), num_heads, head_dim, kind, attributes)

    def attention_bias(
        self,
        q: Value,
        k: Value,
        v: Value,
        bias: Value,
        num_heads: int,
        head_dim: int,
        **attributes: Any,
    ) -> Value:
        """Attention with a bias [B, H, S_q, S_k] added to the scaled scores."""
        from rlx.ops.attention import MaskKind

        return _attention((q, k, v, bias), num_heads, head_dim, MaskKind.BIAS, attributes)

    def rope(
        self, x: Value, cos: Value, sin: Value, head_dim: int, *, style: RopeStyle | str = "neox"
    ) -> Value:
        """Turn every pair of each head by its position."""
        return self.rope_n(x, cos, sin, head_dim, head_dim, style=style)

    def rope_n(
        self,
        x: Value,
        cos: Value,
        sin: Value,
        head_dim: int,
        n_rot: int,
        *,
        style: RopeStyle | str = "neox",
        layout: str = "bshd",
    ) -> Value:
        """Turn the pairs of the first n_rot elements of each head by its position.

        Raises:
            ShapeError: n_rot is odd or larger than head_dim.
            RegistryError: the style is unknown.
        """
        from rlx.ops.position import Rope, RopeStyle

        known = [member.value for member in RopeStyle]
        if not isinstance(style, RopeStyle) and style not in known:
            raise RegistryError(f"rope: style is required to be one of {known}; got {style!r}.")
        op = Rope(head_dim=head_dim, n_rot=n_rot, style=RopeStyle(style), layout=layout)
        made: Value = op(x, cos, sin)
        return made

    def axial_rope2d(
        self,
        x: Value,
        *,
        end_x: int,
        end_y: int,
        head_dim: int,
        num_heads: int,
        theta: float = 10000.0,
        repeat_factor: int = 1,
    ) -> Value:
        """Turn half of each head by the column and half by the row of a token's cell."""
        from rlx.ops.position import AxialRope2d

        made: Value = AxialRope2d(
            end_x=end_x,
            end_y=end_y,
            head_dim=head_dim,
            num_heads=num_heads,
            theta=theta,
            repeat_factor=repeat_factor,
        )(x)
        return made

    # Layers.
    def linear_bias(self, x: Value, weight: Value, bias: Value) -> Value:
        """x·weight + bias."""
        return self.matmul(x, weight) + bias

    def linear_bias_act(
        self, x: Value, weight: Value, bias: Value, activation: Activation | str
    ) -> Value:
        """act(x·weight + bias)."""
        from rlx.ops.activation_kinds import activate

        return activate(as_activation(activation), self.matmul(x, weight) + bias)

    def linear_fused(
        self, x: Value, weight: Value, bias: Value, activation: Activation | str | None = None
    ) -> Value:
        """act(x·weight + bias) as one op."""
        from rlx.ops.fused import FusedMatmulBiasAct

        kind = None if activation is None else as_activation(activation)
        made: Value = FusedMatmulBiasAct(activation=kind)(x, weight, bias)
        return made

    fused_matmul_bias_act = linear_fused

    def shared_matmul_pair(self, x: Value, weight0: Value, weight1: Value) -> tuple[Value, Value]:
        """x·weight0 and x·weight1 as one product with both weights joined along N.

        Weights that are no constants are joined whenever the graph runs.
        """
        from rlx.ops.blocks.linear import joined_products

        first, second = joined_products(x, weight0, weight1)
        return first, second

    def swiglu_ffn(self, x: Value, up: Value, gate: Value, down: Value) -> Value:
        """(silu(x·gate) * (x·up))·down."""
        gated = operators.unary("Silu", self.matmul(x, gate))
        return self.matmul(gated * self.matmul(x, up), down)

    def fused_swiglu_ffn(self, x: Value, up: Value, gate: Value, down: Value) -> Value:
        """(silu(x·gate) * (x·up))·down with the up and gate weights joined along F.

        Weights that are no constants are joined whenever the graph runs.
        """
        from rlx.ops.blocks.layers import fused_swiglu_ffn

        return fused_swiglu_ffn(x, up, gate, down)


def _attention(
    inputs: Sequence[Value],
    num_heads: int,
    head_dim: int,
    kind: MaskKind,
    attributes: dict[str, Any],
) -> Value:
    from rlx.ops.attention import Attention

    op = Attention(num_heads=num_heads, head_dim=head_dim, mask_kind=kind, **attributes)
    made: Value = op(*inputs)
    return made


def _pair(where: str, what: str, part: int | Sequence[int]) -> tuple[int, ...]:
    return (part, part) if isinstance(part, int | np.integer) else listed(where, what, part)
