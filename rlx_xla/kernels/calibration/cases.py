"""What each bound is measured with: a graph whose size is the bound's."""

from __future__ import annotations

from collections.abc import Callable

import rlx
from rlx.dtypes import DType
from rlx.ir.graph import Graph
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.dot import DotGeneral
from rlx.ops.pooling import ReduceWindow, SelectAndScatterAdd, WindowKind, WindowSelect
from rlx.ops.quantized import DequantMatmul, DequantMatmulInt8
from rlx.ops.reduction import Argmax, CumSum
from rlx.ops.sorting import TopK
from rlx.types import TensorType

Case = Callable[[int], Graph]
_ELEMENTS = 1 << 16
"""About as many elements as a case has, however they are shaped."""


def _inputs(builder: rlx.GraphBuilder, dtype: DType, *shapes: tuple[int, ...]) -> list[rlx.Value]:
    return [builder.input(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(shapes)]


def _argmax(dtype: DType) -> Case:
    def make(size: int) -> Graph:
        b = rlx.GraphBuilder("argmax")
        (x,) = _inputs(b, dtype, (max(_ELEMENTS // size, 1), size))
        return b.build(Argmax(axis=1)(x))

    return make


def _cumsum(size: int) -> Graph:
    b = rlx.GraphBuilder("cumsum")
    (x,) = _inputs(b, DType.F32, (max(_ELEMENTS // size, 1), size))
    return b.build(CumSum(axis=1)(x))


def _top_k(size: int) -> Graph:
    b = rlx.GraphBuilder("top_k")
    (x,) = _inputs(b, DType.F32, (max(_ELEMENTS // size, 1), size))
    return b.build(*TopK(k=min(8, size))(x))


def _packed(op: type[DequantMatmul] | type[DequantMatmulInt8]) -> Case:
    def make(rows: int) -> Graph:
        b = rlx.GraphBuilder("packed")
        (x,) = _inputs(b, DType.F32, (rows, 1024))
        w = b.input("weight", TensorType(DType.U8, (1024, 1024 // 256 * 144)))
        return b.build(op(scheme="gguf_q4k")(x, w))

    return make


def _rows(dtype: DType) -> Case:
    def make(rows: int) -> Graph:
        b = rlx.GraphBuilder("rows")
        x, w = _inputs(b, dtype, (rows, 1024), (1024, 1024))
        return b.build(DotGeneral(lhs_contracting=(1,), rhs_contracting=(1,))(x, w))

    return make


def _pooled(work: int) -> Graph:
    """Windows of nine, of so many elements in all."""
    b = rlx.GraphBuilder("pooled")
    channels = max(work // (9 * 64), 1)
    (x,) = _inputs(b, DType.F32, (1, 17, 17, channels))
    op = ReduceWindow(
        kind=WindowKind.MAX,
        window_dimensions=(1, 3, 3, 1),
        window_strides=(1, 2, 2, 1),
        padding=((0, 0),) * 4,
        base_dilation=(1,) * 4,
        window_dilation=(1,) * 4,
    )
    return b.build(op(x))


def _selected(work: int) -> Graph:
    b = rlx.GraphBuilder("selected")
    channels = max(work // (9 * 64), 1)
    x, source = _inputs(b, DType.F32, (1, 17, 17, channels), (1, 8, 8, channels))
    op = SelectAndScatterAdd(
        select=WindowSelect.GE,
        window_dimensions=(1, 3, 3, 1),
        window_strides=(1, 2, 2, 1),
        padding=((0, 0),) * 4,
    )
    return b.build(op(source, x))


def _convolution(last: bool) -> Case:
    def make(elements: int) -> Graph:
        b = rlx.GraphBuilder("convolution")
        channels = max(int((elements / 9) ** 0.5), 1)
        if last:
            order, kernel = (0, 3, 1, 2), (3, 2, 0, 1)
            shapes = ((1, 7, 7, channels), (3, 3, channels, channels))
        else:
            order = kernel = (0, 1, 2, 3)
            shapes = ((1, channels, 7, 7), (channels, channels, 3, 3))
        x, w = _inputs(b, DType.F32, *shapes)
        op = ConvGeneralDilated(
            window_strides=(1, 1),
            padding=((1, 1), (1, 1)),
            lhs_dilation=(1, 1),
            rhs_dilation=(1, 1),
            lhs_spec=order,
            rhs_spec=kernel,
            out_spec=order,
        )
        return b.build(op(x, w))

    return make


CASES: dict[str, Case] = {
    "argmax.cpu.ffi/f32": _argmax(DType.F32),
    "argmax.cpu.ffi/i32": _argmax(DType.I32),
    "cumsum.cpu.ffi/size": _cumsum,
    "top_k.cpu.ffi/f32": _top_k,
    "dequant_matmul.cpu.ffi/rows": _packed(DequantMatmul),
    "dequant_matmul_int8.cpu.ffi/rows": _packed(DequantMatmulInt8),
    "dot_general.cpu.ffi/bf16": _rows(DType.BF16),
    "dot_general.cpu.ffi/f16": _rows(DType.F16),
    "reduce_window.cpu.ffi/work": _pooled,
    "select_and_scatter_add.cpu.ffi/work": _selected,
    "conv_general_dilated.cpu.ffi/channels_last": _convolution(True),
    "conv_general_dilated.cpu.ffi/channels_first": _convolution(False),
}
"""Bound's name → the graph of a size."""
