"""Gradients of attention; the weights are computed again from q and k."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, final

from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.ops.attention import FILL, Attention, MaskKind
from rlx.ops.backward.gradients import check_gradient, filled, sum_to, wide
from rlx.ops.compare import Select
from rlx.ops.dot import DotGeneral
from rlx.ops.shape import Concatenate
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value

Parts: TypeAlias = "dict[AttentionBackwardWrt, Callable[[], Value]]"


@final
class AttentionBackwardWrt(enum.Enum):
    """The input of attention by which the gradient is."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    MASK = "mask"


@define_op("attention_backward")
class AttentionBackward(Op):
    """Gradient of attention by one of its inputs.

    P = the weights, dP = dy · vᵀ, dS = P ⊙ (dP − Σ_keys P ⊙ dP), 0 for hidden keys;
    with a cap t = tanh(s / softcap): dS ⊙ (1 − t²) in place of dS for query and key;
    query: dS · k · score_scale;  key: dSᵀ · q · score_scale;  value: Pᵀ · dy;
    mask: dS, summed over the axes along which a bias is repeated

    Inputs:
        q: float[B, S_q, H, D]      as in attention, as are k, v and mask.
        k: float[B, S_k, H_k, D]
        v: float[B, S_k, H_k, D_v]
        dy: float[B, S_q, H, D_v]   gradient by the result, in its layout.
        mask: for mask kinds that take one.

    Attributes:
        num_heads: of attention.
        head_dim: of attention.
        wrt: query, key, value, or mask (of kind bias).
        mask_kind: of attention.
        window: of attention.
        score_scale: of attention.
        softcap: of attention.
        layout: of attention.
        masked_rows: of attention.
        v_head_dim: of attention.
        causal: of attention.

    Result:
        Type of the input that wrt names; query heads that share a key head are summed.

    Constraints:
        C1: attention with these attributes takes q, k, v and mask.
        C2: dy has the type of its result.
        C3: wrt is mask only for mask_kind bias.

    Numerics: scores, weights and their gradients in f32 (f64 for f64); weights are rounded to
    the dtype of v for the product with dy, as attention rounds them. Result rounded once.
    Source: RLX `Op::AttentionBackward`, which leaves out score_scale and softcap.
    """

    num_heads: int
    head_dim: int
    wrt: AttentionBackwardWrt
    mask_kind: MaskKind = MaskKind.NONE
    window: int | None = None
    score_scale: float | None = None
    softcap: float | None = None
    layout: str = "bshd"
    masked_rows: str = "zeros"
    v_head_dim: int | None = None
    causal: bool = False

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        dy: TensorType,
        mask: TensorType | None = None,
    ) -> TensorType:
        primals = (q, k, v) if mask is None else (q, k, v, mask)
        check_gradient(self, _forward(self), primals, dy=dy)
        by_mask = self.wrt is AttentionBackwardWrt.MASK
        self.require(
            "C3",
            not by_mask or self.mask_kind is MaskKind.BIAS,
            f"wrt mask requires mask_kind bias; got {self.mask_kind.value}. Choose another wrt.",
        )
        if by_mask and mask is not None:
            return mask
        chosen = (AttentionBackwardWrt.QUERY, AttentionBackwardWrt.KEY, AttentionBackwardWrt.VALUE)
        return primals[chosen.index(self.wrt)]

    def decompose(
        self, q: Value, k: Value, v: Value, dy: Value, mask: Value | None = None
    ) -> Value:
        return _gradients(_forward(self), q, k, v, dy, mask)[self.wrt]()


@define_op("attention_backward_all")
class AttentionBackwardAll(Op):
    """Gradients of attention by q, k and v, one after the other along the first axis.

    y = concat(dq, dk, dv), each as attention_backward gives it

    Inputs:
        q: float[B, S, H, D]    as in attention, as are k, v and mask.
        k: float[B, S, H, D]
        v: float[B, S, H, D]
        dy: float[B, S, H, D]   gradient by the result, in its layout.
        mask: for mask kinds that take one.

    Attributes:
        num_heads: of attention.
        head_dim: of attention.
        mask_kind: of attention.
        window: of attention.
        score_scale: of attention.
        softcap: of attention.
        layout: of attention.
        masked_rows: of attention.
        causal: of attention.

    Result:
        float[3·B, S, H, D]; [3·S, H·D] for rank 2.

    Constraints:
        C1: attention with these attributes takes q, k, v and mask.
        C2: dy has the type of its result.
        C3: q, k and v have one shape.

    Numerics: as attention_backward.
    Source: RLX `Op::AttentionBackwardAll`.
    """

    num_heads: int
    head_dim: int
    mask_kind: MaskKind = MaskKind.NONE
    window: int | None = None
    score_scale: float | None = None
    softcap: float | None = None
    layout: str = "bshd"
    masked_rows: str = "zeros"
    causal: bool = False

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        dy: TensorType,
        mask: TensorType | None = None,
    ) -> TensorType:
        primals = (q, k, v) if mask is None else (q, k, v, mask)
        check_gradient(self, _forward(self), primals, dy=dy)
        text = (
            f"q, k and v are required to have one shape, to stand one after the other; got q: {q}, "
            f"k: {k}, v: {v}. Use three attention_backward."
        )
        self.require_same_dims("C3", k.shape, q.shape, text)
        self.require_same_dims("C3", v.shape, q.shape, text)
        return q.with_shape((q.shape[0] * 3, *q.shape[1:]))

    def decompose(
        self, q: Value, k: Value, v: Value, dy: Value, mask: Value | None = None
    ) -> Value:
        parts = _gradients(_forward(self), q, k, v, dy, mask)
        wanted = (AttentionBackwardWrt.QUERY, AttentionBackwardWrt.KEY, AttentionBackwardWrt.VALUE)
        return Concatenate(axis=0)(*(parts[name]() for name in wanted))


