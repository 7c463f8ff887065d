"""Gradients of convolutions and maximum pools, channels first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rlx import dims
from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops import windows
from rlx.ops.backward.gradients import check_gradient
from rlx.ops.convolution import Conv, ConvGeneralDilated
from rlx.ops.pooling import Pool, SelectAndScatterAdd, WindowKind, WindowSelect
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


class _Convolution(Protocol):
    """Attributes of the convolution."""

    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def padding(self) -> tuple[int, ...]: ...
    @property
    def dilation(self) -> tuple[int, ...]: ...
    @property
    def groups(self) -> int: ...


class _Pooling(Protocol):
    """Attributes of the pool."""

    @property
    def kernel(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def padding(self) -> tuple[int, ...]: ...


@define_op("conv2d_backward_input")
class Conv2dBackwardInput(Op):
    """Gradient of a 2-d conv by its input.

    dx[n, i, p·stride + k·dilation − padding] += dy[n, o, p] · weight[o, i, k]

    Inputs:
        dy: T[N, O, *places]          gradient by the result.
        weight: T[O, C / groups, *kernel]

    Attributes:
        input_size: spatial dims of conv's input, which its result does not tell.
        stride: of conv.
        padding: of conv.
        dilation: of conv.
        groups: of conv.

    Result:
        T[N, C, *input_size]

    Constraints:
        C1: conv takes an input of that size and weight.
        C2: dy has the type of conv's result.
        C3: dy and weight have rank 4, and input_size two entries.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX `Op::Conv2dBackwardInput`.
    """

    input_size: tuple[Dim, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    def infer(self, dy: TensorType, weight: TensorType) -> TensorType:
        return _input_type(self, self, 2, self.input_size, dy, weight)

    def decompose(self, dy: Value, weight: Value) -> Value:
        return _input_gradient(self, self.input_size, dy, weight)


@define_op("conv3d_backward_input")
class Conv3dBackwardInput(Op):
    """Gradient of a 3-d conv by its input.

    dx[n, i, p·stride + k·dilation − padding] += dy[n, o, p] · weight[o, i, k]

    Inputs:
        dy: T[N, O, *places]          gradient by the result.
        weight: T[O, C / groups, *kernel]

    Attributes:
        input_size: spatial dims of conv's input, which its result does not tell.
        stride: of conv.
        padding: of conv.
        dilation: of conv.
        groups: of conv.

    Result:
        T[N, C, *input_size]

    Constraints:
        C1: conv takes an input of that size and weight.
        C2: dy has the type of conv's result.
        C3: dy and weight have rank 5, and input_size three entries.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX's backward of `Op::Conv3d`.
    """

    input_size: tuple[Dim, ...]
    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1

    def infer(self, dy: TensorType, weight: TensorType) -> TensorType:
        return _input_type(self, self, 3, self.input_size, dy, weight)

    def decompose(self, dy: Value, weight: Value) -> Value:
        return _input_gradient(self, self.input_size, dy, weight)


@define_op("conv2d_backward_weight")
class Conv2dBackwardWeight(Op):
    """Gradient of a 2-d conv by its weight.

    dweight[o, i, k] = Σ_{n, p} x[n, i, p·stride + k·dilation − padding] · dy[n, o, p]

    Inputs:
        x: T[N, C, *spatial]
        dy: T[N, O, *places]   gradient by the result.

    Attributes:
        kernel: spatial dims of the weight.
        stride: of conv.
        padding: of conv.
        dilation: of conv.
        groups: of conv.

    Result:
        T[O, C / groups, *kernel]

    Constraints:
        C1: conv takes x and a weight of that kernel.
        C2: dy has the type of conv's result.
        C3: x and dy have rank 4, and kernel two entries ≥ 1.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX `Op::Conv2dBackwardWeight`.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        return _weight_type(self, self, 2, self.kernel, x, dy)

    def decompose(self, x: Value, dy: Value) -> Value:
        return _weight_gradient(self, self.kernel, x, dy)


