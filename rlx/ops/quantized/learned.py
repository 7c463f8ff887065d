"""Weights made of learned pieces: codebooks and splines."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, cast

from rlx import dims
from rlx.dtypes import DType
from rlx.ir import operators
from rlx.ir.op import Op, define_op
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import Gather, ScatterAdd
from rlx.ops.quantized.checks import require_dtype, require_float, require_rank, require_shape
from rlx.ops.shape import DimValue, Iota
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


class SynthWrt(enum.Enum):
    """What a gradient of a product with a codebook weight is with respect to."""

    DX = "dx"
    CODEBOOK = "codebook"


@define_op("synth_reconstruct")
class SynthReconstruct(Op):
    """The weight that indices into a codebook stand for.

    w[n, b·d + t] = codebook[idx[n, b], t]

    Inputs:
        idx: u8[N, B]             an entry for each piece of a row; outside are clipped.
        codebook: float[C, d]     C entries of d numbers.

    Result:
        Dtype of codebook, [N, B·d].

    Constraints:
        C1: idx is u8[N, B].
        C2: codebook is floating [C, d], C ≥ 1.

    Source: RLX `Op::SynthReconstruct` with `SynthKind::Codebook`.
    """

    def infer(self, idx: TensorType, codebook: TensorType) -> TensorType:
        return _synthetic(self, idx, codebook)

    def decompose(self, idx: Value, codebook: Value) -> Value:
        rows, cols = _synthetic(self, idx.type, codebook.type).shape
        return cast("Value", Gather(axis=0)(codebook, idx.convert(DType.I32))).reshape(rows, cols)


@define_op("synth_matmul")
class SynthMatmul(Op):
    """Product with the weight that indices into a codebook stand for.

    y[..., n] = Σ_k x[..., k] · w[n, k],  w[n, b·d + t] = codebook[idx[n, b], t]

    Inputs:
        x: float[..., K]
        idx: u8[N, B]             an entry for each piece of a row; outside are clipped.
        codebook: float[C, d]     C entries of d numbers, B·d = K.

    Result:
        Dtype of x, [..., N].

    Constraints:
        C1: idx is u8[N, B].
        C2: codebook is floating [C, d], C ≥ 1.
        C3: x has the dtype of codebook and at least one axis.
        C4: the last axis of x is B·d.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::SynthMatMul` with `SynthKind::Codebook`.
    """

    def infer(self, x: TensorType, idx: TensorType, codebook: TensorType) -> TensorType:
        weight = _synthetic(self, idx, codebook)
        _require_x(self, x, codebook, weight)
        return TensorType(x.dtype, (*x.shape[:-1], idx.shape[0]))

    def decompose(self, x: Value, idx: Value, codebook: Value) -> Value:
        weight: Value = SynthReconstruct()(idx, codebook)
        product = DotGeneral(lhs_contracting=(x.rank - 1,), rhs_contracting=(1,))
        return cast("Value", product(x, weight))


@define_op("synth_matmul_backward")
class SynthMatmulBackward(Op):
    """Gradient of a product with a codebook weight.

    dx = dy · w,  dcodebook[c, t] = Σ_{n, b: idx[n, b] = c} (dyᵀ · x)[n, b·d + t]

    Inputs:
        x: float[..., K]
        idx: u8[N, B]             an entry for each piece of a row; outside are clipped.
        codebook: float[C, d]     C entries of d numbers, B·d = K.
        dy: float[..., N]         gradient of the product.

    Attributes:
        wrt: what the gradient is with respect to.

    Result:
        The type of x (DX) or of codebook (CODEBOOK).

    Constraints:
        C1: idx is u8[N, B].
        C2: codebook is floating [C, d], C ≥ 1.
        C3: x has the dtype of codebook and at least one axis.
        C4: the last axis of x is B·d.
        C5: dy has the type of the product.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::SynthMatMulBackward`.
    """

    wrt: SynthWrt = SynthWrt.DX

    def infer(
        self, x: TensorType, idx: TensorType, codebook: TensorType, dy: TensorType
    ) -> TensorType:
        weight = _synthetic(self, idx, codebook)
        _require_x(self, x, codebook, weight)
        require_shape(self, "C5", "dy", dy, (*x.shape[:-1], idx.shape[0]))
        require_dtype(self, "C5", "dy", dy, x.dtype)
        return x if self.wrt is SynthWrt.DX else codebook

    def decompose(self, x: Value, idx: Value, codebook: Value, dy: Value) -> Value:
        if self.wrt is SynthWrt.DX:
            weight: Value = SynthReconstruct()(idx, codebook)
            product = DotGeneral(lhs_contracting=(dy.rank - 1,), rhs_contracting=(0,))
            return cast("Value", product(dy, weight))
        leading = tuple(range(x.rank - 1))
        wide = DotGeneral(
            lhs_contracting=leading,
            rhs_contracting=leading,
            preferred_element_type=x.dtype.compute,
        )
        entries, size = codebook.shape
        count = dims.product(idx.shape)
        pieces = cast("Value", wide(dy, x)).reshape((count, size))
        # Outside indices were clipped to the last entry, so that is where their part belongs.
        last = dims.min_(255, entries - 1)
        places = idx.convert(DType.I32).reshape((count,))
        places = operators.binary("Min", places, _whole(last))
        total: Value = ScatterAdd(size=entries)(pieces, places)
        return total.convert(codebook.dtype)


@define_op("spline_activation")
class SplineActivation(Op):
    """Sum of Gaussian bumps with learned heights: the activation of a KAN.

    y = Σ_g coeff[c, g] · exp(−((x − centre_g) · h)²),  h = (G − 1) / (grid_max − grid_min)

    Inputs:
        x: float[..., C]
        coeff: float[C, G]   heights; centres lie evenly from grid_min to grid_max.

    Attributes:
        num_basis: G, ≥ 2.
        grid_min: the first centre.
        grid_max: the last centre, > grid_min.

    Result:
        Same type as x.

    Constraints:
        C1: x is floating and has at least one axis.
        C2: coeff has the shape [C, num_basis] and the dtype of x.
        C3: num_basis ≥ 2, and grid_min < grid_max are finite.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: Li 2024, arXiv:2405.06721; RLX `Op::SplineActivation`.
    """

    num_basis: int
    grid_min: float = -1.0
    grid_max: float = 1.0

    def infer(self, x: TensorType, coeff: TensorType) -> TensorType:
        _check_grid(self, x)
        _require_coeff(self, x, coeff)
        return x

    def decompose(self, x: Value, coeff: Value) -> Value:
        bumps = _bumps(_distances(self, x))
        return (bumps * coeff.convert(bumps.dtype)).sum(-1).convert(x.dtype)


@define_op("spline_activation_backward_x")
class SplineActivationBackwardX(Op):
    """Gradient of a spline activation with respect to x.

    dx = dy · Σ_g coeff[c, g] · exp(−t²) · (−2 t h),  t = (x − centre_g) · h

    Inputs:
        x: float[..., C]
        coeff: float[C, G]   heights.
        dy: float[..., C]    gradient of the result.

    Attributes:
        num_basis: G, ≥ 2.
        grid_min: the first centre.
        grid_max: the last centre, > grid_min.

    Result:
        Same type as x.

    Constraints:
        C1: x is floating and has at least one axis.
        C2: coeff has the shape [C, num_basis] and the dtype of x.
        C3: num_basis ≥ 2, and grid_min < grid_max are finite.
        C4: dy has the type of x.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::SplineActivationBackwardX`.
    """

    num_basis: int
    grid_min: float = -1.0
    grid_max: float = 1.0

    def infer(self, x: TensorType, coeff: TensorType, dy: TensorType) -> TensorType:
        _check_grid(self, x)
        _require_coeff(self, x, coeff)
        require_shape(self, "C4", "dy", dy, x.shape)
        require_dtype(self, "C4", "dy", dy, x.dtype)
        return x

    def decompose(self, x: Value, coeff: Value, dy: Value) -> Value:
        distances = _distances(self, x)
        slopes = _bumps(distances) * distances * (-2.0 * _density(self))
        slope = (slopes * coeff.convert(slopes.dtype)).sum(-1)
        return (slope * dy.convert(slope.dtype)).convert(x.dtype)


@define_op("spline_activation_backward_coeff")
class SplineActivationBackwardCoeff(Op):
    """Gradient of a spline activation with respect to the heights.

    dcoeff[c, g] = Σ dy · exp(−((x − centre_g) · h)²)

    Inputs:
        x: float[..., C]
        dy: float[..., C]   gradient of the result.

    Attributes:
        num_basis: G, ≥ 2.
        grid_min: the first centre.
        grid_max: the last centre, > grid_min.

    Result:
        Dtype of x, [C, num_basis].

    Constraints:
        C1: x is floating and has at least one axis.
        C2: dy has the type of x.
        C3: num_basis ≥ 2, and grid_min < grid_max are finite.

    Numerics: narrower floats than f32 compute in f32; result rounded once.
    Source: RLX `Op::SplineActivationBackwardCoeff`.
    """

    num_basis: int
    grid_min: float = -1.0
    grid_max: float = 1.0

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        _check_grid(self, x)
        require_shape(self, "C2", "dy", dy, x.shape)
        require_dtype(self, "C2", "dy", dy, x.dtype)
        return TensorType(x.dtype, (x.shape[-1], self.num_basis))

    def decompose(self, x: Value, dy: Value) -> Value:
        bumps = _bumps(_distances(self, x))
        slopes = bumps * dy.convert(bumps.dtype).reshape((*dy.shape, 1))
        return slopes.sum(tuple(range(x.rank - 1))).convert(x.dtype)


_Spline = SplineActivation | SplineActivationBackwardX | SplineActivationBackwardCoeff


def _synthetic(op: Op, idx: TensorType, codebook: TensorType) -> TensorType:
    """Check C1 and C2, and return the weight's type [N, B·d]."""
    require_dtype(op, "C1", "idx", idx, DType.U8)
    require_rank(op, "C1", "idx", idx, 2, "[N, B]")
    require_float(op, "C2", "codebook", codebook)
    require_rank(op, "C2", "codebook", codebook, 2, "[C, d]")
    op.require(
        "C2",
        codebook.shape[0] != 0,
        lambda: f"codebook is required to have at least one entry; got {codebook}. Add one.",
    )
    return TensorType(codebook.dtype, (idx.shape[0], idx.shape[1] * codebook.shape[1]))


def _require_x(op: Op, x: TensorType, codebook: TensorType, weight: TensorType) -> None:
    """Check C3 (dtype and rank) and C4 (K) of x."""
    require_dtype(op, "C3", "x", x, codebook.dtype)
    op.require(
        "C3",
        x.rank > 0,
        lambda: f"x is required to have at least one axis; got {x}. Reshape it.",
    )
    op.require_same_dims(
        "C4",
        x.shape[-1:],
        weight.shape[1:],
        lambda: (
            f"the last axis of x is required to be B·d = {weight.shape[1]}; got {x} with codebook: "
            f"{codebook}. Check the pieces."
        ),
    )


def _whole(dim: object) -> Value:
    return cast("Value", DimValue(dim=dim)())  # pyright: ignore[reportArgumentType]


def _check_grid(op: _Spline, x: TensorType) -> None:
    """Check C1 (x) and C3 (the grid)."""
    require_float(op, "C1", "x", x)
    op.require(
        "C1",
        x.rank > 0,
        lambda: f"x is required to have at least one axis; got {x}. Reshape it.",
    )
    finite = math.isfinite(op.grid_min) and math.isfinite(op.grid_max)
    op.require(
        "C3",
        finite and op.num_basis >= 2 and op.grid_min < op.grid_max,
        lambda: (
            f"num_basis ≥ 2 and finite grid_min < grid_max are required; got {op.num_basis}, "
            f"{op.grid_min} and {op.grid_max}. Centres lie evenly between them."
        ),
    )


def _require_coeff(
    op: SplineActivation | SplineActivationBackwardX, x: TensorType, coeff: TensorType
) -> None:
    """Check C2 (heights)."""
    require_shape(op, "C2", "coeff", coeff, (x.shape[-1], op.num_basis))
    require_dtype(op, "C2", "coeff", coeff, x.dtype)


def _density(op: _Spline) -> float:
    return (op.num_basis - 1) / (op.grid_max - op.grid_min)


def _distances(op: _Spline, x: Value) -> Value:
    """(x − centre) · h on a new last axis."""
    wide = x.convert(x.dtype.compute).reshape((*x.shape, 1))
    counts: Value = Iota(dtype=wide.dtype, shape=(op.num_basis,))()
    centres = counts * (1 / _density(op)) + op.grid_min
    return (wide - centres) * _density(op)


def _bumps(distances: Value) -> Value:
    return (-(distances * distances)).exp()
