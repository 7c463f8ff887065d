"""Gradients of the norms; statistics are computed again from x."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx import dims
from rlx.ir.op import Op, define_op
from rlx.ops.backward.gradients import along, check_gradient, others, size_at, sum_to, wide
from rlx.ops.normalization import (
    AdaLayerNorm,
    BatchNormInference,
    GatedResidual,
    GroupNorm,
    LayerNorm,
    RmsNorm,
)
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("layer_norm_backward_input")
class LayerNormBackwardInput(Op):
    """Gradient of layer_norm by its input.

    n = (x − mean(x)) · r, r = 1 / sqrt(var(x) + eps);  g = dy · gamma;
    dx = r · (g − mean(g) − n · mean(g · n))

    Inputs:
        x: float[..., D, ...]
        gamma: float[D]
        dy: float[..., D, ...]   gradient by the result.

    Attributes:
        axis: of layer_norm.
        eps: of layer_norm.

    Result:
        Same type as x.

    Constraints:
        C1: layer_norm takes x and gamma.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::LayerNormBackwardInput`.
    """

    axis: int = -1
    eps: float = 1e-5

    def infer(self, x: TensorType, gamma: TensorType, dy: TensorType) -> TensorType:
        forward = LayerNorm(axis=self.axis, eps=self.eps)
        check_gradient(self, forward, (x, gamma, gamma), dy=dy)
        return x

    def decompose(self, x: Value, gamma: Value, dy: Value) -> Value:
        upstream = wide(dy) * along(wide(gamma), self.axis, x.shape)
        axes = (self.axis % x.rank,)
        return _through_statistics(wide(x), upstream, axes, self.eps).convert(x.dtype)


@define_op("layer_norm_backward_gamma")
class LayerNormBackwardGamma(Op):
    """Gradient of layer_norm by its gain; that by beta is a plain sum of dy.

    dgamma = Σ dy · (x − mean(x)) / sqrt(var(x) + eps) over all other axes

    Inputs:
        x: float[..., D, ...]
        dy: float[..., D, ...]   gradient by the result.

    Attributes:
        axis: of layer_norm.
        eps: of layer_norm.

    Result:
        float[D]

    Constraints:
        C1: layer_norm takes x.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::LayerNormBackwardGamma`.
    """

    axis: int = -1
    eps: float = 1e-5

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        vector = x.with_shape((size_at(x, self.axis),))
        forward = LayerNorm(axis=self.axis, eps=self.eps)
        check_gradient(self, forward, (x, vector, vector), dy=dy)
        return vector

    def decompose(self, x: Value, dy: Value) -> Value:
        normal, _ = _standardised(wide(x), (self.axis % x.rank,), self.eps)
        return (wide(dy) * normal).sum(others(x.rank, self.axis)).convert(x.dtype)


@define_op("rms_norm_backward_input")
class RmsNormBackwardInput(Op):
    """Gradient of rms_norm by its input.

    n = x · r, r = 1 / sqrt(mean(x²) + eps);  g = dy · gamma;  dx = r · (g − n · mean(g · n))

    Inputs:
        x: float[..., D, ...]
        gamma: float[D]
        beta: float[D]           not read.
        dy: float[..., D, ...]   gradient by the result.

    Attributes:
        axis: of rms_norm.
        eps: of rms_norm.

    Result:
        Same type as x.

    Constraints:
        C1: rms_norm takes x, gamma and beta.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::RmsNormBackwardInput`.
    """

    axis: int = -1
    eps: float = 1e-6

    def infer(
        self, x: TensorType, gamma: TensorType, beta: TensorType, dy: TensorType
    ) -> TensorType:
        check_gradient(self, RmsNorm(axis=self.axis, eps=self.eps), (x, gamma, beta), dy=dy)
        return x

    def decompose(self, x: Value, gamma: Value, beta: Value, dy: Value) -> Value:
        del beta
        upstream = wide(dy) * along(wide(gamma), self.axis, x.shape)
        return _through_rms(wide(x), upstream, self.axis, self.eps).convert(x.dtype)


@define_op("rms_norm_backward_gamma")
class RmsNormBackwardGamma(Op):
    """Gradient of rms_norm by its gain.

    dgamma = Σ dy · x / sqrt(mean(x²) + eps) over all other axes

    Inputs:
        x: float[..., D, ...]
        gamma: float[D]          not read.
        beta: float[D]           not read.
        dy: float[..., D, ...]   gradient by the result.

    Attributes:
        axis: of rms_norm.
        eps: of rms_norm.

    Result:
        Same type as gamma.

    Constraints:
        C1: rms_norm takes x, gamma and beta.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::RmsNormBackwardGamma`.
    """

    axis: int = -1
    eps: float = 1e-6

    def infer(
        self, x: TensorType, gamma: TensorType, beta: TensorType, dy: TensorType
    ) -> TensorType:
        check_gradient(self, RmsNorm(axis=self.axis, eps=self.eps), (x, gamma, beta), dy=dy)
        return gamma

    def decompose(self, x: Value, gamma: Value, beta: Value, dy: Value) -> Value:
        del gamma, beta
        normal = wide(x) * _rms_factor(wide(x), self.axis, self.eps)
        return (wide(dy) * normal).sum(others(x.rank, self.axis)).convert(x.dtype)


@define_op("rms_norm_backward_beta")
class RmsNormBackwardBeta(Op):
    """Gradient of rms_norm by its offset.

    dbeta = Σ dy over all other axes

    Inputs:
        x: float[..., D, ...]    not read.
        gamma: float[D]          not read.
        beta: float[D]           not read.
        dy: float[..., D, ...]   gradient by the result.

    Attributes:
        axis: of rms_norm.
        eps: of rms_norm.

    Result:
        Same type as beta.

    Constraints:
        C1: rms_norm takes x, gamma and beta.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::RmsNormBackwardBeta`.
    """

    axis: int = -1
    eps: float = 1e-6

    def infer(
        self, x: TensorType, gamma: TensorType, beta: TensorType, dy: TensorType
    ) -> TensorType:
        check_gradient(self, RmsNorm(axis=self.axis, eps=self.eps), (x, gamma, beta), dy=dy)
        return beta

    def decompose(self, x: Value, gamma: Value, beta: Value, dy: Value) -> Value:
        del gamma, beta
        return wide(dy).sum(others(x.rank, self.axis)).convert(x.dtype)


@define_op("group_norm_backward_input")
class GroupNormBackwardInput(Op):
    """Gradient of group_norm by its input.

    As that of layer_norm, with means over a group of channels and all places.

    Inputs:
        x: float[N, C, ...]
        gamma: float[C]
        beta: float[C]         not read.
        dy: float[N, C, ...]   gradient by the result.

    Attributes:
        num_groups: of group_norm.
        eps: of group_norm.

    Result:
        Same type as x.

    Constraints:
        C1: group_norm takes x, gamma and beta.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::GroupNormBackwardInput`.
    """

    num_groups: int
    eps: float = 1e-5

    def infer(
        self, x: TensorType, gamma: TensorType, beta: TensorType, dy: TensorType
    ) -> TensorType:
        forward = GroupNorm(num_groups=self.num_groups, eps=self.eps)
        check_gradient(self, forward, (x, gamma, beta), dy=dy)
        return x

    def decompose(self, x: Value, gamma: Value, beta: Value, dy: Value) -> Value:
        del beta
        upstream = wide(dy) * along(wide(gamma), 1, x.shape)
        grouped, g = (_grouped(v, self.num_groups) for v in (wide(x), upstream))
        axes = tuple(range(2, grouped.rank))
        dx = _through_statistics(grouped, g, axes, self.eps)
        return dx.reshape(*x.shape).convert(x.dtype)


@define_op("group_norm_backward_gamma")
class GroupNormBackwardGamma(Op):
    """Gradient of group_norm by its gain.

    dgamma = Σ dy · (x − mean(x)) / sqrt(var(x) + eps) over the batch and all places

    Inputs:
        x: float[N, C, ...]
        dy: float[N, C, ...]   gradient by the result.

    Attributes:
        num_groups: of group_norm.
        eps: of group_norm.

    Result:
        float[C]

    Constraints:
        C1: group_norm takes x.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::GroupNormBackwardGamma`.
    """

    num_groups: int
    eps: float = 1e-5

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        vector = x.with_shape((size_at(x, 1),))
        forward = GroupNorm(num_groups=self.num_groups, eps=self.eps)
        check_gradient(self, forward, (x, vector, vector), dy=dy)
        return vector

    def decompose(self, x: Value, dy: Value) -> Value:
        grouped = _grouped(wide(x), self.num_groups)
        normal, _ = _standardised(grouped, tuple(range(2, grouped.rank)), self.eps)
        product = wide(dy) * normal.reshape(*x.shape)
        return product.sum(others(x.rank, 1)).convert(x.dtype)


@define_op("group_norm_backward_beta")
class GroupNormBackwardBeta(Op):
    """Gradient of group_norm by its offset.

    dbeta = Σ dy over the batch and all places

    Inputs:
        x: float[N, C, ...]    not read.
        dy: float[N, C, ...]   gradient by the result.

    Attributes:
        num_groups: of group_norm.
        eps: of group_norm.

    Result:
        float[C]

    Constraints:
        C1: group_norm takes x.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::GroupNormBackwardBeta`.
    """

    num_groups: int
    eps: float = 1e-5

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        vector = x.with_shape((size_at(x, 1),))
        forward = GroupNorm(num_groups=self.num_groups, eps=self.eps)
        check_gradient(self, forward, (x, vector, vector), dy=dy)
        return vector

    def decompose(self, x: Value, dy: Value) -> Value:
        return wide(dy).sum(others(x.rank, 1)).convert(x.dtype)


@define_op("batch_norm_inference_backward")
class BatchNormInferenceBackward(Op):
    """Gradients of batch_norm_inference by all its inputs.

    r = 1 / sqrt(variance + eps), g = dy · gamma · r;  dx = g;  dgamma = Σ dy · (x − mean) · r;
    dbeta = Σ dy;  dmean = −Σ g;  dvariance = −Σ g · (x − mean) · r² / 2

    Inputs:
        x: float[..., D]
        gamma: float[D]
        beta: float[D]       not read.
        mean: float[D]
        variance: float[D]
        dy: float[..., D]    gradient by the result.

    Attributes:
        eps: of batch_norm_inference.

    Result:
        dx, dgamma, dbeta, dmean and dvariance, of the types of the inputs.

    Constraints:
        C1: batch_norm_inference takes x, gamma, beta, mean and variance.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; results rounded once.
    Source: RLX's backward of `Op::BatchNormInference`.
    """

    eps: float = 1e-5

    def infer(
        self,
        x: TensorType,
        gamma: TensorType,
        beta: TensorType,
        mean: TensorType,
        variance: TensorType,
        dy: TensorType,
    ) -> tuple[TensorType, ...]:
        primals = (x, gamma, beta, mean, variance)
        check_gradient(self, BatchNormInference(eps=self.eps), primals, dy=dy)
        return primals

    def decompose(
        self, x: Value, gamma: Value, beta: Value, mean: Value, variance: Value, dy: Value
    ) -> tuple[Value, ...]:
        del beta
        rows = others(x.rank, -1)
        r = _rsqrt(wide(variance) + self.eps)
        upstream = wide(dy)
        centred = wide(x) - along(wide(mean), -1, x.shape)
        # Sums over rows first, so that factors of a feature multiply once.
        total, moment = upstream.sum(rows), (upstream * centred).sum(rows)
        gain = wide(gamma) * r
        results = (
            upstream * along(gain, -1, x.shape),
            moment * r,
            total,
            -(total * gain),
            moment * gain * r * r * -0.5,
        )
        return tuple(v.convert(x.dtype) for v in results)


@define_op("ada_layer_norm_backward")
class AdaLayerNormBackward(Op):
    """Gradients of ada_layer_norm by all its inputs.

    g = dy · (1 + scale);  dx as in layer_norm or rms_norm;  dscale = Σ dy · norm(x);
    dshift = Σ dy, over the axes along which scale and shift are repeated

    Inputs:
        x: float[..., D]
        scale: float[..., D]   broadcasts to x.
        shift: float[..., D]   broadcasts to x; not read.
        dy: float[..., D]      gradient by the result.

    Attributes:
        eps: of ada_layer_norm.
        rms: of ada_layer_norm.

    Result:
        dx, dscale and dshift, of the types of the inputs.

    Constraints:
        C1: ada_layer_norm takes x, scale and shift.
        C2: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; results rounded once.
    Source: RLX's backward of `Op::AdaLayerNorm`.
    """

    eps: float = 1e-6
    rms: bool = False

    def infer(
        self, x: TensorType, scale: TensorType, shift: TensorType, dy: TensorType
    ) -> tuple[TensorType, ...]:
        forward = AdaLayerNorm(eps=self.eps, rms=self.rms)
        check_gradient(self, forward, (x, scale, shift), dy=dy)
        return x, scale, shift

    def decompose(self, x: Value, scale: Value, shift: Value, dy: Value) -> tuple[Value, ...]:
        upstream, last = wide(dy), x.rank - 1
        g = upstream * (wide(scale) + 1.0)
        if self.rms:
            normal = wide(x) * _rms_factor(wide(x), last, self.eps)
            dx = _through_rms(wide(x), g, last, self.eps)
        else:
            normal, _ = _standardised(wide(x), (last,), self.eps)
            dx = _through_statistics(wide(x), g, (last,), self.eps)
        results = (dx, sum_to(upstream * normal, scale.shape), sum_to(upstream, shift.shape))
        return tuple(v.convert(x.dtype) for v in results)


@define_op("gated_residual_backward")
class GatedResidualBackward(Op):
    """Gradients of gated_residual by all its inputs.

    dx = dout;  dy = gate · dout;  dgate = Σ y · dout over the axes along which gate is repeated

    Inputs:
        x: float[...]      not read.
        y: float[...]      the branch.
        gate: float[...]   broadcasts to x.
        dout: float[...]   gradient by the result.

    Result:
        dx, dy and dgate, of the types of the inputs.

    Constraints:
        C1: gated_residual takes x, y and gate.
        C2: dout has the type of its result.

    Numerics: narrower floats than f32 compute in f32; results rounded once.
    Source: RLX's backward of `Op::GatedResidual`.
    """

    def infer(
        self, x: TensorType, y: TensorType, gate: TensorType, dout: TensorType
    ) -> tuple[TensorType, ...]:
        check_gradient(self, GatedResidual(), (x, y, gate), dout=dout)
        return x, y, gate

    def decompose(self, x: Value, y: Value, gate: Value, dout: Value) -> tuple[Value, ...]:
        upstream = wide(dout)
        d_branch = wide(gate) * upstream
        d_gate = sum_to(wide(y) * upstream, gate.shape)
        return dout, d_branch.convert(x.dtype), d_gate.convert(x.dtype)


def _rsqrt(x: Value) -> Value:
    from rlx.ops.transcendental import Rsqrt

    return Rsqrt()(x)


def _standardised(x: Value, axes: Sequence[int], eps: float) -> tuple[Value, Value]:
    """The normalised values, and the factor of the centred ones."""
    centred = x - x.mean(axes, keepdims=True)
    factor = _rsqrt((centred * centred).mean(axes, keepdims=True) + eps)
    return centred * factor, factor


def _rms_factor(x: Value, axis: int, eps: float) -> Value:
    return _rsqrt((x * x).mean(axis, keepdims=True) + eps)


def _through_statistics(x: Value, g: Value, axes: Sequence[int], eps: float) -> Value:
    """The gradient by x of Σ g · (x − mean) / sqrt(var + eps)."""
    normal, factor = _standardised(x, axes, eps)
    along_normal = (g * normal).mean(axes, keepdims=True)
    return factor * (g - g.mean(axes, keepdims=True) - normal * along_normal)


def _through_rms(x: Value, g: Value, axis: int, eps: float) -> Value:
    """The gradient by x of Σ g · x / sqrt(mean(x²) + eps)."""
    factor = _rms_factor(x, axis, eps)
    normal = x * factor
    return factor * (g - normal * (g * normal).mean(axis, keepdims=True))


def _grouped(x: Value, groups: int) -> Value:
    batch, channels, *places = x.shape
    return x.reshape(batch, groups, dims.exact_div(channels, groups), *places)
