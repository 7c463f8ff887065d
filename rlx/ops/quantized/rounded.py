"""Products of packed weights with inputs that are rounded to signed bytes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlx.dtypes import DType
from rlx.ir.op import Op, define_op
from rlx.ops.dot import DotGeneral
from rlx.ops.quantized.blocks import DequantMatmul
from rlx.ops.quantized.checks import packed_matrix, require_float, scheme_of
from rlx.ops.quantized.lanes import GRAPH
from rlx.quant.schemes import QuantScheme, SchemeKind

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.types import TensorType

BLOCKS = (32, 256)
"""Sizes of blocks that a scheme may have."""

_WITH_LEAST = (SchemeKind.GGUF_Q4_1, SchemeKind.GGUF_Q5_1)
"""Schemes of small blocks that hold, after their scale, the least number."""


@define_op("dequant_matmul_int8")
class DequantMatmulInt8(Op):
    """Product of rounded inputs with a packed weight, as llama.cpp computes it.

    y[..., n] = Σ_k r(x)[..., k] · w[n, k]

    In each block of the weight's size, r(x) = d · round(x · 127 / a) with a = max |x| and
    d = a / 127; for blocks of 32, d is rounded to f16. Where blocks of 32 have a least number m,
    so that w = m + …, its part of the sum is m · f16(Σ r(x)), taken with the unrounded d.

    Inputs:
        x: float[..., K]
        weight: u8[N, bytes]   rows of blocks.

    Attributes:
        scheme: the display name of a GGUF scheme with blocks of 32 or 256, such as ``gguf_q4k``.

    Result:
        Dtype of x, [..., N].

    Constraints:
        C1: scheme names a GGUF scheme with blocks of 32 or 256.
        C2: weight is static u8[N, whole blocks].
        C3: x is floating and has at least one axis.
        C4: x and the weight have one size K.

    Numerics: computes in f32; products of codes and their sums within a block are exact. A block
        with a number that is not finite gives NaN.
    Source: the arithmetic of ggml's CPU backend.
    """

    scheme: str

    def infer(self, x: TensorType, weight: TensorType) -> TensorType:
        scheme = scheme_of(self, "C1", self.scheme)
        self.require(
            "C1",
            scheme.is_gguf and scheme.block_size in BLOCKS,
            lambda: (
                "scheme is required to be one of GGUF with blocks of 32 or 256; "
                f"got {scheme}. Choose one."
            ),
        )
        require_float(self, "C3", "x", x)
        self.require(
            "C3",
            x.rank > 0,
            lambda: f"x is required to have at least one axis; got {x}. Reshape it.",
        )
        rows, cols = packed_matrix(self, "C2", scheme, weight, None, None)
        self.require_same_dims(
            "C4",
            x.shape[-1:],
            (cols,),
            lambda: (
                f"the last axis of x is required to be K = {cols} of weight: {weight}; got {x}. "
                "Check which axis is which."
            ),
        )
        return x.with_shape((*x.shape[:-1], rows))

    def decompose(self, x: Value, weight: Value) -> Value:
        scheme = QuantScheme.parse(self.scheme)
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
