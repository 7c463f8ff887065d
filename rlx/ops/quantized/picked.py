"""Products with one of several packed weights, chosen by a number at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import operators
from rlx.ir.op import Op, define_op
from rlx.ops.arithmetic import Clamp
from rlx.ops.indexing import DynamicSlice
from rlx.ops.quantized.blocks import DequantMatmul
from rlx.ops.quantized.checks import scheme_of
from rlx.ops.quantized.rounded import DequantMatmulInt8
from rlx.ops.shape import Concatenate

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.types import TensorType


@define_op("dequant_matmul_pick")
class DequantMatmulPick(Op):
    """Product with one of several packed weights: what a loop over equal layers computes.

    y = dequant_matmul(x, weights[clamp(0, index, count − 1)]); dequant_matmul_int8 if rounded

    The weights stay where they are: a kernel reads the one that is meant, and nothing is stacked.

    Inputs:
        x: float[..., K]
        index: i32[]
        weights: u8[N, bytes]   rows of blocks; one or more of one type.

    Attributes:
        scheme: the display name of a GGUF scheme, such as ``gguf_q4k``.
        rounded: round x to signed bytes first, as `DequantMatmulInt8` does.

    Result:
        Dtype of x, [..., N].

    Constraints:
        C1: scheme names a GGUF scheme.
        C2: there is at least one weight, and all have one type.
        C3: index is an i32 scalar.
        C4: x, a weight and scheme are what the product of one weight takes.

    Numerics: those of the product of one weight.
    Source: XLA's loops, whose bodies would copy a slice of stacked weights before each product.
    """

    scheme: str
    rounded: bool = False

    def infer(self, x: TensorType, index: TensorType, *weights: TensorType) -> TensorType:
        scheme = scheme_of(self, "C1", self.scheme)
        self.require(
            "C1",
            scheme.is_gguf,
            lambda: f"scheme is required to be one of GGUF; got {scheme}. Choose one.",
        )
        self.require(
            "C2", bool(weights), "at least one weight is required; got none. Pass weights."
        )
        for position, weight in enumerate(weights):
            self.require(
                "C2",
                weight == weights[0],
                lambda weight=weight, position=position: (
                    f"one type is required, that of weights[0]: {weights[0]}; got "
                    f"weights[{position}]: {weight}. Put them into separate products."
                ),
            )
        self.require(
            "C3",
            index.dtype is DType.I32 and index.rank == 0,
            lambda: f"index is required to be i32[]; got {index}. Convert or reshape it.",
            ShapeError if index.dtype is DType.I32 else DTypeError,
        )
        try:
            return self._product().infer(x, weights[0])
        except (ShapeError, DTypeError) as error:
            self.require("C4", False, str(error), type(error))
            raise

    def decompose(self, x: Value, index: Value, *weights: Value) -> Value:
        rows = cast("int", weights[0].shape[0])
        stack = weights[0] if len(weights) == 1 else cast("Value", Concatenate(axis=0)(*weights))
        zero, last = (operators.constant(n, DType.I32) for n in (0, len(weights) - 1))
        start = cast("Value", Clamp()(zero, index, last)) * rows
        picked = cast("Value", DynamicSlice(sizes=weights[0].shape)(stack, start, zero))
        return cast("Value", self._product()(x, picked))

    def _product(self) -> DequantMatmul | DequantMatmulInt8:
        if self.rounded:
            return DequantMatmulInt8(scheme=self.scheme)
        return DequantMatmul(scheme=self.scheme)
