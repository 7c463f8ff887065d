"""Gradients of cumulative sums, lookups, rotations, complex squares and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.ops.backward.gradients import (
    check_gradient,
    filled,
    forward_types,
    require_type,
    wide,
)
from rlx.ops.compare import Select
from rlx.ops.indexing import Gather, IndexMode, ScatterGeneral, ScatterKind
from rlx.ops.loss import SoftmaxCrossEntropy, SoftmaxCrossEntropyWithLogits, one_hot
from rlx.ops.position import Rope, RopeStyle
from rlx.ops.reduction import CumSum
from rlx.types import Dim, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("cumsum_backward")
class CumsumBackward(Op):
    """Gradient of cumsum: a cumulative sum the other way.

    dx_i = Σ_{j ≥ i} dy_j; without dy_i itself where cumsum is exclusive

    Inputs:
        dy: number[...]   gradient by the result.

    Attributes:
        axis: of cumsum.
        exclusive: of cumsum.
        reverse: of cumsum; the gradient then runs forwards.

    Result:
        Same type as dy.

    Constraints:
        C1: cumsum takes an array of the type of dy.

    Numerics: floats narrower than f32 accumulate in f32; each result is rounded once.
    Source: RLX `Op::CumsumBackward`.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False

    def infer(self, dy: TensorType) -> TensorType:
        forward = CumSum(axis=self.axis, reverse=self.reverse, exclusive=self.exclusive)
        return forward_types(self, forward, (dy,))[0]

    def decompose(self, dy: Value) -> Value:
        return CumSum(axis=self.axis, reverse=not self.reverse, exclusive=self.exclusive)(dy)


