"""The norms with a learned gain and offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import dims
from rlx.errors import InconclusiveDimError
from rlx.ir.op import Op, define_op
from rlx.ops.normalization import moments
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("layer_norm")
class LayerNorm(Op):
    """Layer normalisation along one axis, with the biased variance.

    y = (x − mean(x)) / sqrt(mean((x − mean(x))²) + eps) * gamma + beta

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        gamma: float[D]         gain.
        beta: float[D]          offset.

    Attributes:
        axis: position of D in x; negative counts from the end.
        eps: added to the variance, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: axis is in range for x.
        C2: shape(gamma) = shape(beta) = [D].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Ba et al. 2016, arXiv:1607.06450; RLX `Op::LayerNorm`.
    """

    axis: int = -1
    eps: float = 1e-5

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        return moments.affine_norm(self, self.axis, self.eps, x, gamma=gamma, beta=beta)

    def decompose(self, x: Value, gamma: Value, beta: Value) -> Value:
        wide = moments.wide(x)
        normal = moments.standardised(wide, (self.axis % x.rank,), self.eps)
        return moments.affine(normal, self.axis, gamma, beta).convert(x.dtype)


@define_op("layer_norm2d")
class LayerNorm2d(Op):
    """Layer normalisation over the channels of each pixel of an NCHW tensor.

    y = (x − mean(x)) / sqrt(mean((x − mean(x))²) + eps) * gamma + beta, statistics over C

    Inputs:
        x: float[N, C, H, W]
        gamma: float[C]   gain.
        beta: float[C]    offset.

    Attributes:
        eps: added to the variance, in units of x²; > 0.

    Result:
        Same type as x.

    Constraints:
        C1: x has rank 4.
        C2: shape(gamma) = shape(beta) = [C].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Liu et al. 2022, arXiv:2201.03545; RLX `Op::LayerNorm2d`.
    """

    eps: float = 1e-6

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        self.require(
            "C1", x.rank == 4, f"x is required to be [N, C, H, W]; got {x}. Reshape it to rank 4."
        )
        return moments.affine_norm(self, 1, self.eps, x, gamma=gamma, beta=beta)

    def decompose(self, x: Value, gamma: Value, beta: Value) -> Value:
        return LayerNorm(axis=1, eps=self.eps)(x, gamma, beta)


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
        return moments.affine_norm(self, self.axis, self.eps, x, gamma=gamma, beta=beta)

    def decompose(self, x: Value, gamma: Value, beta: Value) -> Value:
        wide = moments.wide(x)
        mean_square = (wide * wide).mean(self.axis, keepdims=True)
        normal = wide * moments.rsqrt(mean_square + self.eps)
        return moments.affine(normal, self.axis, gamma, beta).convert(x.dtype)


@define_op("group_norm")
class GroupNorm(Op):
    """Group normalisation of [N, C, …] or [N, …, C]: over each group of channels and all places.

    y = (x − mean(x)) / sqrt(var(x) + eps) * gamma + beta, statistics over (C / num_groups, …)

    Inputs:
        x: float[N, C, ...], or with C at any later place.
        gamma: float[C]   gain.
        beta: float[C]    offset.

    Attributes:
        num_groups: how many groups of neighbouring channels.
        eps: added to the biased variance, in units of x²; > 0.
        axis: position of C in x; negative counts from the end.

    Result:
        Same type as x.

    Constraints:
        C1: x has at least the axes N and C, and axis is one of them behind N.
        C2: shape(gamma) = shape(beta) = [C].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.
        C5: num_groups > 0 divides C.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Wu & He 2018, arXiv:1803.08494; RLX `Op::GroupNorm`.
    """

    num_groups: int
    eps: float = 1e-5
    axis: int = 1

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        self.require(
            "C1", x.rank >= 2, f"x is required to have axes N and C; got {x}. Add the missing axis."
        )
        self.require(
            "C1",
            self.axis % x.rank != 0,
            f"axis is required to be that of C, behind N, in x: {x}; got {self.axis}. "
            "Choose another axis.",
        )
        result = moments.affine_norm(self, self.axis, self.eps, x, gamma=gamma, beta=beta)
        channels = x.shape[self.axis]
        text = (
            f"num_groups is required to divide C = {channels}, axis {self.axis % x.rank} of x: "
            f"{x}; got {self.num_groups}. Choose a divisor of C."
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
        axis = self.axis % x.rank
        size = dims.exact_div(x.shape[axis], self.num_groups)
        shape = (*x.shape[:axis], self.num_groups, size, *x.shape[axis + 1 :])
        grouped = moments.wide(x).reshape(*shape)
        axes = tuple(a for a in range(1, grouped.rank) if a != axis)
        normal = moments.standardised(grouped, axes, self.eps)
        return moments.affine(normal.reshape(*x.shape), axis, gamma, beta).convert(x.dtype)


@define_op("batch_norm_inference")
class BatchNormInference(Op):
    """Batch normalisation with given statistics; features are the last axis, or another one.

    y = (x − mean) / sqrt(variance + eps) * gamma + beta

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        gamma: float[D]      gain.
        beta: float[D]       offset.
        mean: float[D]       in units of x.
        variance: float[D]   in units of x².

    Attributes:
        eps: added to the variance, in units of x²; > 0.
        axis: position of D in x; negative counts from the end.

    Result:
        Same type as x.

    Constraints:
        C1: axis is in range for x.
        C2: gamma, beta, mean and variance have shape [D].
        C3: one floating dtype for all.
        C4: eps is finite and > 0.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167; RLX `Op::BatchNormInference`.
    """

    eps: float = 1e-5
    axis: int = -1

    def infer(
        self,
        x: TensorType,
        gamma: TensorType,
        beta: TensorType,
        mean: TensorType,
        variance: TensorType,
    ) -> TensorType:
        return moments.affine_norm(
            self, self.axis, self.eps, x, gamma=gamma, beta=beta, mean=mean, variance=variance
        )

    def decompose(self, x: Value, gamma: Value, beta: Value, mean: Value, variance: Value) -> Value:
        # One factor for each feature, computed before the broadcast, as Flax does it.
        scale = moments.rsqrt(moments.wide(variance) + self.eps) * moments.wide(gamma)
        centred = moments.wide(x) - moments.along(moments.wide(mean), self.axis, x.shape)
        normal = centred * moments.along(scale, self.axis, x.shape)
        return (normal + moments.along(moments.wide(beta), self.axis, x.shape)).convert(x.dtype)
