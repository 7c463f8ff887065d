"""Fake quantisation: numbers rounded to a grid but kept as floats, and how gradients pass it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from rlx.errors import DTypeError
from rlx.ir import operators
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_axis
from rlx.ops.compare import Select
from rlx.ops.quantized.checks import require_float, require_shape
from rlx.ops.quantized.lanes import GRAPH
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.dtypes import DType
    from rlx.ir.graph import Value

TINY = 1e-12
"""The least scale, so that zeros divide by something."""


class ScaleMode(enum.Enum):
    """Where a fake-quantising op takes its scale from."""

    PER_BATCH = "per_batch"
    EMA = "ema"
    FIXED = "fixed"


class SteKind(enum.Enum):
    """How a gradient passes the rounding (a straight-through estimator)."""

    IDENTITY = "identity"
    CLIPPED_IDENTITY = "clipped_identity"
    TANH = "tanh"
    HARD_TANH = "hard_tanh"


@define_op("fake_quantize")
class FakeQuantize(Op):
    """Numbers rounded to the grid of a few bits, with a scale from their greatest size.

    y = clamp(round(x / s), −q, q) · s,  q = 2^(bits−1) − 1,  s = max(max|x| / q, 1e-12)

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        state: float[D]         the scale so far (EMA) or the scale (FIXED); [1] without an axis.

    Attributes:
        bits: 8, 4 or 2.
        axis: where scales differ; None for one scale.
        ste: how a gradient passes; the result does not depend on it.
        scale_mode: s of this call (PER_BATCH), decay · state + (1 − decay) · s (EMA; s itself
            where the state is ≤ 0), or the state as it is (FIXED).
        decay: how much of the state EMA keeps, in [0, 1].

    Result:
        Same type as x; with EMA a second result, the new state, which has the type of state.

    Constraints:
        C1: x is floating.
        C2: bits is 8, 4 or 2.
        C3: axis is None or in range for x.
        C4: state is there for EMA and FIXED only, with the shape [D] or [1].
        C5: state has the dtype that x computes in (f32, or f64 for f64).
        C6: decay is in [0, 1].

    Numerics: half way rounds to even; narrower floats than f32 compute in f32.
    Source: RLX `Op::FakeQuantize`, which changes the state in place.
    """

    bits: int = 8
    axis: int | None = None
    ste: SteKind = SteKind.IDENTITY
    scale_mode: ScaleMode = ScaleMode.PER_BATCH
    decay: float = 0.99

    def infer(
        self, x: TensorType, state: TensorType | None = None
    ) -> TensorType | tuple[TensorType, TensorType]:
        _check(self, x)
        stateful = self.scale_mode is not ScaleMode.PER_BATCH
        self.require(
            "C4",
            (state is not None) == stateful,
            lambda: (
                f"state is required for EMA and FIXED, and only for them; got "
                f"{self.scale_mode.value} with {state or 'none'}. Pass it, or change scale_mode."
            ),
        )
        self.require(
            "C6",
            0 <= self.decay <= 1,
            lambda: f"decay is required to be in [0, 1]; got {self.decay}. It is a weight.",
        )
        if state is None:
            return x
        require_shape(self, "C4", "state", state, _scale_shape(self.axis, x.shape))
        _require_compute(self, "C5", "state", state, x)
        return (x, state) if self.scale_mode is ScaleMode.EMA else x

    def decompose(self, x: Value, state: Value | None = None) -> Value | tuple[Value, Value]:
        wide = x.convert(x.dtype.compute)
        scale = _batch_scale(wide, self.bits, self.axis)
        if self.scale_mode is ScaleMode.FIXED and state is not None:
            scale = state
        elif self.scale_mode is ScaleMode.EMA and state is not None:
            mixed = state * self.decay + scale * (1 - self.decay)
            scale = _select(state > 0.0, mixed, scale)
        result = _on_grid(wide, _spread(scale, self.axis, x.rank), self.bits).convert(x.dtype)
        return (result, scale) if self.scale_mode is ScaleMode.EMA else result


@define_op("fake_quantize_lsq")
class FakeQuantizeLsq(Op):
    """Numbers rounded to the grid of a few bits with a scale that is learned.

    y = clamp(round(x / scale), −q, q) · scale,  q = 2^(bits−1) − 1

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        scale: float[D]         [1] without an axis.

    Attributes:
        bits: 8, 4 or 2.
        axis: where scales differ; None for one scale.

    Result:
        Same type as x.

    Constraints:
        C1: x is floating.
        C2: bits is 8, 4 or 2.
        C3: axis is None or in range for x.
        C4: scale has the shape [D], or [1] without an axis.
        C5: scale has the dtype that x computes in (f32, or f64 for f64).

    Numerics: half way rounds to even; narrower floats than f32 compute in f32.
    Source: Esser et al. 2020, arXiv:1902.08153; RLX `Op::FakeQuantizeLSQ`.
    """

    bits: int = 8
    axis: int | None = None

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        _check(self, x)
        _check_scale(self, x, scale)
        return x

    def decompose(self, x: Value, scale: Value) -> Value:
        wide = x.convert(x.dtype.compute)
        return _on_grid(wide, _spread(scale, self.axis, x.rank), self.bits).convert(x.dtype)


@define_op("fake_quantize_backward")
class FakeQuantizeBackward(Op):
    """Gradient through fake quantisation, which is flat nearly everywhere, by an estimator.

    dx = dy · e(x / s):  1 (IDENTITY), [|x| ≤ q·s] (CLIPPED_IDENTITY), 1 − tanh²(x / s) (TANH),
    max(0, 1 − |x / (q·s)|) (HARD_TANH)

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        dy: float[..., D, ...]  gradient of the result.
        scale: float[D]         s where the forward op had a state; s of x when left out.

    Attributes:
        bits: 8, 4 or 2.
        axis: where scales differ; None for one scale.
        ste: which estimator.

    Result:
        Same type as x.

    Constraints:
        C1: x is floating.
        C2: bits is 8, 4 or 2.
        C3: axis is None or in range for x.
        C4: scale has the shape [D], or [1] without an axis.
        C5: scale has the dtype that x computes in (f32, or f64 for f64).
        C6: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32.
    Source: RLX `Op::FakeQuantizeBackward`.
    """

    bits: int = 8
    axis: int | None = None
    ste: SteKind = SteKind.IDENTITY

    def infer(self, x: TensorType, dy: TensorType, scale: TensorType | None = None) -> TensorType:
        _check(self, x)
        if scale is not None:
            _check_scale(self, x, scale)
        _require_same(self, "C6", x, dy)
        return x

    def decompose(self, x: Value, dy: Value, scale: Value | None = None) -> Value:
        if self.ste is SteKind.IDENTITY:
            return dy
        wide, slope = x.convert(x.dtype.compute), dy.convert(x.dtype.compute)
        step = _batch_scale(wide, self.bits, self.axis) if scale is None else scale
        limit = step * float(_most(self.bits))
        if scale is None:  # rounding must not push the greatest element out of its own range
            limit = operators.binary("Max", limit, _greatest(wide, self.axis))
        step, limit = (
            operators.broadcast_to(_spread(v, self.axis, x.rank), x.shape) for v in (step, limit)
        )
        match self.ste:
            case SteKind.TANH:
                bent = (wide / step).tanh()
                result = slope * (1.0 - bent * bent)
            case SteKind.HARD_TANH:
                result = slope * operators.binary("Max", 1.0 - abs(wide / limit), 0.0)
            case _:
                result = _select(abs(wide) <= limit, slope, slope * 0.0)
        return result.convert(x.dtype)


@define_op("fake_quantize_lsq_backward_x")
class FakeQuantizeLsqBackwardX(Op):
    """Gradient of learned-scale fake quantisation with respect to x.

    dx = dy where |x / scale| ≤ q, else 0

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        scale: float[D]         [1] without an axis.
        dy: float[..., D, ...]  gradient of the result.

    Attributes:
        bits: 8, 4 or 2.
        axis: where scales differ; None for one scale.

    Result:
        Same type as x.

    Constraints:
        C1: x is floating.
        C2: bits is 8, 4 or 2.
        C3: axis is None or in range for x.
        C4: scale has the shape [D], or [1] without an axis.
        C5: scale has the dtype that x computes in (f32, or f64 for f64).
        C6: dy has the type of x.

    Source: Esser et al. 2020, arXiv:1902.08153; RLX's LSQ backward.
    """

    bits: int = 8
    axis: int | None = None

    def infer(self, x: TensorType, scale: TensorType, dy: TensorType) -> TensorType:
        _check(self, x)
        _check_scale(self, x, scale)
        _require_same(self, "C6", x, dy)
        return x

    def decompose(self, x: Value, scale: Value, dy: Value) -> Value:
        steps = GRAPH.divide(x.convert(x.dtype.compute), _spread(scale, self.axis, x.rank))
        zeros = operators.broadcast_to(operators.constant(0, dy.dtype), dy.shape)
        return _select(abs(steps) <= float(_most(self.bits)), dy, zeros)


@define_op("fake_quantize_lsq_backward_scale")
class FakeQuantizeLsqBackwardScale(Op):
    """Gradient of learned-scale fake quantisation with respect to the scale.

    dscale = Σ ψ · dy,  ψ = round(z) − z where |z| ≤ q, else sign(z) · q,  z = x / scale

    Inputs:
        x: float[..., D, ...]   D is the size of `axis`.
        scale: float[D]         [1] without an axis.
        dy: float[..., D, ...]  gradient of the result.

    Attributes:
        bits: 8, 4 or 2.
        axis: where scales differ; None for one scale.

    Result:
        Same type as scale.

    Constraints:
        C1: x is floating.
        C2: bits is 8, 4 or 2.
        C3: axis is None or in range for x.
        C4: scale has the shape [D], or [1] without an axis.
        C5: scale has the dtype that x computes in (f32, or f64 for f64).
        C6: dy has the type of x.

    Source: Esser et al. 2020, arXiv:1902.08153, without its factor 1 / sqrt(n q); RLX's LSQ
    backward.
    """

    bits: int = 8
    axis: int | None = None

    def infer(self, x: TensorType, scale: TensorType, dy: TensorType) -> TensorType:
        _check(self, x)
        _check_scale(self, x, scale)
        _require_same(self, "C6", x, dy)
        return scale

    def decompose(self, x: Value, scale: Value, dy: Value) -> Value:
        most = float(_most(self.bits))
        steps = GRAPH.divide(x.convert(x.dtype.compute), _spread(scale, self.axis, x.rank))
        outside = operators.unary("Sign", steps) * most
        inside = operators.unary("Round", steps) - steps
        slope = _select(abs(steps) <= most, inside, outside) * dy.convert(steps.dtype)
        return slope.sum(_others(self.axis, x.rank)).reshape(scale.shape)


_Grid = (
    FakeQuantize
    | FakeQuantizeLsq
    | FakeQuantizeBackward
    | FakeQuantizeLsqBackwardX
    | FakeQuantizeLsqBackwardScale
)


def _most(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _check(self: _Grid, x: TensorType) -> None:
    require_float(self, "C1", "x", x)
    self.require(
        "C2",
        self.bits in (8, 4, 2),
        lambda: f"bits is required to be 8, 4 or 2; got {self.bits}. Choose one of them.",
    )
    if self.axis is not None:
        require_axis(self, "C3", self.axis, x)


def _check_scale(self: _Grid, x: TensorType, scale: TensorType) -> None:
    require_shape(self, "C4", "scale", scale, _scale_shape(self.axis, x.shape))
    _require_compute(self, "C5", "scale", scale, x)


def _require_compute(op: Op, label: str, name: str, found: TensorType, x: TensorType) -> None:
    wanted: DType = x.dtype.compute
    op.require(
        label,
        found.dtype is wanted,
        lambda: f"{name} is required to be {wanted} for x: {x}; got {found}. Convert it.",
        DTypeError,
    )


def _require_same(op: Op, label: str, x: TensorType, dy: TensorType) -> None:
    def message() -> str:
        return f"dy is required to have the type of x: {x}; got {dy}. It is x's gradient."

    op.require_same_dims(label, dy.shape, x.shape, message)
    op.require(label, dy.dtype is x.dtype, message, DTypeError)


def _scale_shape(axis: int | None, shape: Shape) -> Shape:
    return (1,) if axis is None else (shape[axis],)


def _others(axis: int | None, rank: int) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if i != axis)


def _batch_scale(wide: Value, bits: int, axis: int | None) -> Value:
    """S of these numbers, shaped [D] or [1]; without elements it is the least scale."""
    return operators.binary("Max", GRAPH.divide(_greatest(wide, axis), float(_most(bits))), TINY)


def _greatest(wide: Value, axis: int | None) -> Value:
    """max|x|, shaped [D] or [1]."""
    return abs(wide).max(_others(axis, wide.rank)).reshape(_scale_shape(axis, wide.shape))


def _spread(scale: Value, axis: int | None, rank: int) -> Value:
    """[D] → [1, …, D, …, 1]; [1] → a scalar."""
    if axis is None:
        return scale.reshape(())
    return scale.reshape(tuple(scale.shape[0] if i == axis else 1 for i in range(rank)))


def _on_grid(wide: Value, scale: Value, bits: int) -> Value:
    most = float(_most(bits))
    steps = operators.unary("Round", GRAPH.divide(wide, scale))
    return operators.binary("Min", operators.binary("Max", steps, -most), most) * scale


def _select(condition: Value, yes: Value, no: Value) -> Value:
    result: Value = Select()(condition, yes, no)
    return result