@define_op("gather_backward")
class GatherBackward(Op):
    """Gradient of gather by its table: rows of dy, added where they were read.

    dtable = 0; dtable[…, indices[i], …] += dy[…, i, …] for each i

    Inputs:
        dy: T[...]         gradient by the result.
        indices: int[...]  of gather.

    Attributes:
        rows: dim of the table along the axis.
        axis: of gather.

    Result:
        T[dy.dims[:axis], rows, dy.dims[axis + rank(indices):]]. Indices outside are clipped, as
        gather clips them.

    Constraints:
        C1: gather takes a table of that type and indices.
        C2: dy has the type of gather's result.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: RLX `Op::GatherBackward`.
    """

    rows: Dim
    axis: int = 0

    def infer(self, dy: TensorType, indices: TensorType) -> TensorType:
        after = dy.shape[self.axis + indices.rank :]
        table = dy.with_shape((*dy.shape[: self.axis], self.rows, *after))
        check_gradient(self, Gather(axis=self.axis), (table, indices), dy=dy)
        return table

    def decompose(self, dy: Value, indices: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant

        axis, end = self.axis, self.axis + indices.rank
        shape = (*dy.shape[:axis], self.rows, *dy.shape[end:])
        updates = wide(dy)
        added: Value = ScatterGeneral(
            kind=ScatterKind.ADD,
            update_window_dims=(*range(axis), *range(end, dy.rank)),
            inserted_window_dims=(axis,),
            scatter_dims_to_operand_dims=(axis,),
            mode=IndexMode.CLIP,
        )(
            broadcast_to(constant(0, updates.dtype), shape),
            indices.reshape(*indices.shape, 1),
            updates,
        )
        return added.convert(dy.dtype)


@define_op("rope_backward")
class RopeBackward(Op):
    """Gradient of rope by its input: the rotation by the opposite angle.

    dx1 = dy1·cos + dy2·sin;  dx2 = dy2·cos − dy1·sin, for each pair of the first n_rot elements

    Inputs:
        dy: float[B, S, H, D]   gradient by the result, in any of the layouts of rope.
        cos: float[P, W]        of rope.
        sin: float[P, W]        of rope.

    Attributes:
        head_dim: of rope.
        n_rot: of rope.
        style: of rope: which elements form pairs.
        layout: of rope.

    Result:
        Same type as dy.

    Constraints:
        C1: rope takes an array of the type of dy, cos and sin.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::RopeBackward`.
    """

    head_dim: int
    n_rot: int
    style: RopeStyle = RopeStyle.NEOX
    layout: str = "bshd"

    def infer(self, dy: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
        return forward_types(self, self._rope(), (dy, cos, sin))[0]

    def decompose(self, dy: Value, cos: Value, sin: Value) -> Value:
        return self._rope()(dy, cos, -sin)

    def _rope(self) -> Rope:
        return Rope(head_dim=self.head_dim, n_rot=self.n_rot, style=self.style, layout=self.layout)


@define_op("complex_norm_sq_backward")
class ComplexNormSqBackward(Op):
    """Gradient of |z|², as RLX counts it: the Wirtinger derivative by the conjugate of z.

    dz = g · z

    Inputs:
        z: complex[...]
        g: real[...]   gradient by |z|², of the real type of z.

    Result:
        Same type as z. JAX's gradient is 2 · g · conj(z): it counts both parts of z, and
        conjugates.

    Constraints:
        C1: z is complex.
        C2: g is real, of the precision and the shape of z.

    Source: RLX `Op::ComplexNormSqBackward`.
    """

    def infer(self, z: TensorType, g: TensorType) -> TensorType:
        self.require(
            "C1",
            z.dtype.is_complex,
            f"z is required to be complex; got {z}. Convert it.",
            DTypeError,
        )
        require_type(self, "C2", "g", g, TensorType(z.dtype.real, z.shape), "real part of z")
        return z

    def decompose(self, z: Value, g: Value) -> Value:
        from rlx.ops.complex_fft import Complex, Imag, Real

        return Complex()(Real()(z) * g, Imag()(z) * g)


@define_op("softmax_cross_entropy_backward")
class SoftmaxCrossEntropyBackward(Op):
    """Gradient of the softmax cross entropies by the logits.

    dlogits = (softmax(logits) − onehot(labels)) · d_loss for classes, and
    (softmax(logits) · Σ targets − targets) · d_loss for distributions

    Inputs:
        logits: float[..., C]
        labels: int[...], a class for each row (a row whose label is outside [0, C) gets 0), or
            float[..., C], a distribution.
        d_loss: float[...]   gradient by the losses.

    Result:
        Same type as logits.

    Constraints:
        C1: softmax_cross_entropy_with_logits takes logits and labels of integers;
            softmax_cross_entropy takes logits and labels of floats.
        C2: d_loss has the type of the losses.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::SoftmaxCrossEntropyBackward`.
    """

    def infer(self, logits: TensorType, labels: TensorType, d_loss: TensorType) -> TensorType:
        soft = labels.dtype.is_float
        forward = SoftmaxCrossEntropy() if soft else SoftmaxCrossEntropyWithLogits()
        check_gradient(self, forward, (logits, labels), d_loss=d_loss)
        return logits

    def decompose(self, logits: Value, labels: Value, d_loss: Value) -> Value:
        from rlx.ops.normalization import Softmax
        from rlx.ops.shape import BroadcastInDim

        axis = logits.rank - 1
        probabilities: Value = Softmax(axis=-1)(wide(logits))
        spread = BroadcastInDim(shape=logits.shape, broadcast_dimensions=tuple(range(axis)))
        if labels.dtype.is_float:
            targets = wide(labels)
            slope = probabilities * targets.sum(axis, keepdims=True) - targets
            return (slope * spread(wide(d_loss))).convert(logits.dtype)
        chosen = one_hot(labels, logits)
        ones, none = filled(1.0, probabilities), filled(0.0, probabilities)
        hot = Select()(chosen, ones, none)
        counted = probabilities * hot.sum(axis, keepdims=True)
        return ((counted - hot) * spread(wide(d_loss))).convert(logits.dtype)
