"""Integer quantisation: codes with scales and zero points, and products of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from rlx import dims
from rlx.dtypes import DType
from rlx.ir import operators
from rlx.ir.op import Op, define_op
from rlx.ops import windows
from rlx.ops.axes import require_axis
from rlx.ops.convolution import divisible
from rlx.ops.dot import DotGeneral
from rlx.ops.quantized.checks import require_dtype, require_float, require_rank, require_shape
from rlx.ops.quantized.lanes import GRAPH
from rlx.ops.shape import Concatenate, DimValue, Pad, Slice, Transpose
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import Value


@define_op("quantize")
class Quantize(Op):
    """Signed bytes for numbers, by scales and zero points.

    y = saturate(round(x / scale[c]) + zero_point[c])

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.

    Attributes:
        scales: one for each place of `axis`, or one for all when axis is None; in units of x.
        zero_points: the codes of zero, as many as scales; empty means zeros.
        axis: where scales differ; None for one scale.

    Result:
        i8[...] of the same shape, in [−128, 127]. NaN gives 0.

    Constraints:
        C1: x is floating.
        C2: axis is None or in range for x.
        C3: there is one scale, or D of them with an axis, and as many zero points or none.
        C4: scales are finite and > 0.
        C5: zero points are in [−128, 127].

    Numerics: half way rounds to even; narrower floats than f32 compute in f32.
    Source: RLX `Op::Quantize`; ONNX `QuantizeLinear`.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...] = ()
    axis: int | None = None

    def infer(self, x: TensorType) -> TensorType:
        require_float(self, "C1", "x", x)
        _check_scales(self, x)
        return x.with_dtype(DType.I8)

    def decompose(self, x: Value) -> Value:
        wide = x.convert(x.dtype.compute)
        scale, zero = _vectors(self, wide)
        codes = operators.unary("Round", GRAPH.divide(wide, scale)) + zero
        return _clamped(codes, -128, 127).convert(DType.I8)


