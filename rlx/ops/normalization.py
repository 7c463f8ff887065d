"""Softmax and the norms: composites whose statistics are f32 for narrower floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx import dims
from rlx.errors import DTypeError, InconclusiveDimError
from rlx.ir.op import Op, define_op
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("softmax")
class Softmax(Op):
    """Exponentials along an axis, divided by their sum.

    y = exp(x − max(x)) / sum(exp(x − max(x)))

    Inputs:
        x: float[...]

    Attributes:
        axis: the axis that sums to one; negative counts from the end.

    Result:
        Same type as x. A line that holds NaN or +Inf, or only −Inf, is NaN.

    Constraints:
        C1: axis is in range for x.
        C2: x is floating.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: `jax.nn.softmax`; RLX `Op::Softmax`.
    """

    axis: int = -1

    def infer(self, x: TensorType) -> TensorType:
        return _one_axis(self, self.axis, x)

    def decompose(self, x: Value) -> Value:
        wide = _wide(x)
        shifted = (wide - wide.max(self.axis, keepdims=True)).exp()
        return (shifted / shifted.sum(self.axis, keepdims=True)).convert(x.dtype)


@define_op("log_softmax")
class LogSoftmax(Op):
    """Logarithm of the softmax, without taking the logarithm of a small number.

    y = x − max(x) − log(sum(exp(x − max(x))))

    Inputs:
        x: float[...]

    Attributes:
        axis: the axis whose exponentials sum to one; negative counts from the end.

    Result:
        Same type as x. A line that holds NaN or +Inf, or only −Inf, is NaN.

    Constraints:
        C1: axis is in range for x.
        C2: x is floating.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: `jax.nn.log_softmax`.
    """

    axis: int = -1

    def infer(self, x: TensorType) -> TensorType:
        return _one_axis(self, self.axis, x)

    def decompose(self, x: Value) -> Value:
        wide = _wide(x)
        shifted = wide - wide.max(self.axis, keepdims=True)
        total = shifted.exp().sum(self.axis, keepdims=True)
        return (shifted - total.log()).convert(x.dtype)


@define_op("layer_norm")
class LayerNorm(Op):
    """Layer normalisation along one axis, with the biased variance.

    y = (x − mean(x)) / sqrt(mean((x − mean(x))²) + eps) * gamma + beta

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        gamma: float[D]         gain.
        beta: float[D]          offset.

    Attributes:
        axis: position of D in x; negative counts from the end. With axis 1 of an NCHW tensor
            this is RLX's layer_norm2d.
        eps: added to the variance, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: axis is in range for x.
        C2: shape(gamma) = shape(beta) = [D].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Ba et al. 2016, arXiv:1607.06450; RLX `Op::LayerNorm`, `Op::LayerNorm2d`.
    """

    axis: int = -1
    eps: float = 1e-5

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        return _affine_norm(self, self.axis, self.eps, x, gamma=gamma, beta=beta)

    def decompose(self, x: Value, gamma: Value, beta: Value) -> Value:
        wide = _wide(x)
        normal = _standardised(wide, (self.axis % x.rank,), self.eps)
        return _affine(normal, self.axis, gamma, beta).convert(x.dtype)


@define_op("rms_norm")
class RmsNorm(Op):
    """Root-mean-square normalisation along one axis.

    y = x / sqrt(mean(x²) + eps) * gamma + beta

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        gamma: float[D]         gain.
        beta: float[D]          offset; zeros when the model has none.

    Attributes:
        axis: position of D in x; negative counts from the end.
        eps: added to the mean square, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: axis is in range for x.
        C2: shape(gamma) = shape(beta) = [D].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Zhang & Sennrich 2019, arXiv:1910.07467; RLX `Op::RmsNorm`.
    """

    axis: int = -1
    eps: float = 1e-6

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        return _affine_norm(self, self.axis, self.eps, x, gamma=gamma, beta=beta)

    def decompose(self, x: Value, gamma: Value, beta: Value) -> Value:
        wide = _wide(x)
        mean_square = (wide * wide).mean(self.axis, keepdims=True)
        normal = wide * _rsqrt(mean_square + self.eps)
        return _affine(normal, self.axis, gamma, beta).convert(x.dtype)


@define_op("group_norm")
class GroupNorm(Op):
    """Group normalisation of [N, C, …]: over each group of channels and all places.

    y = (x − mean(x)) / sqrt(var(x) + eps) * gamma + beta, statistics over (C / num_groups, …)

    Inputs:
        x: float[N, C, ...]
        gamma: float[C]   gain.
        beta: float[C]    offset.

    Attributes:
        num_groups: how many groups of neighbouring channels.
        eps: added to the biased variance, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: x has at least the axes N and C.
        C2: shape(gamma) = shape(beta) = [C].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.
        C5: num_groups > 0 divides C.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Wu & He 2018, arXiv:1803.08494; RLX `Op::GroupNorm`.
    """

    num_groups: int
    eps: float = 1e-5

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        self.require(
            "C1", x.rank >= 2, f"x is required to have axes N and C; got {x}. Add the missing axis."
        )
        result = _affine_norm(self, 1, self.eps, x, gamma=gamma, beta=beta)
        channels = x.shape[1]
        text = (
            f"num_groups is required to divide C = {channels}, axis 1 of x: {x}; "
            f"got {self.num_groups}. Choose a divisor of C."
        )
        self.require("C5", self.num_groups > 0, text)
        try:
            divides = dims.divisible(channels, self.num_groups)
        except InconclusiveDimError as error:
            raise InconclusiveDimError(
                f"{self.op_name} [C5]: {text} {error}", label="C5"
            ) from error
        self.require("C5", divides, text)
        return result

    def decompose(self, x: Value, gamma: Value, beta: Value) -> Value:
        batch, channels, *places = x.shape
        size = dims.exact_div(channels, self.num_groups)
        grouped = _wide(x).reshape(batch, self.num_groups, size, *places)
        normal = _standardised(grouped, tuple(range(2, grouped.rank)), self.eps)
        return _affine(normal.reshape(*x.shape), 1, gamma, beta).convert(x.dtype)


@define_op("batch_norm_inference")
class BatchNormInference(Op):
    """Batch normalisation with given statistics; features are the last axis.

    y = (x − mean) / sqrt(variance + eps) * gamma + beta

    Inputs:
        x: float[..., D]
        gamma: float[D]      gain.
        beta: float[D]       offset.
        mean: float[D]       in units of x.
        variance: float[D]   in units of x².

    Attributes:
        eps: added to the variance, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: x has at least one axis.
        C2: gamma, beta, mean and variance have shape [D].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167; RLX `Op::BatchNormInference`.
    """

    eps: float = 1e-5

    def infer(
        self,
        x: TensorType,
        gamma: TensorType,
        beta: TensorType,
        mean: TensorType,
        variance: TensorType,
    ) -> TensorType:
        return _affine_norm(
            self, -1, self.eps, x, gamma=gamma, beta=beta, mean=mean, variance=variance
        )

    def decompose(self, x: Value, gamma: Value, beta: Value, mean: Value, variance: Value) -> Value:
        # The per-feature factors are computed before the broadcast, once.
        scale = _rsqrt(_wide(variance) + self.eps)
        centred = _wide(x) - _wide(mean).broadcast_to(x.shape)
        normal = centred * scale.broadcast_to(x.shape)
        return _affine(normal, -1, gamma, beta).convert(x.dtype)


@define_op("ada_layer_norm")
class AdaLayerNorm(Op):
    """Layer normalisation of the last axis whose gain and offset are computed per example.

    y = norm(x) * (1 + scale) + shift

    Inputs:
        x: float[..., D]
        scale: float[..., D]   broadcasts to x.
        shift: float[..., D]   broadcasts to x.

    Attributes:
        eps: added to the variance (or mean square), in units of x²; > 0.
        rms: normalise by the root mean square instead of mean and variance.

    Result:
        Same type as x.

    Constraints:
        C1: x has at least one axis.
        C2: scale and shift broadcast to the shape of x.
        C3: one floating dtype for all.
        C4: eps is finite and > 0.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Peebles & Xie 2022, arXiv:2212.09748; RLX `Op::AdaLayerNorm`.
    """

    eps: float = 1e-6
    rms: bool = False

    def infer(self, x: TensorType, scale: TensorType, shift: TensorType) -> TensorType:
        _one_axis(self, -1, x, dtype_label="C3")
        _check_eps(self, self.eps)
        for name, found in (("scale", scale), ("shift", shift)):
            _check_dtype(self, x, name, found)
            text = f"{name} is required to broadcast to x: {x}; got {found}. Reshape it."
            self.require("C2", found.rank <= x.rank, text)
            aligned = x.shape[x.rank - found.rank :]
            wanted = tuple(1 if d == 1 else w for d, w in zip(found.shape, aligned, strict=True))
            self.require_same_dims("C2", found.shape, wanted, text)
        return x

    def decompose(self, x: Value, scale: Value, shift: Value) -> Value:
        wide = _wide(x)
        last = x.rank - 1
        if self.rms:
            normal = wide * _rsqrt((wide * wide).mean(last, keepdims=True) + self.eps)
        else:
            normal = _standardised(wide, (last,), self.eps)
        return (normal * (_wide(scale) + 1.0) + _wide(shift)).convert(x.dtype)


def _one_axis(op: Op, axis: int, x: TensorType, dtype_label: str = "C2") -> TensorType:
    op.require(
        "C1",
        -x.rank <= axis < x.rank,
        lambda: (
            f"axis is required to be in range for x: {x}, −{x.rank} ≤ axis < {x.rank}; "
            f"got {axis}. Choose another axis."
        ),
    )
    op.require(
        dtype_label,
        x.dtype.is_float,
        lambda: f"x is required to be floating; got {x}. Convert it.",
        DTypeError,
    )
    return x


def _check_eps(op: Op, eps: float) -> None:
    op.require(
        "C4",
        math.isfinite(eps) and eps > 0,
        f"eps is required to be finite and > 0; got {eps}. Use a small positive number.",
    )


def _check_dtype(op: Op, x: TensorType, name: str, found: TensorType) -> None:
    op.require(
        "C3",
        found.dtype is x.dtype,
        f"{name} is required to have the dtype of x: {x}; got {found}. Convert one of them.",
        DTypeError,
    )


def _affine_norm(op: Op, axis: int, eps: float, x: TensorType, **vectors: TensorType) -> TensorType:
    _one_axis(op, axis, x, dtype_label="C3")
    size = x.shape[axis]
    wanted = TensorType(x.dtype, (size,))
    for name, found in vectors.items():
        _check_dtype(op, x, name, found)
        op.require_same_dims(
            "C2",
            found.shape,
            wanted.shape,
            f"{name} is required to be {wanted}, axis {axis % x.rank} of x: {x}; "
            f"got {found}. Pass one number for each element of that axis.",
        )
    _check_eps(op, eps)
    return x


def _wide(x: Value) -> Value:
    return x.convert(x.dtype.compute)


def _rsqrt(x: Value) -> Value:
    from rlx.ops.transcendental import Rsqrt

    return Rsqrt()(x)


def _standardised(wide: Value, axes: Sequence[int], eps: float) -> Value:
    centred = wide - wide.mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes, keepdims=True)
    return centred * _rsqrt(variance + eps)


def _affine(normal: Value, axis: int, gamma: Value, beta: Value) -> Value:
    shape: Shape = normal.shape
    gain = _along(_wide(gamma), axis, shape)
    return normal * gain + _along(_wide(beta), axis, shape)


def _along(vector: Value, axis: int, shape: Shape) -> Value:
    from rlx.ops.shape import BroadcastInDim

    return BroadcastInDim(shape=shape, broadcast_dimensions=(axis % len(shape),))(vector)
