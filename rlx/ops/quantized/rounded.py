"""Products of packed weights with inputs that are rounded to signed bytes first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from rlx.dtypes import DType
from rlx.ir import operators
from rlx.ir.op import Op, define_op
from rlx.ops.dot import DotGeneral
from rlx.ops.quantized.blocks import DequantMatmul
from rlx.ops.quantized.checks import packed_matrix, require_float, scheme_of
from rlx.ops.quantized.lanes import GRAPH
from rlx.ops.shape import Pad
from rlx.quant.schemes import QuantScheme, SchemeKind

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.types import TensorType

BLOCKS = (32, 256)
"""Sizes of blocks that a scheme of GGUF may have."""

COLUMNS = (SchemeKind.INT8, SchemeKind.INT8_ASYM, SchemeKind.INT4)
"""Schemes of codes by columns."""

UNIT = 32
"""What their blocks are multiples of."""

MOST = 256
"""The most numbers of x that share a scale."""

_WITH_LEAST = (SchemeKind.GGUF_Q4_1, SchemeKind.GGUF_Q5_1)
"""Schemes of small blocks that hold, after their scale, the least number."""


@define_op("dequant_matmul_int8")
class DequantMatmulInt8(Op):
    """Product of rounded inputs with a packed weight, as llama.cpp computes it.

    y[..., n] = Σ_k r(x)[..., k] · w[n, k]

    In each block of the weight's size, r(x) = d · round(x · 127 / a) with a = max |x| and
    d = a / 127; for GGUF's blocks of 32, d is rounded to f16. Where blocks of 32 have a least
    number m, so that w = m + …, its part of the sum is m · f16(Σ r(x)), taken with the unrounded d.
    Where a weight's blocks b are larger than 256, those of x have gcd(b, 256) numbers.

    Without an f16 d, an input is off by half a step at most, a / 254, and so y by
    Σ_k |w[k, n]| · a / 254.

    Inputs:
        x: float[..., K]
        weight: u8[N, bytes]   rows of blocks; or codes, as the table in `rlx.quant.schemes` says.
        scale: f32[⌈K/b⌉, N]   for codes.
        zero: f32[⌈K/b⌉, N]    for codes; zeros where it is left out.

    Attributes:
        scheme: the display name of a GGUF scheme with blocks of 32 or 256, such as ``gguf_q4k``,
            or of int8, int8a or int4 with blocks that are multiples of 32, such as ``int8/64``.

    Result:
        Dtype of x, [..., N].

    Constraints:
        C1: scheme names a GGUF scheme with blocks of 32 or 256, or int8, int8a or int4 with blocks
            that are multiples of 32.
        C2: weight, scale and zero are static and belong together as the scheme says.
        C3: x is floating and has at least one axis.
        C4: x and the weight have one size K.

    Numerics: computes in f32; products of codes and their sums within a block are exact. A block
        with a number that is not finite gives NaN.
    Source: the arithmetic of ggml's CPU backend; for codes by columns ours.
    """

    scheme: str

    def infer(
        self,
        x: TensorType,
        weight: TensorType,
        scale: TensorType | None = None,
        zero: TensorType | None = None,
    ) -> TensorType:
        scheme = scheme_of(self, "C1", self.scheme)
        self.require(
            "C1",
            takes_rounded(scheme),
            lambda: (
                "scheme is required to be one of GGUF with blocks of 32 or 256, or int8, int8a or "
                f"int4 with blocks that are multiples of 32; got {scheme}. Choose one."
            ),
        )
        require_float(self, "C3", "x", x)
        self.require(
            "C3",
            x.rank > 0,
            lambda: f"x is required to have at least one axis; got {x}. Reshape it.",
        )
        known = x.shape[-1]
        size = known if scheme.kind is SchemeKind.INT4 and type(known) is int else 0
        rows, cols = packed_matrix(self, "C2", scheme, weight, scale, zero, size)
        inner, outer = (cols, rows) if scheme.is_rows else (rows, cols)
        self.require_same_dims(
            "C4",
            x.shape[-1:],
            (inner,),
            lambda: (
                f"the last axis of x is required to be K = {inner} of weight: {weight}; got {x}. "
                "Check which axis is which."
            ),
        )
        return x.with_shape((*x.shape[:-1], outer))

    def decompose(
        self, x: Value, weight: Value, scale: Value | None = None, zero: Value | None = None
    ) -> Value:
        scheme = QuantScheme.parse(self.scheme)
        tensors = [v for v in (weight, scale, zero) if v is not None]
        if scheme.kind in COLUMNS:
            product: Value = DequantMatmul(scheme=self.scheme)(_rounded(x, scheme.block), *tensors)
            return product.convert(x.dtype)
        return self._rows(x, weight, scheme)

    def _rows(self, x: Value, weight: Value, scheme: QuantScheme) -> Value:
        size = scheme.block_size
        inner = cast("int", x.shape[-1])
        shape = (*x.shape[:-1], inner // size, size)
        blocks = x.convert(DType.F32).reshape(shape)
        most = abs(blocks).max(-1, keepdims=True)
        scale = most / 127.0
        inverse = GRAPH.select(most.eq(0.0), 0.0, 127.0 / most)
        codes = GRAPH.round_even(blocks * inverse)
        stored = scale.convert(DType.F16).convert(DType.F32) if size == 32 else scale
        rounded: Value = (codes * stored).reshape(x.shape)
        product: Value = DequantMatmul(scheme=self.scheme)(rounded, weight)
        if scheme.kind in _WITH_LEAST:
            totals = codes.sum(-1, keepdims=True)
            sums = (totals * scale).convert(DType.F16).convert(DType.F32)
            missing = (sums - totals * stored).reshape(shape[:-1])
            bytes_ = weight.reshape((weight.shape[0], inner // size, scheme.block_bytes))
            least = GRAPH.read(bytes_.narrow(2, 2, 2), DType.F16)
            least = least.reshape((weight.shape[0], inner // size)).convert(DType.F32)
            dot = DotGeneral(lhs_contracting=(x.rank - 1,), rhs_contracting=(1,))
            product = product + cast("Value", dot(missing, least))
        return product.convert(x.dtype)


def takes_rounded(scheme: QuantScheme) -> bool:
    """Whether a scheme's products take rounded inputs."""
    if scheme.kind in COLUMNS:
        return scheme.block % UNIT == 0
    return scheme.is_gguf and scheme.block_size in BLOCKS


def _rounded(x: Value, block: int) -> Value:
    """r(x), f32, for a weight whose blocks have so many numbers; the last block may be short."""
    size = block if block <= MOST else math.gcd(block, MOST)
    inner = cast("int", x.shape[-1])
    count = -(-inner // size)
    lead = x.shape[:-1]
    wide = x.convert(DType.F32)
    filled = count * size - inner
    if filled:
        none = (0,) * x.rank
        zero = operators.constant(0.0, DType.F32)
        wide = cast("Value", Pad(low=none, high=(*none[1:], filled), interior=none)(wide, zero))
    blocks = wide.reshape((*lead, count, size))
    most = abs(blocks).max(-1, keepdims=True)
    inverse = GRAPH.select(most.eq(0.0), 0.0, 127.0 / most)
    codes = GRAPH.round_even(blocks * inverse)
    numbers = (codes * (most / 127.0)).reshape((*lead, count * size))
    return numbers.narrow(x.rank - 1, 0, inner) if filled else numbers
