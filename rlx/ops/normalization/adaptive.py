"""What diffusion transformers add to a norm: gains, offsets and gates computed per example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.ir.op import Op, define_op
from rlx.ops.normalization import moments
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


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
        moments.one_axis(self, -1, x, dtype_label="C3")
        moments.check_eps(self, self.eps)
        for name, found in (("scale", scale), ("shift", shift)):
            moments.check_dtype(self, x, name, found)
            moments.check_stretch(self, "C2", x, name, found)
        return x

    def decompose(self, x: Value, scale: Value, shift: Value) -> Value:
        wide = moments.wide(x)
        last = x.rank - 1
        if self.rms:
            normal = wide * moments.rsqrt((wide * wide).mean(last, keepdims=True) + self.eps)
        else:
            normal = moments.standardised(wide, (last,), self.eps)
        return (normal * (moments.wide(scale) + 1.0) + moments.wide(shift)).convert(x.dtype)


@define_op("gated_residual")
class GatedResidual(Op):
    """A branch added to its input through a gate.

    y = x + gate * branch

    Inputs:
        x: float[...]
        y: float[...]      the branch, same shape as x.
        gate: float[...]   broadcasts to x.

    Result:
        Same type as x.

    Constraints:
        C1: y has the shape of x.
        C2: gate broadcasts to the shape of x.
        C3: one floating dtype for all.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Peebles & Xie 2022, arXiv:2212.09748; RLX `Op::GatedResidual`.
    """

    def infer(self, x: TensorType, y: TensorType, gate: TensorType) -> TensorType:
        moments.check_float(self, x, "C3")
        text = f"y is required to have the shape of x: {x}; got {y}. Broadcast it."
        self.require_same_dims("C1", y.shape, x.shape, text)
        moments.check_stretch(self, "C2", x, "gate", gate)
        for name, found in (("y", y), ("gate", gate)):
            moments.check_dtype(self, x, name, found)
        return x

    def decompose(self, x: Value, y: Value, gate: Value) -> Value:
        wide = (moments.wide(v) for v in (x, gate, y))
        base, factor, branch = wide
        return (base + factor * branch).convert(x.dtype)