@define_op("conv3d_backward_weight")
class Conv3dBackwardWeight(Op):
    """Gradient of a 3-d conv by its weight.

    dweight[o, i, k] = Σ_{n, p} x[n, i, p·stride + k·dilation − padding] · dy[n, o, p]

    Inputs:
        x: T[N, C, *spatial]
        dy: T[N, O, *places]   gradient by the result.

    Attributes:
        kernel: spatial dims of the weight.
        stride: of conv.
        padding: of conv.
        dilation: of conv.
        groups: of conv.

    Result:
        T[O, C / groups, *kernel]

    Constraints:
        C1: conv takes x and a weight of that kernel.
        C2: dy has the type of conv's result.
        C3: x and dy have rank 5, and kernel three entries ≥ 1.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX's backward of `Op::Conv3d`.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        return _weight_type(self, self, 3, self.kernel, x, dy)

    def decompose(self, x: Value, dy: Value) -> Value:
        return _weight_gradient(self, self.kernel, x, dy)


@define_op("max_pool2d_backward")
class MaxPool2dBackward(Op):
    """Gradient of a 2-d maximum pool: dy goes to the first maximum of each window.

    dx[place(p)] += dy[p], place(p) = the first largest element of window p of x

    Inputs:
        x: T[N, C, H, W]
        dy: T[N, C, *places]   gradient by the result.

    Attributes:
        kernel: of pool.
        stride: of pool.
        padding: of pool.

    Result:
        Same type as x. What goes to padding is lost.

    Constraints:
        C1: pool takes x with these attributes, and x holds floats.
        C2: dy has the type of pool's result.
        C3: x has rank 4.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX `Op::MaxPool2dBackward`.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0)

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        return _pool_type(self, self, 2, x, dy)

    def decompose(self, x: Value, dy: Value) -> Value:
        return _pool_gradient(self, x, dy)


