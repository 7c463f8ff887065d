"""Gradient of the eigendecomposition of symmetric matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.op import Op, define_op
from rlx.ops.backward.gradients import filled, require_type
from rlx.ops.dot import DotGeneral, DotPrecision
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("eigh_backward")
class EighBackward(Op):
    """Gradient of eigh by its matrix, for real symmetric matrices.

    dx = sym(v · (diag(dw) + F ⊙ (vᵀ · dv)) · vᵀ), F_ij = 1 / (w_j − w_i), F_ii = 0,
    sym(a) = (a + aᵀ) / 2

    Inputs:
        v: T[..., n, n]    eigenvectors, in columns.
        w: T[..., n]       eigenvalues.
        dv: T[..., n, n]   gradient by v.
        dw: T[..., n]      gradient by w.

    Result:
        Same type as v, symmetric. Where eigenvalues are equal their vectors are not unique, and
        the gradient is infinite or NaN, as JAX's is.

    Constraints:
        C1: v is [..., n, n] and w [..., n].
        C2: v is f32 or f64.
        C3: dv has the type of v, and dw that of w.

    Source: Giles 2008, "Collected matrix derivative results"; RLX's backward of `Op::Eigh`.
    """

    def infer(self, v: TensorType, w: TensorType, dv: TensorType, dw: TensorType) -> TensorType:
        text = (
            f"v is required to be [..., n, n] and w [..., n]; got v: {v}, w: {w}. "
            "Pass the results of eigh."
        )
        self.require("C1", v.rank >= 2 and w.rank == v.rank - 1, text)
        self.require_same_dims("C1", v.shape[-1:], v.shape[-2:-1], text)
        self.require_same_dims("C1", w.shape, v.shape[:-1], text)
        self.require(
            "C2",
            v.dtype in (DType.F32, DType.F64) and w.dtype is v.dtype,
            f"v and w are required to be f32 or f64; got v: {v}, w: {w}. Convert them.",
            DTypeError,
        )
        require_type(self, "C3", "dv", dv, v, "v")
        require_type(self, "C3", "dw", dw, w, "w")
        return v

    def decompose(self, v: Value, w: Value, dv: Value, dw: Value) -> Value:
        from rlx.ops.compare import Select
        from rlx.ops.shape import BroadcastInDim

        rank, shape = v.rank, v.shape
        rows, columns = rank - 2, rank - 1
        by_row, by_column = (
            BroadcastInDim(shape=shape, broadcast_dimensions=(*range(rows), axis))
            for axis in (rows, columns)
        )
        diagonal = _is_diagonal(shape)
        gaps = by_column(w) - by_row(w)
        inner = _product(v, dv, rows, rows)
        # The products with 0 / 0 stay as they are: an ill-posed gradient is not hidden.
        off = inner / Select()(diagonal, filled(1.0, gaps), gaps)
        middle = Select()(diagonal, by_row(dw), off)
        made = _product(_product(v, middle, columns, rows), v, columns, columns)
        swapped = made.transpose(*range(rows), columns, rows)
        return (made + swapped) * 0.5


def _is_diagonal(shape: Shape) -> Value:
    from rlx.ops.compare import Compare, Direction
    from rlx.ops.shape import Iota

    rank = len(shape)
    rows, columns = (Iota(dtype=DType.I32, shape=shape, axis=a)() for a in (rank - 2, rank - 1))
    return Compare(direction=Direction.EQ)(rows, columns)


def _product(lhs: Value, rhs: Value, lhs_axis: int, rhs_axis: int) -> Value:
    batch = tuple(range(lhs.rank - 2))
    exact = (DotPrecision.HIGHEST, DotPrecision.HIGHEST)
    return DotGeneral(
        lhs_contracting=(lhs_axis,),
        rhs_contracting=(rhs_axis,),
        lhs_batch=batch,
        rhs_batch=batch,
        precision=exact,
    )(lhs, rhs)
