"""Scaled small floats: scales, codes, and products of codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlx.dtypes import DType
from rlx.ir.op import Op, define_op
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import Gather, GatherNd
from rlx.ops.indexing.places import require_integers
from rlx.ops.quantized.checks import (
    format_of,
    layout_of,
    require_dtype,
    require_float,
    require_rank,
    require_shape,
)
from rlx.ops.quantized.lanes import GRAPH
from rlx.quant import minifloat, scaled
from rlx.quant.minifloat import ScaledFormat
from rlx.quant.scaled import ScaleKind, ScaleLayout
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("scaled_quant_scale")
class ScaledQuantScale(Op):
    """The scales with which a tensor is quantised to a small float.

    s = max|x| / greatest number of the format over what shares a scale; 1 where all are zero

    Inputs:
        x: float[..., cols]

    Attributes:
        format: name of a `ScaledFormat`, such as ``f8e4m3`` or ``f4e3m0``.
        layout: name of a `ScaleLayout`: ``per_tensor``, ``per_row``, ``mx_e8m0/32``, ``nvfp4/16``.

    Result:
        f32[1] (per tensor), f32[..., 1] (per row), or u8[..., ⌈cols / block⌉]: E8M0 powers of two,
        rounded up, or E4M3 numbers, rounded to nearest. NaN is passed over.

    Constraints:
        C1: x is floating.
        C2: format and layout are names.
        C3: x has at least one axis, and with blocks its last one is a number.

    Source: RLX `Op::ScaledQuantScale`.
    """

    format: str = "f8e4m3"
    layout: str = "per_tensor"

    def infer(self, x: TensorType) -> TensorType:
        require_float(self, "C1", "x", x)
        format_of(self, "C2", self.format)
        layout = layout_of(self, "C2", self.layout)
        _require_cols(self, "C3", "x", x, layout)
        return TensorType(layout.dtype, _scale_shape(layout, x.shape))

    def decompose(self, x: Value) -> Value:
        form, layout = ScaledFormat.parse(self.format), ScaleLayout.parse(self.layout)
        result: Value = scaled.scales(GRAPH, x.convert(DType.F32), form, layout)
        return result


@define_op("scaled_quantize")
class ScaledQuantize(Op):
    """Codes of a small float for a tensor and its scales.

    y = code of the number nearest to x / scale

    Inputs:
        x: float[..., cols]
        scale: f32 or u8   as `scaled_quant_scale` gives it.

    Attributes:
        format: name of a `ScaledFormat`, such as ``f8e4m3`` or ``f4e3m0``.
        layout: name of a `ScaleLayout`: ``per_tensor``, ``per_row``, ``mx_e8m0/32``, ``nvfp4/16``.

    Result:
        u8[..., cols]. Half way rounds to the even code, beyond the greatest number saturates, NaN
        and what rounds to zero give code 0, and so does a scale of 0.

    Constraints:
        C1: x is floating.
        C2: format and layout are names.
        C3: x has at least one axis, and with blocks its last one is a number.
        C4: scale has the shape and dtype of the layout.

    Source: RLX `Op::ScaledQuantize`.
    """

    format: str = "f8e4m3"
    layout: str = "per_tensor"

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        require_float(self, "C1", "x", x)
        format_of(self, "C2", self.format)
        layout = layout_of(self, "C2", self.layout)
        _require_cols(self, "C3", "x", x, layout)
        _require_scale(self, "C4", "scale", scale, layout, x)
        return x.with_dtype(DType.U8)

    def decompose(self, x: Value, scale: Value) -> Value:
        form, layout = ScaledFormat.parse(self.format), ScaleLayout.parse(self.layout)
        result: Value = scaled.quantize(GRAPH, x.convert(DType.F32), scale, form, layout)
        return result


@define_op("scaled_dequantize")
class ScaledDequantize(Op):
    """The numbers of codes of a small float and their scales.

    y = number of the code · scale

    Inputs:
        codes: u8[..., cols]
        scale: f32 or u8   as `scaled_quant_scale` gives it.

    Attributes:
        format: name of a `ScaledFormat`, such as ``f8e4m3`` or ``f4e3m0``.
        layout: name of a `ScaleLayout`: ``per_tensor``, ``per_row``, ``mx_e8m0/32``, ``nvfp4/16``.

    Result:
        f32[..., cols]

    Constraints:
        C1: codes are u8.
        C2: format and layout are names.
        C3: codes have at least one axis, and with blocks their last one is a number.
        C4: scale has the shape and dtype of the layout.

    Source: RLX `Op::ScaledDequantize`.
    """

    format: str = "f8e4m3"
    layout: str = "per_tensor"

    def infer(self, codes: TensorType, scale: TensorType) -> TensorType:
        require_dtype(self, "C1", "codes", codes, DType.U8)
        format_of(self, "C2", self.format)
        layout = layout_of(self, "C2", self.layout)
        _require_cols(self, "C3", "codes", codes, layout)
        _require_scale(self, "C4", "scale", scale, layout, codes)
        return codes.with_dtype(DType.F32)

    def decompose(self, codes: Value, scale: Value) -> Value:
        form, layout = ScaledFormat.parse(self.format), ScaleLayout.parse(self.layout)
        return _numbers(codes, scale, form, layout)


@define_op("scaled_matmul")
class ScaledMatmul(Op):
    """Product of two matrices of small-float codes with scales.

    y[m, n] = Σ_k lhs[m, k] · lhs_scale · rhs[n, k] · rhs_scale + bias[n]

    Inputs:
        lhs: u8[M, K]            codes.
        rhs: u8[N, K]            codes.
        lhs_scale: f32 or u8     as `scaled_quant_scale` gives it for lhs.
        rhs_scale: f32 or u8     as `scaled_quant_scale` gives it for rhs.
        bias: f32[N]             may be left out.

    Attributes:
        lhs_format: name of a `ScaledFormat`, such as ``f8e4m3`` or ``f4e3m0``.
        rhs_format: name of a `ScaledFormat`.
        layout: of both scales: ``per_tensor``, ``per_row``, ``mx_e8m0/32``, ``nvfp4/16``.

    Result:
        f32[M, N]

    Constraints:
        C1: lhs and rhs are u8 and have two axes.
        C2: formats and layout are names.
        C3: lhs and rhs have one size K, a number with blocks.
        C4: the scales have the shape and dtype of the layout.
        C5: bias is f32[N].

    Numerics: products and sums in f32.
    Source: RLX `Op::ScaledMatMul`.
    """

    lhs_format: str = "f8e4m3"
    rhs_format: str = "f8e4m3"
    layout: str = "per_tensor"

    def infer(
        self,
        lhs: TensorType,
        rhs: TensorType,
        lhs_scale: TensorType,
        rhs_scale: TensorType,
        bias: TensorType | None = None,
    ) -> TensorType:
        require_dtype(self, "C1", "lhs", lhs, DType.U8)
        require_dtype(self, "C1", "rhs", rhs, DType.U8)
        require_rank(self, "C1", "lhs", lhs, 2, "[M, K]")
        require_rank(self, "C1", "rhs", rhs, 2, "[N, K]")
        format_of(self, "C2", self.lhs_format)
        format_of(self, "C2", self.rhs_format)
        layout = layout_of(self, "C2", self.layout)
        _require_one_size(self, "C3", lhs, rhs)
        _require_cols(self, "C3", "lhs", lhs, layout)
        _require_scale(self, "C4", "lhs_scale", lhs_scale, layout, lhs)
        _require_scale(self, "C4", "rhs_scale", rhs_scale, layout, rhs)
        if bias is not None:
            require_dtype(self, "C5", "bias", bias, DType.F32)
            require_shape(self, "C5", "bias", bias, rhs.shape[:1])
        return TensorType(DType.F32, (lhs.shape[0], rhs.shape[0]))

    def decompose(
        self,
        lhs: Value,
        rhs: Value,
        lhs_scale: Value,
        rhs_scale: Value,
        bias: Value | None = None,
    ) -> Value:
        layout = ScaleLayout.parse(self.layout)
        left = _numbers(lhs, lhs_scale, ScaledFormat.parse(self.lhs_format), layout)
        right = _numbers(rhs, rhs_scale, ScaledFormat.parse(self.rhs_format), layout)
        product: Value = DotGeneral(lhs_contracting=(1,), rhs_contracting=(1,))(left, right)
        return product if bias is None else product + bias


@define_op("scaled_grouped_matmul")
class ScaledGroupedMatmul(Op):
    """Product of each row of codes with the matrix of its expert.

    y[m, n] = Σ_k lhs[m, k] · lhs_scale · rhs[e, n, k] · rhs_scale + bias[e, n],  e = ids[m]

    Inputs:
        lhs: u8[M, K]            codes.
        rhs: u8[E, N, K]         codes.
        lhs_scale: f32 or u8     as `scaled_quant_scale` gives it for lhs.
        rhs_scale: f32 or u8     as `scaled_quant_scale` gives it for rhs.
        ids: int[M]              the expert of each row; outside are clipped.
        bias: f32[E, N]          may be left out.

    Attributes:
        lhs_format: name of a `ScaledFormat`, such as ``f8e4m3`` or ``f4e3m0``.
        rhs_format: name of a `ScaledFormat`.
        layout: of both scales: ``per_tensor``, ``per_row``, ``mx_e8m0/32``, ``nvfp4/16``.

    Result:
        f32[M, N]

    Constraints:
        C1: lhs is u8[M, K] and rhs is u8[E, N, K], E a number ≥ 1.
        C2: formats and layout are names.
        C3: lhs and rhs have one size K, a number with blocks.
        C4: the scales have the shape and dtype of the layout.
        C5: ids are integers [M].
        C6: bias is f32[E, N].

    Numerics: products and sums in f32.
    Source: RLX `Op::ScaledGroupedMatMul`.
    """

    lhs_format: str = "f8e4m3"
    rhs_format: str = "f8e4m3"
    layout: str = "per_tensor"

    def infer(
        self,
        lhs: TensorType,
        rhs: TensorType,
        lhs_scale: TensorType,
        rhs_scale: TensorType,
        ids: TensorType,
        bias: TensorType | None = None,
    ) -> TensorType:
        require_dtype(self, "C1", "lhs", lhs, DType.U8)
        require_dtype(self, "C1", "rhs", rhs, DType.U8)
        require_rank(self, "C1", "lhs", lhs, 2, "[M, K]")
        require_rank(self, "C1", "rhs", rhs, 3, "[E, N, K]")
        experts = rhs.shape[0]
        self.require(
            "C1",
            type(experts) is int and experts > 0,
            lambda: f"rhs is required to have a number ≥ 1 of experts; got {rhs}. Check it.",
        )
        format_of(self, "C2", self.lhs_format)
        format_of(self, "C2", self.rhs_format)
        layout = layout_of(self, "C2", self.layout)
        _require_one_size(self, "C3", lhs, rhs)
        _require_cols(self, "C3", "lhs", lhs, layout)
        _require_scale(self, "C4", "lhs_scale", lhs_scale, layout, lhs)
        _require_scale(self, "C4", "rhs_scale", rhs_scale, layout, rhs)
        require_integers(self, "C5", ids, "ids")
        require_shape(self, "C5", "ids", ids, lhs.shape[:1])
        if bias is not None:
            require_dtype(self, "C6", "bias", bias, DType.F32)
            require_shape(self, "C6", "bias", bias, rhs.shape[:2])
        return TensorType(DType.F32, (lhs.shape[0], rhs.shape[1]))

    def decompose(
        self,
        lhs: Value,
        rhs: Value,
        lhs_scale: Value,
        rhs_scale: Value,
        ids: Value,
        bias: Value | None = None,
    ) -> Value:
        layout = ScaleLayout.parse(self.layout)
        left = _numbers(lhs, lhs_scale, ScaledFormat.parse(self.lhs_format), layout)
        right = _numbers(rhs, rhs_scale, ScaledFormat.parse(self.rhs_format), layout)
        every = DotGeneral(lhs_contracting=(1,), rhs_contracting=(2,))(left, right)
        column = ids.reshape((lhs.shape[0], 1))
        product: Value = GatherNd(batch_dims=1)(every, column)
        if bias is None:
            return product
        return product + cast("Value", Gather(axis=0)(bias, ids))


def _scale_shape(layout: ScaleLayout, shape: Shape) -> Shape:
    if layout.kind is ScaleKind.PER_TENSOR:
        return (1,)
    if not layout.is_blocked:
        return (*shape[:-1], 1)
    return (*shape[:-1], layout.blocks(cast("int", shape[-1])))


def _require_cols(op: Op, label: str, name: str, found: TensorType, layout: ScaleLayout) -> None:
    op.require(
        label,
        found.rank > 0 and (not layout.is_blocked or type(found.shape[-1]) is int),
        lambda: (
            f"{name} is required to have a last axis, a number with the layout {layout}; got "
            f"{found}. Bind its symbols."
        ),
    )


def _require_scale(
    op: Op, label: str, name: str, found: TensorType, layout: ScaleLayout, of: TensorType
) -> None:
    require_shape(op, label, name, found, _scale_shape(layout, of.shape))
    require_dtype(op, label, name, found, layout.dtype)


def _require_one_size(op: Op, label: str, lhs: TensorType, rhs: TensorType) -> None:
    op.require_same_dims(
        label,
        rhs.shape[-1:],
        lhs.shape[-1:],
        lambda: f"lhs and rhs are required to have one size K; got {lhs} and {rhs}. Transpose.",
    )


def _numbers(codes: Value, scale: Value, form: ScaledFormat, layout: ScaleLayout) -> Value:
    """decode(codes) · scale; hardware's formats as conversions, which compilers match."""
    if form.dtype is None:
        values = minifloat.decode(GRAPH, form, codes)
    else:
        values = GRAPH.convert(GRAPH.bits(codes, form.dtype), DType.F32)
    return values * cast("Value", scaled.spread(GRAPH, scale, layout, codes.shape))


def quantized_pair(x: Value, form: ScaledFormat, layout: ScaleLayout) -> tuple[Value, Value]:
    """Codes and scales of a value."""
    scale = ScaledQuantScale(format=str(form), layout=str(layout))(x)
    return ScaledQuantize(format=str(form), layout=str(layout))(x, scale), scale
