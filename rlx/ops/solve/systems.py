"""Systems of linear equations, and determinants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import round_to
from rlx.ops.solve.factors import Lu
from rlx.ops.solve.matrices import (
    SOLVABLE,
    check_dtype,
    check_matrix,
    check_same_dtype,
    over_batches,
)
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("triangular_solve")
class TriangularSolve(Op):
    """Solves systems with triangular matrices by substitution.

    op(a) · y = b  (left side)  or  y · op(a) = b,  op(a) being a, aᵀ, conj(a) or aᴴ

    Inputs:
        a: T[..., n, n]   one triangle is read.
        b: T[..., n, k]   or T[..., k, n] for the right side.

    Attributes:
        left_side: on which side of y the matrix stands.
        lower: which triangle of a is read.
        transpose_a: whether op transposes.
        conjugate_a: whether op conjugates.
        unit_diagonal: the diagonal of a counts as ones and is not read.

    Result:
        Same type as b.

    Constraints:
        C1: a is [..., n, n].
        C2: b is [..., n, k] or [..., k, n] by the side, with a's leading axes.
        C3: one dtype.
        C4: it is a float from 16 bits on, c64 or c128.

    Source: StableHLO `triangular_solve`, `jax.lax.linalg.triangular_solve`; RLX
    `Op::TriangularSolve`.
    """

    left_side: bool = True
    lower: bool = True
    transpose_a: bool = False
    conjugate_a: bool = False
    unit_diagonal: bool = False

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        check_matrix(self, "C1", "a", a, square=True)
        shape = "[..., n, k]" if self.left_side else "[..., k, n]"
        message = f"b is required to be {shape} for a: {a}; got {b}. Transpose or reshape it."
        self.require("C2", b.rank == a.rank, message)
        axis = b.rank - 2 if self.left_side else b.rank - 1
        found = (*b.shape[:-2], b.shape[axis])
        self.require_same_dims("C2", found, a.shape[:-1], message)
        check_same_dtype(self, "C3", "b", b, a)
        check_dtype(self, "C4", "a", a, SOLVABLE)
        return b

    def evaluate(self, a: Array, b: Array) -> Array:
        return over_batches(self, self._solve, (2, 2), a, b)[0]

    def _solve(self, a: Array, b: Array) -> tuple[Array]:
        dtype = as_dtype(b.dtype)
        wide = np.complex128 if dtype.is_complex else np.float64
        matrix, right = a.astype(wide), b.astype(wide)
        matrix = np.tril(matrix) if self.lower else np.triu(matrix)
        lower = self.lower
        if self.conjugate_a:
            matrix = matrix.conj()
        if self.transpose_a == self.left_side:  # y · A = b is Aᵀ · yᵀ = bᵀ
            matrix, lower = matrix.T, not lower
        right = right.copy() if self.left_side else right.T.copy()
        with np.errstate(all="ignore"):
            for i in range(len(matrix)) if lower else reversed(range(len(matrix))):
                known = slice(0, i) if lower else slice(i + 1, None)
                right[i] -= matrix[i, known] @ right[known]
                if not self.unit_diagonal:
                    right[i] /= matrix[i, i]
        return (round_to(right if self.left_side else right.T, dtype),)


@define_op("tridiagonal_solve")
class TridiagonalSolve(Op):
    """Solves systems whose matrices have three diagonals.

    dl[i] · y[i−1] + d[i] · y[i] + du[i] · y[i+1] = b[i]

    Inputs:
        dl: T[..., n]   below the diagonal; dl[0] is ignored.
        d: T[..., n]    the diagonal.
        du: T[..., n]   above the diagonal; du[n−1] is ignored.
        b: T[..., n, k]

    Result:
        Same type as b; NaN where the matrix is singular.

    Constraints:
        C1: d has an axis, and dl and du have d's shape.
        C2: b is [..., n, k] with d's leading axes.
        C3: one dtype.
        C4: it is f32, f64, c64 or c128.

    Source: `jax.lax.linalg.tridiagonal_solve`, LAPACK `gtsv`.
    """

    def infer(self, dl: TensorType, d: TensorType, du: TensorType, b: TensorType) -> TensorType:
        self.require(
            "C1", d.rank > 0, lambda: f"d is required to be [..., n]; got {d}. Reshape it."
        )
        for name, other in (("dl", dl), ("du", du)):
            self.require_same_dims(
                "C1",
                other.shape,
                d.shape,
                f"{name} is required to have the shape of d: {d}; got {other}. Pad it.",
            )
        message = f"b is required to be [..., n, k] for d: {d}; got {b}. Reshape it."
        self.require("C2", b.rank == d.rank + 1, message)
        self.require_same_dims("C2", b.shape[:-1], d.shape, message)
        for name, other in (("dl", dl), ("du", du), ("b", b)):
            check_same_dtype(self, "C3", name, other, d)
        check_dtype(self, "C4", "d", d)
        return b

    def evaluate(self, dl: Array, d: Array, du: Array, b: Array) -> Array:
        def solve(below: Array, diagonal: Array, above: Array, right: Array) -> tuple[Array]:
            wide = np.result_type(right.dtype, np.float64)
            matrix = np.diag(diagonal.astype(wide))
            matrix += np.diag(below[1:], -1) + np.diag(above[:-1], 1)
            try:
                return (np.linalg.solve(matrix, right.astype(wide)),)
            except np.linalg.LinAlgError:  # singular
                return (np.full_like(right, np.nan),)

        return over_batches(self, solve, (1, 1, 1, 2), dl, d, du, b)[0]


@define_op("dense_solve")
class DenseSolve(Op):
    """Solves systems of linear equations.

    a · y = b

    Inputs:
        a: T[..., n, n]
        b: T[..., n] or T[..., n, k]   of a's leading axes; a vector has one axis less than a.

    Result:
        Same type as b.

    Constraints:
        C1: a is [..., n, n].
        C2: b is [..., n] or [..., n, k] with a's leading axes.
        C3: one dtype.
        C4: it is f32, f64, c64 or c128.

    Source: RLX `Op::DenseSolve` and `Op::BatchedDenseSolve`; `numpy.linalg.solve`.

    Example:
        >>> import numpy as np
        >>> DenseSolve().evaluate(np.array([[0, 2], [1, 0]], np.float32), np.ones(2, np.float32))
        array([1. , 0.5], dtype=float32)
    """

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        check_matrix(self, "C1", "a", a, square=True)
        message = f"b is required to be [..., n] or [..., n, k] for a: {a}; got {b}. Reshape it."
        self.require("C2", b.rank in (a.rank - 1, a.rank), message)
        self.require_same_dims("C2", b.shape[: a.rank - 1], a.shape[:-1], message)
        check_same_dtype(self, "C3", "b", b, a)
        check_dtype(self, "C4", "a", a)
        return b

    def decompose(self, a: Value, b: Value) -> Value:
        from rlx.ops.shape import Reshape

        if b.shape[a.rank - 2] == 0:
            return b
        lu, _, order = Lu()(a)
        right = b if b.rank == a.rank else Reshape(shape=(*b.shape, 1))(b)
        right = _take_rows(right, order)
        right = TriangularSolve(lower=True, unit_diagonal=True)(lu, right)
        right = TriangularSolve(lower=False)(lu, right)
        return right if b.rank == a.rank else Reshape(shape=b.shape)(right)


def _take_rows(x: Value, order: Value) -> Value:
    """Rows of matrices in an order of their own for each."""
    from rlx.ops.indexing import GatherElements
    from rlx.ops.shape import BroadcastInDim

    axes = tuple(range(order.rank))
    index = BroadcastInDim(shape=x.shape, broadcast_dimensions=axes)(order)
    return GatherElements(axis=x.rank - 2)(x, index)


@define_op("det")
class Det(Op):
    """Determinants.

    y = Π_i U[i, i] · (−1)^(number of exchanges)

    Inputs:
        x: T[..., n, n]

    Result:
        T[...]; 1 for n = 0.

    Constraints:
        C1: x is [..., n, n].
        C2: x is f32, f64, c64 or c128.

    Source: RLX `Op::Det`; `numpy.linalg.det`.
    """

    def infer(self, x: TensorType) -> TensorType:
        check_matrix(self, "C1", "x", x, square=True)
        check_dtype(self, "C2", "x", x)
        return x.with_shape(x.shape[:-2])

    def decompose(self, x: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.compare import Compare, Direction, Select
        from rlx.ops.reduction import ReduceProd
        from rlx.ops.shape import Iota

        lu, pivots, _ = Lu()(x)
        place: Value = Iota(dtype=DType.I32, shape=pivots.shape, axis=pivots.rank - 1)()
        moved = Compare(direction=Direction.NE)(pivots, place)
        ones = broadcast_to(constant(1, x.dtype), pivots.shape)
        signs = Select()(moved, -ones, ones)
        return ReduceProd(axes=(pivots.rank - 1,))(_diagonal(lu) * signs)


@define_op("log_det")
class LogDet(Op):
    """Logarithms of the magnitudes of determinants.

    y = log |det x|

    Inputs:
        x: T[..., n, n]

    Result:
        real(T)[...]; −inf where x is singular.

    Constraints:
        C1: x is [..., n, n].
        C2: x is f32, f64, c64 or c128.

    Source: RLX `Op::LogDet`; `numpy.linalg.slogdet`.
    """

    def infer(self, x: TensorType) -> TensorType:
        check_matrix(self, "C1", "x", x, square=True)
        check_dtype(self, "C2", "x", x)
        return TensorType(x.dtype.real, x.shape[:-2])

    def decompose(self, x: Value) -> Value:
        from rlx.ops.reduction import ReduceSum

        lu, _, _ = Lu()(x)
        magnitudes = abs(_diagonal(lu))
        return ReduceSum(axes=(magnitudes.rank - 1,))(magnitudes.log())


def _diagonal(x: Value) -> Value:
    """Diagonals of square matrices."""
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.compare import Compare, Direction, Select
    from rlx.ops.reduction import ReduceSum
    from rlx.ops.shape import Iota

    rows: Value = Iota(dtype=DType.I32, shape=x.shape, axis=x.rank - 2)()
    columns: Value = Iota(dtype=DType.I32, shape=x.shape, axis=x.rank - 1)()
    there = Compare(direction=Direction.EQ)(rows, columns)
    zeros = broadcast_to(constant(0, x.dtype), x.shape)
    return ReduceSum(axes=(x.rank - 1,))(Select()(there, x, zeros))
