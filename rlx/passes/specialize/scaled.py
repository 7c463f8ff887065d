"""Products of scaled 8-bit floats on GPUs as products of the codes.

A compiler that multiplies scaled f32 numbers leaves the matrix units for 8-bit floats idle. XLA's
library call takes one scale for each operand with the codes, as the factor that they are multiplied
by; scales of rows move behind the sum.

Numerics: those units add with fewer bits than f32, as they do under ``jax.jit``: 2e-3 of the result
for K = 8192 on an H200, where the rounding to 8 bits makes 4e-2. With ``strict=True`` or a
``matmul_precision`` of ``"high"`` or ``"highest"`` the scaled operands are multiplied as f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.convert import BitcastConvert
from rlx.ops.dot import DotGeneral
from rlx.ops.quantized import ScaledMatmul
from rlx.options.compile import CompileOptions
from rlx.quant.minifloat import ScaledFormat
from rlx.quant.scaled import ScaleKind, ScaleLayout

_TAKEN = (DType.F8E4M3FN, DType.F8E5M2)
"""What the matrix units of NVIDIA's GPUs multiply; not two of the second kind."""


def asks_for_f32_sums(options: CompileOptions) -> bool:
    """Whether products of 8-bit floats are to be as exact as those of f32."""
    return options.strict or options.matmul_precision in ("high", "highest")


def has_product_of_one_row(graph: Graph) -> bool:
    """Whether a product anywhere in a graph has a side of one row.

    XLA's own kernels for these are three times as fast as its library's, so that a program with one
    is left to tune both.
    """
    return any(
        _is_one_row(node.op, node.inputs)
        for inner in graph.all_graphs()
        for node in inner.nodes()
        if isinstance(node.op, DotGeneral)
    )


def _is_one_row(op: DotGeneral, sides: Sequence[Value]) -> bool:
    taken = ((*op.lhs_contracting, *op.lhs_batch), (*op.rhs_contracting, *op.rhs_batch))
    return any(
        all(size == 1 for axis, size in enumerate(value.shape) if axis not in axes)
        for value, axes in zip(sides, taken, strict=True)
    )


def rules(graph: Graph) -> tuple[Rule, ...]:
    """The rule for a graph: where XLA tunes kernels of its own, no scale goes into the product."""
    if has_product_of_one_row(graph):
        return (scaled_matmul_of_codes,)
    return (scaled_matmul_with_scales, scaled_matmul_of_codes)


@rule(ScaledMatmul)
def scaled_matmul_with_scales(node: Node) -> Value | None:
    """Product of 8-bit floats, each operand with one scale, in the form that XLA's call takes.

    Measured on an H200 at 8192³: 1,505 TFLOP/s; 1,200 with the scale behind the sum.
    """
    found = _taken(node)
    if found is None or found.kind is not ScaleKind.PER_TENSOR:
        return None
    scaled = [
        codes.convert(DType.F32) * scale.reshape(1, 1).broadcast_to(codes.shape)
        for codes, scale in zip(found.codes, found.scales, strict=True)
    ]
    return found.finished(_product(scaled))


@rule(ScaledMatmul)
def scaled_matmul_of_codes(node: Node) -> Value | None:
    """Product of scaled 8-bit floats as a product of codes.

    Measured on an H200 at 8192³: 1,264 TFLOP/s with a scale for each row, where the scaled operands
    go through f32 or bf16 at 830 at most.
    """
    found = _taken(node)
    if found is None:
        return None
    product = _product(found.codes)
    shape = product.shape
    left, right = found.scales
    if found.kind is ScaleKind.PER_TENSOR:
        product = product * (left * right).reshape(1, 1).broadcast_to(shape)
    else:
        product = product * left.broadcast_to(shape)
        product = product * right.reshape(1, shape[1]).broadcast_to(shape)
    return found.finished(product)


@final
@dataclass(frozen=True)
class _Taken:
    """Operands of a product that 8-bit units take."""

    kind: ScaleKind
    codes: tuple[Value, ...]
    scales: tuple[Value, Value]
    bias: Value | None

    def finished(self, product: Value) -> Value:
        """The product with the bias."""
        if self.bias is None:
            return product
        return product + self.bias.reshape(1, product.shape[1]).broadcast_to(product.shape)


def _taken(node: Node) -> _Taken | None:
    op = node.op
    if not isinstance(op, ScaledMatmul):
        return None
    layout = ScaleLayout.parse(op.layout)
    dtypes = [ScaledFormat.parse(name).dtype for name in (op.lhs_format, op.rhs_format)]
    if layout.is_blocked or dtypes == [DType.F8E5M2, DType.F8E5M2]:
        return None
    lhs, rhs, left, right, *bias = node.inputs
    codes = tuple(
        cast("Value", BitcastConvert(dtype=dtype)(value))
        for value, dtype in zip((lhs, rhs), dtypes, strict=True)
        if dtype is not None and dtype in _TAKEN
    )
    if len(codes) != 2:
        return None
    return _Taken(layout.kind, codes, (left, right), bias[0] if bias else None)


def _product(operands: Sequence[Value]) -> Value:
    return cast(
        "Value",
        DotGeneral(lhs_contracting=(1,), rhs_contracting=(1,), preferred_element_type=DType.F32)(
            *operands
        ),
    )