@define_op("dequantize")
class Dequantize(Op):
    """Numbers for signed bytes, by scales and zero points.

    y = (x − zero_point[c]) · scale[c]

    Inputs:
        x: i8[..., D, ...]   codes; D is the size of `axis`.

    Attributes:
        scales: one for each place of `axis`, or one for all when axis is None.
        zero_points: the codes of zero, as many as scales; empty means zeros.
        axis: where scales differ; None for one scale.

    Result:
        f32[...] of the same shape.

    Constraints:
        C1: x is i8.
        C2: axis is None or in range for x.
        C3: there is one scale, or D of them with an axis, and as many zero points or none.
        C4: scales are finite and > 0.
        C5: zero points are in [−128, 127].

    Source: RLX `Op::Dequantize`; ONNX `DequantizeLinear`.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...] = ()
    axis: int | None = None

    def infer(self, x: TensorType) -> TensorType:
        require_dtype(self, "C1", "x", x, DType.I8)
        _check_scales(self, x)
        return x.with_dtype(DType.F32)

    def decompose(self, x: Value) -> Value:
        wide = x.convert(DType.F32)
        scale, zero = _vectors(self, wide)
        return (wide - zero) * scale


def _check_scales(self: Quantize | Dequantize, x: TensorType) -> None:
    axis, count = self.axis, len(self.scales)
    if axis is not None:
        require_axis(self, "C2", axis, x, negative=True)
    size: Dim = 1 if axis is None else x.shape[axis]
    text = (
        f"{size} scales (axis {axis} of x: {x}) and as many zero points or none are required; got "
        f"{count} and {len(self.zero_points)}. Pass one for each."
    )
    self.require("C3", len(self.zero_points) in (0, count), text)
    self.require_same_dims("C3", (count,), (size,), text)
    self.require(
        "C4",
        all(math.isfinite(s) and s > 0 for s in self.scales),
        lambda: f"scales are required to be finite and > 0; got {self.scales}. Use |scale|.",
    )
    self.require(
        "C5",
        all(-128 <= z <= 127 for z in self.zero_points),
        lambda: (
            f"zero points are required to be in [−128, 127]; got {self.zero_points}. "
            "They are codes of i8."
        ),
    )


def _vectors(self: Quantize | Dequantize, wide: Value) -> tuple[Value, Value]:
    """Scales and zero points in the dtype of a value, shaped to broadcast with it."""
    shape = [1] * wide.rank
    if self.axis is not None:
        shape[self.axis] = len(self.scales)
    zeros = self.zero_points or (0,) * len(self.scales)
    scale, zero = (
        operators.constant([float(v) for v in values], wide.dtype).reshape(shape)
        for values in (self.scales, zeros)
    )
    return scale, zero


def _clamped(x: Value, low: int, high: int) -> Value:
    return operators.binary("Min", operators.binary("Max", x, float(low)), float(high))


@define_op("q_matmul")
class QMatmul(Op):
    """Product of signed bytes, brought back to signed bytes.

    y = saturate(round((bias + Σ_k (x − x_zp)(w − w_zp)) · mult) + out_zp)

    Inputs:
        x: i8[..., K]
        w: i8[K, N]
        bias: i32[N]   in units of the products.

    Attributes:
        x_zp: the code of zero of x.
        w_zp: the code of zero of w.
        out_zp: the code of zero of the result.
        mult: scale of x times scale of w over scale of the result.

    Result:
        i8[..., N]

    Constraints:
        C1: x and w are i8, bias is i32.
        C2: x has at least one axis and w has two.
        C3: x and w have one size K.
        C4: bias has the shape [N].
        C5: zero points are in [−128, 127].
        C6: mult is finite and > 0.

    Numerics: sums in i32, which wrap around; the product with mult is f32, half way to even.
    Source: RLX `Op::QMatMul`; Jacob et al. 2018, arXiv:1712.05877.
    """

    x_zp: int = 0
    w_zp: int = 0
    out_zp: int = 0
    mult: float = 1.0

    def infer(self, x: TensorType, w: TensorType, bias: TensorType) -> TensorType:
        _check_requantisation(self, x, w, bias)
        self.require(
            "C2",
            x.rank > 0,
            lambda: f"x is required to have at least one axis; got {x}. Reshape it.",
        )
        require_rank(self, "C2", "w", w, 2, "[K, N]")
        self.require_same_dims(
            "C3",
            w.shape[:1],
            x.shape[-1:],
            lambda: f"x and w are required to have one size K; got x: {x} and w: {w}. Transpose.",
        )
        require_shape(self, "C4", "bias", bias, w.shape[1:])
        return TensorType(DType.I8, (*x.shape[:-1], w.shape[1]))

    def decompose(self, x: Value, w: Value, bias: Value) -> Value:
        product = DotGeneral(
            lhs_contracting=(x.rank - 1,),
            rhs_contracting=(0,),
            preferred_element_type=DType.I32,
        )
        total = product(x, w)
        if self.x_zp:  # the products of bytes stay bytes; what zero points add comes apart
            total = total - w.convert(DType.I32).sum(0) * self.x_zp
        if self.w_zp:
            total = total - x.convert(DType.I32).sum(-1, keepdims=True) * self.w_zp
        if self.x_zp and self.w_zp:
            total = total + _count(x.shape[-1:]) * (self.x_zp * self.w_zp)
        return _requantised(self, total + bias)


@define_op("q_conv2d")
class QConv2d(Op):
    """Convolution of signed bytes, brought back to signed bytes.

    y = saturate(round((bias[o] + Σ (x − x_zp)(w − w_zp)) · mult) + out_zp)

    Inputs:
        x: i8[N, C, H, W]      padded with x_zp.
        w: i8[O, C/g, kh, kw]  g is `groups`.
        bias: i32[O]           in units of the products.

    Attributes:
        stride: steps of the window along H and W.
        padding: rows and columns added on both sides of H and W.
        dilation: distance of the window's elements along H and W.
        groups: how many groups of channels are convolved apart.
        x_zp: the code of zero of x.
        w_zp: the code of zero of w.
        out_zp: the code of zero of the result.
        mult: scale of x times scale of w over scale of the result.

    Result:
        i8[N, O, (H + 2·padding − dilation·(kh − 1) − 1) // stride + 1, …]

    Constraints:
        C1: x and w are i8, bias is i32.
        C2: x and w have four axes; kh and kw are numbers.
        C3: groups > 0 divides C and O, and w has C / groups channels.
        C4: bias has the shape [O].
        C5: zero points are in [−128, 127].
        C6: mult is finite and > 0.
        C7: stride and dilation are ≥ 1 and padding is ≥ 0.

    Numerics: sums in i32, which wrap around; the product with mult is f32, half way to even.
    Source: RLX `Op::QConv2d`; Jacob et al. 2018, arXiv:1712.05877.
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    x_zp: int = 0
    w_zp: int = 0
    out_zp: int = 0
    mult: float = 1.0

    def infer(self, x: TensorType, w: TensorType, bias: TensorType) -> TensorType:
        _check_requantisation(self, x, w, bias)
        require_rank(self, "C2", "x", x, 4, "[N, C, H, W]")
        require_rank(self, "C2", "w", w, 4, "[O, C/g, kh, kw]")
        self.require(
            "C2",
            all(type(d) is int for d in w.shape),
            lambda: f"w is required to have sizes that are numbers; got {w}. Bind its symbols.",
        )
        groups, channels = self.groups, x.shape[1]
        text = f"groups is required to be > 0 and to divide C and O; got {groups}, {x} and {w}."
        self.require("C3", groups > 0, text)
        divisible(self, "C3", channels, groups, f"C of x: {x}")
        divisible(self, "C3", w.shape[0], groups, f"O of w: {w}")
        wanted = dims.exact_div(channels, groups)
        self.require_same_dims(
            "C3",
            w.shape[1:2],
            (wanted,),
            lambda: f"w is required to have C / groups = {wanted} channels; got {w} for x: {x}.",
        )
        require_shape(self, "C4", "bias", bias, w.shape[:1])
        self.require(
            "C7",
            min(*self.stride, *self.dilation) >= 1 and min(self.padding) >= 0,
            lambda: (
                f"stride and dilation ≥ 1 and padding ≥ 0 are required; got {self.stride}, "
                f"{self.dilation} and {self.padding}. Count in elements."
            ),
        )
        return TensorType(DType.I8, (x.shape[0], w.shape[0], *self._places(x.shape, w.shape)))

    def decompose(self, x: Value, w: Value, bias: Value) -> Value:
        batch = x.shape[0]
        rows, cols = self._places(x.shape, w.shape)
        outputs, inner, high, wide = (cast("int", d) for d in w.shape)
        if 0 in (rows, cols, high, wide):  # no window fits, or it holds nothing
            empty = operators.constant(0, DType.I32)
            total = operators.broadcast_to(empty, (batch, outputs, rows, cols))
            return _requantised(self, total + bias.reshape(outputs, 1, 1))
        groups, count = self.groups, high * wide
        # Every place of the window as a strided slice: integer products on every platform.
        patches = self._patches(x, high, wide, (rows, cols))
        patches = patches.reshape(batch, count, groups, inner, rows, cols)
        kernel = w.reshape(groups, outputs // groups, inner, count)
        product = DotGeneral(
            lhs_batch=(2,),
            rhs_batch=(0,),
            lhs_contracting=(1, 3),
            rhs_contracting=(3, 2),
            preferred_element_type=DType.I32,
        )
        total = product(patches, kernel)  # [groups, N, rows, cols, O / groups]
        if self.x_zp:
            sums = kernel.convert(DType.I32).sum((2, 3)).reshape(groups, 1, 1, 1, outputs // groups)
            total = total - sums * self.x_zp
        if self.w_zp:
            sums = patches.convert(DType.I32).sum((1, 3))  # [N, groups, rows, cols]
            sums = sums.transpose(1, 0, 2, 3).reshape(groups, batch, rows, cols, 1)
            total = total - sums * self.w_zp
        if self.x_zp and self.w_zp:
            total = total + _count((inner, count)) * (self.x_zp * self.w_zp)
        order = Transpose(permutation=(1, 0, 4, 2, 3))
        total = cast("Value", order(total)).reshape(batch, outputs, rows, cols)
        return _requantised(self, total + bias.reshape(outputs, 1, 1))

    def _places(self, x: Shape, w: Shape) -> tuple[Dim, Dim]:
        rows, cols = (
            windows.count(
                x[2 + i], w[2 + i], self.stride[i], (self.padding[i],) * 2, 1, self.dilation[i]
            )
            for i in (0, 1)
        )
        return rows, cols

    def _patches(self, x: Value, high: int, wide: int, places: Sequence[Dim]) -> Value:
        """[N, kh·kw, C, rows, cols]."""
        edges = (0, 0, *self.padding)
        if any(self.padding):
            pad = Pad(low=edges, high=edges, interior=(0,) * 4)
            x = cast("Value", pad(x, operators.constant(self.x_zp, DType.I8)))
        batch, channels = x.shape[:2]
        parts: list[Value] = []
        for place in range(high * wide):
            start = tuple(d * p for d, p in zip(self.dilation, divmod(place, wide), strict=True))
            ends = tuple(
                first + (size - 1) * step + 1
                for first, size, step in zip(start, places, self.stride, strict=True)
            )
            cut = Slice(
                start_indices=(0, 0, *start),
                limit_indices=(batch, channels, *ends),
                strides=(1, 1, *self.stride),
            )
            parts.append(cast("Value", cut(x)).reshape(batch, 1, channels, *places))
        return cast("Value", Concatenate(axis=1)(*parts))


def _check_requantisation(
    self: QMatmul | QConv2d, x: TensorType, w: TensorType, bias: TensorType
) -> None:
    require_dtype(self, "C1", "x", x, DType.I8)
    require_dtype(self, "C1", "w", w, DType.I8)
    require_dtype(self, "C1", "bias", bias, DType.I32)
    points = (self.x_zp, self.w_zp, self.out_zp)
    self.require(
        "C5",
        all(-128 <= z <= 127 for z in points),
        lambda: f"zero points are required to be in [−128, 127]; got {points}. They are i8 codes.",
    )
    self.require(
        "C6",
        math.isfinite(self.mult) and self.mult > 0,
        lambda: f"mult is required to be finite and > 0; got {self.mult}. It is a scale.",
    )


def _requantised(self: QMatmul | QConv2d, total: Value) -> Value:
    scaled = operators.unary("Round", total.convert(DType.F32) * self.mult)
    return _clamped(scaled + float(self.out_zp), -128, 127).convert(DType.I8)


def _count(shape: Shape) -> Value:
    """How many elements there are, as i32, also when a dim is symbolic."""
    return cast("Value", DimValue(dim=dims.product(shape), dtype=DType.I32)())