def _forward(op: AttentionBackward | AttentionBackwardAll) -> Attention:
    attributes: dict[str, Any] = {n: v for n, v in op.attributes().items() if n != "wrt"}
    return Attention(**attributes)


def _gradients(op: Attention, q: Value, k: Value, v: Value, dy: Value, mask: Value | None) -> Parts:
    """How to make the gradient by each input."""
    batch, length, keys, kv_heads, v_dim = op.sizes(q.type, k.type, v.type)
    groups = op.num_heads // kv_heads
    first = op.layout == "bshd"

    def grouped(x: Value, width: Any) -> Value:
        """Queries [B, S_q, H_k, G, D], or [B, H_k, G, S_q, D]."""
        order = (length, kv_heads, groups) if first else (kv_heads, groups, length)
        return wide(x.reshape(batch, *order, width))

    def shared(x: Value, width: Any) -> Value:
        """Keys [B, S_k, H_k, D], or [B, H_k, S_k, D]."""
        return wide(x.reshape(batch, *((keys, kv_heads) if first else (kv_heads, keys)), width))

    query, upstream = grouped(q, op.head_dim), grouped(dy, v_dim)
    key, value = shared(k, op.head_dim), shared(v, v_dim)
    heads, places = (2, 1) if first else (1, 2)
    # Scores are [B, H_k, S_q, G, S_k] for bshd and [B, H_k, G, S_q, S_k] for bhsd.
    scale = op.head_dim**-0.5 if op.score_scale is None else op.score_scale
    scores = _dot(query, key, (4,), (3,), heads, heads) * scale
    slope: Value | None = None
    if op.softcap is not None:
        curve = (scores / op.softcap).tanh()
        # Not 1 − t², which loses all digits where the cap bites.
        scores, slope = curve * op.softcap, (1.0 - curve) * (1.0 + curve)
    masked = op.masked(scores, mask, groups, length, keys)
    weights = op.weights(masked)
    d_weights = _dot(upstream, value, (4,), (3,), heads, heads)
    total = (weights * d_weights).sum(4, keepdims=True)
    d_masked = weights * (d_weights - total)
    uniform = op.mask_kind is MaskKind.BIAS and op.masked_rows == "uniform"
    if op.mask_kind not in (MaskKind.NONE, MaskKind.BIAS) or uniform or op.causal:
        floor = FILL if op.masked_rows == "uniform" else -math.inf
        hidden = masked <= filled(floor, masked)  # not so for NaN, whose gradient is NaN
        d_masked = Select()(hidden, filled(0.0, d_masked), d_masked)
    d_scores = (d_masked if slope is None else d_masked * slope) * scale
    # Axes of queries and of the group, in scores and in the grouped queries.
    summed, given = ((2, 3), (1, 3)) if first else ((2, 3), (2, 3))

    def by_query() -> Value:
        made = _dot(d_scores, key, (4,), (places,), 1, heads)
        made = made.transpose(0, 2, 1, 3, 4) if first else made
        return made.reshape(*q.shape).convert(q.dtype)

    def by_keys(rows: Value, other: Value, like: Value) -> Value:
        made = _dot(rows, other, summed, given, 1, heads)
        made = made.transpose(0, 2, 1, 3) if first else made
        return made.reshape(*like.shape).convert(like.dtype)

    def by_mask() -> Value:
        if mask is None:
            raise DTypeError("attention_backward: a mask is required for its gradient.")
        made = d_masked.transpose(0, 1, 3, 2, 4) if first else d_masked
        made = made.reshape(batch, op.num_heads, length, keys)
        return sum_to(made, mask.shape).convert(mask.dtype)

    rounded = wide(weights.convert(v.dtype))
    return {
        AttentionBackwardWrt.QUERY: by_query,
        AttentionBackwardWrt.KEY: lambda: by_keys(d_scores, query, k),
        AttentionBackwardWrt.VALUE: lambda: by_keys(rounded, upstream, v),
        AttentionBackwardWrt.MASK: by_mask,
    }


def _dot(
    lhs: Value,
    rhs: Value,
    lhs_axes: tuple[int, ...],
    rhs_axes: tuple[int, ...],
    lhs_heads: int,
    rhs_heads: int,
) -> Value:
    return DotGeneral(
        lhs_contracting=lhs_axes,
        rhs_contracting=rhs_axes,
        lhs_batch=(0, lhs_heads),
        rhs_batch=(0, rhs_heads),
    )(lhs, rhs)