@define_op("max_pool3d_backward")
class MaxPool3dBackward(Op):
    """Gradient of a 3-d maximum pool: dy goes to the first maximum of each window.

    dx[place(p)] += dy[p], place(p) = the first largest element of window p of x

    Inputs:
        x: T[N, C, D, H, W]
        dy: T[N, C, *places]   gradient by the result.

    Attributes:
        kernel: of pool.
        stride: of pool.
        padding: of pool.

    Result:
        Same type as x. What goes to padding is lost.

    Constraints:
        C1: pool takes x with these attributes, and x holds floats.
        C2: dy has the type of pool's result.
        C3: x has rank 5.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX's backward of the 3-d `Op::Pool`.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0, 0)

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        return _pool_type(self, self, 3, x, dy)

    def decompose(self, x: Value, dy: Value) -> Value:
        return _pool_gradient(self, x, dy)


def _conv(op: _Convolution) -> Conv:
    return Conv(stride=op.stride, padding=op.padding, dilation=op.dilation, groups=op.groups)


def _pool(op: _Pooling) -> Pool:
    return Pool(kind=WindowKind.MAX, kernel=op.kernel, stride=op.stride, padding=op.padding)


def _check_rank(op: Op, spatial: int, entries: int, what: str, **inputs: TensorType) -> None:
    listing = ", ".join(f"{n}: {t}" for n, t in inputs.items())
    op.require(
        "C3",
        entries == spatial and all(t.rank == spatial + 2 for t in inputs.values()),
        f"{' and '.join(inputs)} are required to have rank {spatial + 2}, and {what} {spatial} "
        f"entries; got {listing} and {entries} entries. Reshape them, or change the attribute.",
    )


def _input_type(
    op: Op,
    attributes: _Convolution,
    spatial: int,
    size: tuple[Dim, ...],
    dy: TensorType,
    weight: TensorType,
) -> TensorType:
    _check_rank(op, spatial, len(size), "input_size", dy=dy, weight=weight)
    channels = weight.shape[1] * attributes.groups
    x = dy.with_shape((dy.shape[0], channels, *size))
    check_gradient(op, _conv(attributes), (x, weight), dy=dy)
    return x


def _weight_type(
    op: Op,
    attributes: _Convolution,
    spatial: int,
    kernel: tuple[int, ...],
    x: TensorType,
    dy: TensorType,
) -> TensorType:
    entries = len(kernel) if all(k >= 1 for k in kernel) else 0
    _check_rank(op, spatial, entries, "kernel", x=x, dy=dy)
    groups = max(attributes.groups, 1)
    weight = x.with_shape((dy.shape[1], dims.floordiv_(x.shape[1], groups), *kernel))
    check_gradient(op, _conv(attributes), (x, weight), dy=dy)
    return weight


def _pool_type(
    op: Op, attributes: _Pooling, spatial: int, x: TensorType, dy: TensorType
) -> TensorType:
    _check_rank(op, spatial, spatial, "kernel", x=x)
    op.require(
        "C1",
        x.dtype.is_float,
        f"x is required to hold real floats; got {x}. Convert it.",
        DTypeError,
    )
    check_gradient(op, _pool(attributes), (x,), dy=dy)
    return x


def _input_gradient(op: _Convolution, size: tuple[Dim, ...], dy: Value, weight: Value) -> Value:
    """Spread dy by the stride, and convolve it with the mirrored kernel."""
    from rlx.ops.shape import Reverse

    outputs, inputs, *kernel = weight.shape
    spatial = tuple(range(2, weight.rank))
    each = dims.floordiv_(outputs, op.groups)
    w: Value = Reverse(axes=spatial)(weight).reshape(op.groups, each, inputs, *kernel)
    w = w.transpose(0, 2, 1, *(i + 1 for i in spatial))
    w = w.reshape(op.groups * inputs, each, *kernel)
    padding: list[tuple[Dim, Dim]] = []
    for length, k, step, pad, dilation in zip(
        size, kernel, op.stride, op.padding, op.dilation, strict=True
    ):
        reach = windows.dilated(k, dilation) - 1
        # Elements at the end that no window reaches get no gradient.
        rest = dims.mod_(length + 2 * pad - reach - 1, step)
        padding.append((reach - pad, reach - pad + rest))
    order = tuple(range(weight.rank))
    dx: Value = ConvGeneralDilated(
        window_strides=(1,) * len(spatial),
        padding=tuple(padding),
        lhs_dilation=op.stride,
        rhs_dilation=op.dilation,
        lhs_spec=order,
        rhs_spec=order,
        out_spec=order,
        feature_group_count=op.groups,
    )(dy, w)
    return dx


def _weight_gradient(op: _Convolution, kernel: tuple[int, ...], x: Value, dy: Value) -> Value:
    """Convolve x with dy over the batch: the stride and the dilation change places."""
    places = dy.shape[2:]
    shape: Shape = (dy.shape[1], dims.floordiv_(x.shape[1], op.groups), *kernel)
    if any(isinstance(n, int) and n == 0 for n in places):
        return broadcast_to(constant(0.0, x.dtype), shape)
    padding: list[tuple[Dim, Dim]] = []
    for length, k, count, step, pad, dilation in zip(
        x.shape[2:], kernel, places, op.stride, op.padding, op.dilation, strict=True
    ):
        needed = windows.dilated(k, dilation) - 1 + windows.dilated(count, step)
        padding.append((pad, needed - length - pad))
    swapped = (1, 0, *range(2, x.rank))
    dw: Value = ConvGeneralDilated(
        window_strides=op.dilation,
        padding=tuple(padding),
        lhs_dilation=(1,) * len(kernel),
        rhs_dilation=op.stride,
        lhs_spec=swapped,
        rhs_spec=swapped,
        out_spec=swapped,
        batch_group_count=op.groups,
    )(x, dy)
    return dw


def _pool_gradient(op: _Pooling, x: Value, dy: Value) -> Value:
    dx: Value = SelectAndScatterAdd(
        select=WindowSelect.GE,
        window_dimensions=(1, 1, *op.kernel),
        window_strides=(1, 1, *op.stride),
        padding=((0, 0), (0, 0), *((p, p) for p in op.padding)),
    )(dy, x)
    return dx
