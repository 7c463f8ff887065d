"""Attention: scores, mask, softmax and the weighted sum as one composite op."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, final

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@final
class MaskKind(enum.Enum):
    """Which keys a query may see."""

    NONE = "none"
    CAUSAL = "causal"
    SLIDING_WINDOW = "sliding_window"
    CUSTOM = "custom"
    BIAS = "bias"
    LENGTHS = "lengths"


MASKED = (MaskKind.CUSTOM, MaskKind.BIAS, MaskKind.LENGTHS)
"""The kinds that take a mask."""

LAYOUTS = ("bshd", "bhsd")
MASKED_ROWS = ("zeros", "nan", "uniform")
DTYPES = (DType.F32, DType.BF16, DType.F16, DType.F64)
LENGTHS = (
    DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32,
)  # fmt: skip
FILL = -0.7 * 3.4028235e38
"""What a masked score becomes where a row without keys is uniform; finite in f32."""


@define_op("attention")
class Attention(Op):
    """Scaled dot-product attention with masks, grouped heads and a soft cap.

    s = q·kᵀ * score_scale;  s = softcap * tanh(s / softcap);  y = softmax(mask(s)) · v

    Inputs:
        q: float[B, S_q, H, D]      layout bshd; [B, H, S_q, D] for bhsd; heads packed as
            [B, S_q, H·D], or [S_q, H·D] where B = 1.
        k: float[B, S_k, H_k, D]    H_k divides H: query head h reads key head h // (H / H_k).
        v: float[B, S_k, H_k, D_v]
        mask: custom: bool or number [B, S_k], or broadcastable to [B, H, S_q, S_k]; a key whose
            number is < 0.5 (or false) is hidden. bias: float, broadcastable to
            [B, H, S_q, S_k], added to the scores. lengths: int[B]; keys j ≥ lengths[b] are
            hidden.

    Attributes:
        num_heads: H.
        head_dim: D.
        mask_kind: query i stands at position p = S_k − S_q + i. causal: it sees keys j ≤ p.
            sliding_window: p − window ≤ j ≤ p. custom, bias, lengths: see `mask`.
        window: keys seen before the query's own position; for sliding_window only.
        score_scale: factor of the scores; None means head_dim^-½.
        softcap: bound c of c·tanh(s / c), before the mask; None means no bound.
        layout: ``bshd`` or ``bhsd``, the order of the axes of q, k, v and the result.
        masked_rows: a query that sees no key gives ``zeros``, ``nan``, or the mean of all v
            (``uniform``); where it sees keys and their scores are all −Inf, the mean of the hidden.
        v_head_dim: D_v, for a check; None takes it from v.
        causal: with a bias: keys j > p are hidden too; their scores lie below all others, but
            for a bias of −Inf where masked_rows is ``uniform``.

    Result:
        float[B, S_q, H, D_v] in the layout of q.

    Constraints:
        C1: layout and masked_rows are known; num_heads, head_dim ≥ 1; score_scale is finite,
            softcap is finite and > 0; window ≥ 0 is given for sliding_window and only there;
            causal is for mask_kind bias only.
        C2: q, k and v have rank 4, or rank 2 or 3 (packed heads) with layout bshd.
        C3: q, k and v have one dtype of f32, bf16, f16, f64.
        C4: q has num_heads heads of head_dim; k has heads of head_dim, as many as v, and their
            number divides num_heads; the heads of v have v_head_dim elements where it is given.
        C5: q, k and v have one B; k and v have one S_k.
        C6: mask is given for custom, bias and lengths and only there; it is [B] for lengths, and
            broadcasts to [B, H, S_q, S_k] for the others.
        C7: mask is bool or a real number for custom, has the dtype of q or f32 for bias, and is an
            integer of at least 8 bits, u64 excepted, for lengths.

    Numerics: scores and softmax in f32 (f64 for f64); the weights are rounded to the dtype of v
    before the second product, which accumulates in f32 as the first does.
    Source: Vaswani et al. 2017, arXiv:1706.03762; `jax.nn.dot_product_attention`;
    RLX `Op::Attention`.
    """

    num_heads: int
    head_dim: int
    mask_kind: MaskKind = MaskKind.NONE
    window: int | None = None
    score_scale: float | None = None
    softcap: float | None = None
    layout: str = "bshd"
    masked_rows: str = "zeros"
    v_head_dim: int | None = None
    causal: bool = False

    def infer(
        self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None
    ) -> TensorType:
        self._check_attributes()
        listing = f"q: {q}, k: {k}, v: {v}"
        rank = q.rank
        self.require(
            "C2",
            rank == k.rank == v.rank and (rank == 4 or (rank in (2, 3) and self.layout == "bshd")),
            f"q, k and v are required to have rank 4, or 2 or 3 with layout 'bshd'; got {listing} "
            f"with layout {self.layout!r}. Reshape them.",
        )
        self.require(
            "C3",
            q.dtype is k.dtype is v.dtype and q.dtype in DTYPES,
            f"q, k and v are required to have one dtype of {', '.join(map(str, DTYPES))}; "
            f"got {listing}. Convert them.",
            DTypeError,
        )
        batch, length, keys, kv_heads, v_dim = self.sizes(q, k, v)
        del kv_heads
        if mask is None or self.mask_kind not in MASKED:
            self.require(
                "C6",
                mask is None and self.mask_kind not in MASKED,
                f"mask is required for mask_kind custom, bias and lengths, and only there; got "
                f"{'none' if mask is None else mask} with {self.mask_kind.value}. "
                "Pass it, leave it out, or choose another mask_kind.",
            )
        else:
            self._check_mask(mask, q.dtype, (batch, self.num_heads, length, keys))
        if rank < 4:
            return q.with_shape((*q.shape[: rank - 1], self.num_heads * v_dim))
        order = {"b": batch, "s": length, "h": self.num_heads, "d": v_dim}
        return q.with_shape(order[axis] for axis in self.layout)

    def decompose(self, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
        types = (q.type, k.type, v.type)
        batch, length, keys, kv_heads, v_dim = self.sizes(*types)
        groups = self.num_heads // kv_heads
        first = self.layout == "bshd"
        # Heads that share no key take no axis G of groups: loops of fewer axes compile faster.
        shared = () if groups == 1 else (groups,)
        if first:
            q = q.reshape(batch, length, kv_heads, *shared, self.head_dim)
            k, v = (
                k.reshape(batch, keys, kv_heads, self.head_dim),
                v.reshape(batch, keys, kv_heads, v_dim),
            )
            heads, contract = 2, 1
        else:
            q = q.reshape(batch, kv_heads, *shared, length, self.head_dim)
            heads, contract = 1, 2
        last = q.rank - 1
        # Scores are [B, H_k, S_q, G, S_k] for bshd and [B, H_k, G, S_q, S_k] for bhsd.
        scores = _dot(q, k, last, 3, heads, heads, accumulate=q.dtype.compute)
        scale = self.head_dim**-0.5 if self.score_scale is None else self.score_scale
        scores = scores * scale
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        scores = self.masked(scores, mask, groups, length, keys)
        weights = self.weights(scores).convert(v.dtype)
        out = _dot(weights, v, last, contract, 1, heads, accumulate=v.dtype.compute)
        out = out.convert(v.dtype)
        if first:
            out = out.transpose(0, 2, 1, *range(3, out.rank))
        return out.reshape(*self.infer(*types, None if mask is None else mask.type).shape)

    def masked(
        self, scores: Value, mask: Value | None, groups: int, length: Dim, keys: Dim
    ) -> Value:
        """Scores with a bias added, or with −Inf (or ``FILL``) where a key is hidden."""
        from rlx.ops.shape import BroadcastInDim

        if mask is not None and self.mask_kind is MaskKind.LENGTHS:
            number = DType.I64 if mask.dtype in (DType.I64, DType.U32) else DType.I32
            ends = BroadcastInDim(shape=scores.shape, broadcast_dimensions=(0,))(
                mask.convert(number)
            )
            return self._hide(scores, _positions(scores.shape, -1).convert(number) < ends)
        if mask is not None:
            aligned = self.aligned(mask, scores.shape, groups)
            if self.mask_kind is MaskKind.BIAS:
                biased = scores + aligned.convert(scores.dtype)
                if not self.causal:
                    return biased
                return self._hide(biased, self._before(scores.shape, keys - length))
            if aligned.dtype is not DType.BOOL:
                aligned = ~(aligned.convert(DType.F32) < 0.5)
            return self._hide(scores, aligned)
        if self.mask_kind is MaskKind.NONE:
            return scores
        return self._hide(scores, self._before(scores.shape, keys - length))

    def _before(self, scores: Shape, offset: Dim) -> Value:
        """Which keys stand at or before a query, and in its window."""
        key = _positions(scores, -1)
        position = _positions(scores, self._length_axis(scores)) + _number(offset, scores)
        seen = key <= position
        if self.window is not None:
            seen = seen & (key >= position - self.window)
        return seen

    def _length_axis(self, scores: Shape) -> int:
        return 2 if self.layout == "bshd" else len(scores) - 2

    def _hide(self, scores: Value, seen: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.compare import Select

        fill = FILL if self.masked_rows == "uniform" else -math.inf
        hidden = broadcast_to(constant(fill, scores.dtype), scores.shape)
        return Select()(broadcast_to(seen, scores.shape), scores, hidden)

    def aligned(self, mask: Value, scores: Shape, groups: int) -> Value:
        """The mask with the axes of the scores; those of size 1 stay to be broadcast."""
        if mask.rank == 2 and self.mask_kind is MaskKind.CUSTOM:
            ones = (1,) * (len(scores) - 2)
            return mask.reshape(mask.shape[0], *ones, mask.shape[1]).broadcast_to(scores)
        padded = mask.reshape(*(1,) * (4 - mask.rank), *mask.shape)
        if len(scores) == 4:
            return padded.broadcast_to(scores)
        batch, heads, length, keys = padded.shape
        grouped = (1, 1) if heads == 1 else (self.num_heads // groups, groups)
        split = padded.reshape(batch, *grouped, length, keys)
        if self.layout == "bshd":
            split = split.transpose(0, 1, 3, 2, 4)
        return split.broadcast_to(scores)

    def weights(self, scores: Value) -> Value:
        """The softmax of masked scores over the keys."""
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.arithmetic import Max
        from rlx.ops.compare import Select
        from rlx.ops.normalization import Softmax

        axis = scores.rank - 1
        if self.masked_rows == "nan" or self._every_query_sees_a_key(scores.shape):
            return Softmax(axis=axis)(scores)
        if self.masked_rows == "uniform" and (self.mask_kind is not MaskKind.BIAS or self.causal):
            # Hidden keys are even among themselves, below every score but −Inf.
            return Softmax(axis=axis)(scores)
        if self.masked_rows == "uniform":
            floor = broadcast_to(constant(FILL, scores.dtype), scores.shape)
            return Softmax(axis=axis)(Max()(scores, floor))
        largest = scores.max(axis, keepdims=True)
        zeros = broadcast_to(constant(0.0, scores.dtype), largest.shape)
        # A row of −Inf: subtract 0, so that its weights are exp(−Inf) = 0 and not NaN.
        largest = Select()(largest.eq(-math.inf), zeros, largest)
        weights = (scores - largest).exp()
        total = weights.sum(axis, keepdims=True)
        ones = broadcast_to(constant(1.0, scores.dtype), total.shape)
        return weights / Select()(total.eq(0.0), ones, total)

    def _every_query_sees_a_key(self, scores: Shape) -> bool:
        """Whether the kind of mask alone leaves every query a key, its own at least."""
        if self.mask_kind is MaskKind.NONE:
            return True
        if self.mask_kind not in (MaskKind.CAUSAL, MaskKind.SLIDING_WINDOW):
            return False
        length, keys = scores[self._length_axis(scores)], scores[-1]
        least = dims.bounds(keys - length)[0]
        return least is not None and least >= 0

    def _check_attributes(self) -> None:
        windowed = self.mask_kind is MaskKind.SLIDING_WINDOW
        scale, cap, window = self.score_scale, self.softcap, self.window
        rules = (
            (self.layout in LAYOUTS, f"layout one of {LAYOUTS}, not {self.layout!r}"),
            (
                self.masked_rows in MASKED_ROWS,
                f"masked_rows one of {MASKED_ROWS}, not {self.masked_rows!r}",
            ),
            (self.num_heads >= 1, f"num_heads ≥ 1, not {self.num_heads}"),
            (self.head_dim >= 1, f"head_dim ≥ 1, not {self.head_dim}"),
            (scale is None or math.isfinite(scale), f"score_scale finite, not {scale}"),
            (cap is None or (math.isfinite(cap) and cap > 0), f"softcap finite and > 0, not {cap}"),
            (
                window is not None and window >= 0 if windowed else window is None,
                f"window ≥ 0 for sliding_window and None otherwise, not {window} with "
                f"{self.mask_kind.value}",
            ),
            (
                not self.causal or self.mask_kind is MaskKind.BIAS,
                f"causal for mask_kind bias only, not {self.mask_kind.value}",
            ),
        )
        for holds, text in rules:
            self.require("C1", holds, f"required {text}. Change the attribute.")

    def sizes(self, q: TensorType, k: TensorType, v: TensorType) -> tuple[Dim, Dim, Dim, int, Dim]:
        """B, S_q, S_k, H_k and D_v, after checking C4 and C5."""
        listing = f"q: {q}, k: {k}, v: {v}"
        if q.rank == 2:
            q, k, v = (t.with_shape((1, *t.shape)) for t in (q, k, v))
        if q.rank == 3:
            width, packed = (q.shape[2],), (self.num_heads * self.head_dim,)
            key_width, value_width = k.shape[2], v.shape[2]
            static = isinstance(key_width, int) and key_width % self.head_dim == 0
            kv_heads: Dim = key_width // self.head_dim if static else 0
            divides = (
                isinstance(kv_heads, int)
                and kv_heads > 0
                and self.num_heads % kv_heads == 0
                and (not isinstance(value_width, int) or value_width % kv_heads == 0)
            )
            v_dim = value_width // kv_heads if divides else 0
            length, keys, key_heads = q.shape[1], k.shape[1], v.shape[1]
            pairs = [(width, packed)]
        else:
            s, h = (1, 2) if self.layout == "bshd" else (2, 1)
            kv_heads, v_dim = k.shape[h], v.shape[3]
            divides = (
                isinstance(kv_heads, int) and kv_heads > 0 and (self.num_heads % kv_heads == 0)
            )
            pairs = [
                ((q.shape[h], q.shape[3]), (self.num_heads, self.head_dim)),
                ((k.shape[3],), (self.head_dim,)),
                ((v.shape[h],), (kv_heads,)),
            ]
            length, keys, key_heads = q.shape[s], k.shape[s], v.shape[s]
        text = (
            f"required {self.num_heads} heads of {self.head_dim} in q, heads of {self.head_dim} "
            f"in k, and as many in v, their number dividing {self.num_heads}; got {listing} with "
            f"layout {self.layout!r}. Check num_heads, head_dim and layout."
        )
        for found, wanted in pairs:
            self.require_same_dims("C4", found, wanted, text)
        self.require("C4", divides, text)
        if self.v_head_dim is not None:
            text = f"heads of v_head_dim = {self.v_head_dim} are required in v; got {listing}."
            self.require_same_dims("C4", (v_dim,), (self.v_head_dim,), text)
        text = f"q, k and v are required to have one B, k and v one S_k; got {listing}. Pad them."
        self.require_same_dims("C5", (k.shape[0], v.shape[0]), (q.shape[0],) * 2, text)
        self.require_same_dims("C5", (key_heads,), (keys,), text)
        return q.shape[0], length, keys, int(kv_heads), v_dim

    def _check_mask(self, mask: TensorType, dtype: DType, full: Shape) -> None:
        custom = self.mask_kind is MaskKind.CUSTOM
        lengths = self.mask_kind is MaskKind.LENGTHS
        if custom:
            good = mask.dtype is not DType.TOKEN and not mask.dtype.is_complex
            wanted = "bool or a real number"
        elif lengths:
            good, wanted = mask.dtype in LENGTHS, "an integer of 8 to 64 bits (no u64)"
        else:
            good, wanted = (
                mask.dtype in (dtype, DType.F32),
                " or ".join(dict.fromkeys((dtype.label, "f32"))),
            )
        text = (
            f"mask is required to be {wanted} for {self.mask_kind.value}; got {mask}. Convert it."
        )
        self.require("C7", good, text, DTypeError)
        batch, _, _, keys = full
        if lengths:
            text = f"mask is required to be [{batch}] for lengths, one for each batch; got {mask}."
            self.require_same_dims("C6", mask.shape, (batch,), text)
            return
        target = (batch, keys) if custom and mask.rank == 2 else full
        text = (
            f"mask is required to broadcast to {TensorType(mask.dtype, full)}"
            + (f" or to be {TensorType(mask.dtype, (batch, keys))}" if custom else "")
            + f"; got {mask}. Reshape it."
        )
        self.require("C6", mask.rank <= len(target), text)
        aligned = target[len(target) - mask.rank :]
        stretches = not (custom and mask.rank == 2)
        wanted_shape = tuple(
            1 if stretches and d == 1 else w for d, w in zip(mask.shape, aligned, strict=True)
        )
        self.require_same_dims("C6", mask.shape, wanted_shape, text)


def _dot(
    lhs: Value,
    rhs: Value,
    lhs_axis: int,
    rhs_axis: int,
    lhs_heads: int,
    rhs_heads: int,
    *,
    accumulate: DType,
) -> Value:
    from rlx.ops.dot import DotGeneral

    return DotGeneral(
        lhs_contracting=(lhs_axis,),
        rhs_contracting=(rhs_axis,),
        lhs_batch=(0, lhs_heads),
        rhs_batch=(0, rhs_heads),
        preferred_element_type=accumulate,
    )(lhs, rhs)


def _positions(shape: Shape, axis: int) -> Value:
    from rlx.ops.shape import Iota

    return Iota(dtype=DType.I32, shape=shape, axis=axis % len(shape))()


def _number(dim: Dim, shape: Shape) -> Value:
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.shape import DimValue

    value = constant(dim, DType.I32) if isinstance(dim, int) else DimValue(dim=dim)()
    return broadcast_to(value, shape)
