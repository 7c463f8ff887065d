"""Factorisations into triangular and orthogonal matrices."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.solve.matrices import (
    at_most,
    check_dtype,
    check_matrix,
    check_same_dtype,
    identity,
    over_batches,
    triangle,
)
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("cholesky")
class Cholesky(Op):
    """Lower triangular factor of positive definite matrices.

    x = y · yᴴ

    Inputs:
        x: T[..., n, n]   Hermitian; its lower triangle is read.

    Result:
        Same type as x; zeros above the diagonal, and NaN in the lower triangle where x is not
        positive definite.

    Constraints:
        C1: x is [..., n, n].
        C2: x is f32, f64, c64 or c128.

    Source: `jax.lax.linalg.cholesky`, LAPACK `potrf`; RLX `Op::Cholesky`.

    Example:
        >>> import numpy as np
        >>> Cholesky().evaluate(np.array([[4, 0], [2, 5]], np.float32))
        array([[2., 0.],
               [1., 2.]], dtype=float32)
    """

    def infer(self, x: TensorType) -> TensorType:
        check_matrix(self, "C1", "x", x, square=True)
        check_dtype(self, "C2", "x", x)
        return x

    def evaluate(self, x: Array) -> Array:
        return over_batches(self, _cholesky, (2,), x)[0]


def _cholesky(matrix: Array) -> tuple[Array]:
    try:
        return (np.linalg.cholesky(matrix),)
    except np.linalg.LinAlgError:  # not positive definite
        return (np.tril(np.full_like(matrix, np.nan)),)


@define_op("lu")
class Lu(Op):
    """Triangular factors of matrices whose rows are exchanged for the largest pivots.

    x[permutation] = L · U,  L with ones on its diagonal

    Inputs:
        x: T[..., m, n]

    Result:
        lu T[..., m, n], U in the upper triangle and L strictly below it; pivots i32[..., k],
        k = min(m, n), row i having been exchanged with row pivots[i], one after the other; and
        permutation i32[..., m], which they amount to.

    Constraints:
        C1: x is [..., m, n].
        C2: x is f32, f64, c64 or c128.

    Source: `jax.lax.linalg.lu`, LAPACK `getrf`.
    """

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        check_matrix(self, "C1", "x", x)
        check_dtype(self, "C2", "x", x)
        *batch, m, n = x.shape
        pivots = TensorType(DType.I32, (*batch, dims.min_(m, n)))
        return x, pivots, TensorType(DType.I32, (*batch, m))

    def evaluate(self, x: Array) -> tuple[Array, ...]:
        def factor(matrix: Array) -> tuple[Any, ...]:
            rows = matrix.shape[0]
            if not matrix.size:
                return matrix, np.zeros(0), np.arange(rows, dtype=np.int64)
            made: tuple[Array, Array, int] = _lapack("getrf", matrix)(matrix)
            return made[0], made[1], _permutation(made[1], rows)

        return over_batches(self, factor, (2,), x)


def _lapack(name: str, matrix: Array) -> Any:
    """A LAPACK routine for a dtype; none of those used here reads out of its operands."""
    lapack: Any = importlib.import_module("scipy.linalg.lapack")
    return lapack.get_lapack_funcs((name,), (matrix,))[0]


def _permutation(pivots: Array, rows: int) -> Array:
    order = np.arange(rows)
    for place, other in enumerate(pivots):
        order[[place, other]] = order[[other, place]]
    return order


@define_op("lu_pivots_to_permutation")
class LuPivotsToPermutation(Op):
    """What exchanges of rows, one after the other, amount to.

    y = 0 … permutation_size − 1 with y[i] and y[pivots[i]] exchanged for i = 0, 1, …

    Inputs:
        pivots: i32[..., k]   rows, from 0 to permutation_size − 1.

    Attributes:
        permutation_size: how many rows there are.

    Result:
        i32[..., permutation_size].

    Constraints:
        C1: pivots have an axis of at most permutation_size elements.
        C2: pivots are i32.

    Source: `jax.lax.linalg.lu_pivots_to_permutation`.
    """

    permutation_size: int

    def infer(self, pivots: TensorType) -> TensorType:
        size = self.permutation_size
        message = f"pivots are required to be [..., k] with k ≤ {size}; got {pivots}. Check them."
        self.require("C1", pivots.rank > 0, message)
        at_most(self, "C1", pivots.shape[-1], size, message)
        self.require(
            "C2",
            pivots.dtype is DType.I32,
            f"pivots are required to be i32; got {pivots}. Convert them.",
            DTypeError,
        )
        return pivots.with_shape((*pivots.shape[:-1], size))

    def evaluate(self, pivots: Array) -> Array:
        def permutation(steps: Array) -> tuple[Array]:
            return (_permutation(steps, self.permutation_size),)

        return over_batches(self, permutation, (1,), pivots)[0]


@define_op("geqrf")
class Geqrf(Op):
    """Triangular factor of matrices, with the reflections that make it.

    x = H_0 · … · H_{k−1} · R,  H_i = I − taus[i] · v_i · v_iᴴ,  v_i = (0, …, 0, 1, a[i+1:, i])

    Inputs:
        x: T[..., m, n]

    Result:
        a T[..., m, n], R in the upper triangle and the reflections below it; and taus T[..., k],
        k = min(m, n).

    Constraints:
        C1: x is [..., m, n].
        C2: x is f32, f64, c64 or c128.

    Source: LAPACK `geqrf`.
    """

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        check_matrix(self, "C1", "x", x)
        check_dtype(self, "C2", "x", x)
        *batch, m, n = x.shape
        return x, x.with_shape((*batch, dims.min_(m, n)))

    def evaluate(self, x: Array) -> tuple[Array, ...]:
        def factor(matrix: Array) -> tuple[Array, Array]:
            if not matrix.size:
                return matrix, np.zeros(0, matrix.dtype)
            a, taus, _, _ = _lapack("geqrf", matrix)(matrix)
            return a, taus

        return over_batches(self, factor, (2,), x)


@define_op("geqp3")
class Geqp3(Op):
    """As geqrf, with columns exchanged so that the diagonal of R falls in magnitude.

    x[:, p − 1] = H_0 · … · H_{k−1} · R

    Inputs:
        x: T[..., m, n]
        jpvt: i32[..., n]   columns that are not 0 here are moved to the front and stay there.

    Result:
        a T[..., m, n] and taus as of geqrf, with p between them: i32[..., n], counted from 1.

    Constraints:
        C1: x is [..., m, n].
        C2: x is f32, f64, c64 or c128.
        C3: jpvt is i32[..., n] with x's leading axes.

    Source: LAPACK `geqp3`.
    """

    def infer(self, x: TensorType, jpvt: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        check_matrix(self, "C1", "x", x)
        check_dtype(self, "C2", "x", x)
        *batch, m, n = x.shape
        message = f"jpvt is required to be i32[..., n] for x: {x}; got {jpvt}. Pass zeros."
        self.require("C3", jpvt.dtype is DType.I32, message)
        self.require_same_dims("C3", jpvt.shape, (*batch, n), message)
        return x, jpvt, x.with_shape((*batch, dims.min_(m, n)))

    def evaluate(self, x: Array, jpvt: Array) -> tuple[Array, ...]:
        def factor(matrix: Array, first: Array) -> tuple[Array, Array, Array]:
            if not matrix.size:
                return matrix, np.arange(1, first.size + 1), np.zeros(0, matrix.dtype)
            order = np.argsort(first == 0, kind="stable")
            fixed = int((first != 0).sum())
            if fixed:
                return _fixed_columns(matrix[:, order], order, fixed)
            a, pivots, taus, _, _ = _lapack("geqp3", matrix)(matrix)
            return a, pivots, taus

        return over_batches(self, factor, (2, 1), x, jpvt)


def _fixed_columns(matrix: Array, order: Array, fixed: int) -> tuple[Array, Array, Array]:
    """Reflect the first columns in place, then pivot among the rest."""
    count = min(matrix.shape)
    head, taus, _, _ = _lapack("geqrf", matrix)(matrix[:, :fixed])
    reflections = _product(head, taus, min(fixed, count), full=True)
    rest = reflections.conj().T @ matrix[:, fixed:]
    taken = min(fixed, count)
    if taken < count:
        tail, pivots, more, _, _ = _lapack("geqp3", matrix)(rest[taken:])
        rest = np.concatenate([rest[:taken][:, pivots - 1], tail])
        order = np.concatenate([order[:fixed], order[fixed:][pivots - 1]])
        taus = np.concatenate([taus[:taken], more])
    return np.concatenate([head, rest], axis=1), order + 1, taus


@define_op("householder_product")
class HouseholderProduct(Op):
    """The first columns of a product of reflections.

    y = (H_0 · … · H_{k−1})[:, :n],  H_i = I − taus[i] · v_i · v_iᴴ,  v_i = (0, …, 0, 1, a[i+1:, i])

    Inputs:
        a: T[..., m, n]   m ≥ n; what stands on and above the diagonal is ignored.
        taus: T[..., k]   k ≤ n.

    Result:
        Same type as a.

    Constraints:
        C1: a is [..., m, n] with m ≥ n.
        C2: a is f32, f64, c64 or c128.
        C3: taus are [..., k] with k ≤ n and a's leading axes.
        C4: one dtype.

    Source: `jax.lax.linalg.householder_product`, LAPACK `orgqr`.
    """

    def infer(self, a: TensorType, taus: TensorType) -> TensorType:
        check_matrix(self, "C1", "a", a)
        *batch, m, n = a.shape
        at_most(self, "C1", n, m, f"a is required to be [..., m, n] with m ≥ n; got {a}. Pad it.")
        check_dtype(self, "C2", "a", a)
        message = f"taus are required to be [..., k] with k ≤ n for a: {a}; got {taus}. Slice them."
        self.require("C3", taus.rank > 0, message)
        self.require_same_dims("C3", taus.shape[:-1], tuple(batch), message)
        at_most(self, "C3", taus.shape[-1], n, message)
        check_same_dtype(self, "C4", "taus", taus, a)
        return a

    def evaluate(self, a: Array, taus: Array) -> Array:
        def product(matrix: Array, scales: Array) -> tuple[Array]:
            return (_product(matrix, scales, scales.size, full=False),)

        return over_batches(self, product, (2, 1), a, taus)[0]


def _product(a: Array, taus: Array, count: int, *, full: bool) -> Array:
    rows, columns = a.shape
    wide = np.result_type(a.dtype, np.float64)
    result = np.eye(rows, rows if full else columns, dtype=wide)
    for i in reversed(range(count)):
        v = np.concatenate([np.zeros(i), [1], a[i + 1 :, i]]).astype(wide)
        result -= taus[i] * np.outer(v, v.conj() @ result)
    return result.astype(a.dtype)


@define_op("qr")
class Qr(Op):
    """Orthogonal and triangular factor.

    x = q · r  (x[:, p] = q · r when pivoting),  qᴴ · q = I,  r upper triangular

    Inputs:
        x: T[..., m, n]

    Attributes:
        full_matrices: q is square.
        pivoting: columns are exchanged so that the diagonal of r falls in magnitude.

    Result:
        q T[..., m, k] and r T[..., k, n], k = m for full matrices and min(m, n) otherwise; and
        p i32[..., n] when pivoting.

    Constraints:
        C1: x is [..., m, n].
        C2: x is f32, f64, c64 or c128.

    Source: `jax.lax.linalg.qr`; RLX `Op::Qr`, whose parts are the results.
    """

    full_matrices: bool = False
    pivoting: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_matrix(self, "C1", "x", x)
        check_dtype(self, "C2", "x", x)
        *batch, m, n = x.shape
        k = m if self.full_matrices else dims.min_(m, n)
        types = x.with_shape((*batch, m, k)), x.with_shape((*batch, k, n))
        return (*types, TensorType(DType.I32, (*batch, n))) if self.pivoting else types

    def decompose(self, x: Value) -> tuple[Value, ...]:
        from rlx.ir.operators import broadcast_to, constant

        *batch, m, n = x.shape
        types = self.infer_types((x.type,))
        if m == 0 or n == 0:
            r, *pivots = (broadcast_to(constant(0, t.dtype), t.shape) for t in types[1:])
            return identity(types[0]), r, *pivots
        if self.pivoting:
            none = broadcast_to(constant(0, DType.I32), (*batch, n))
            r, pivots, taus = Geqp3()(x, none)
            order = (pivots - broadcast_to(constant(1, DType.I32), pivots.shape),)
        else:
            r, taus = Geqrf()(x)
            order = ()
        if not dims.less_equal(n, m):
            q = HouseholderProduct()(_corner(r, m, m), taus)
        elif self.full_matrices:
            q = HouseholderProduct()(_widened(r, m), taus)
        else:
            q = HouseholderProduct()(r, taus)
            r = _corner(r, n, n)
        return q, triangle(r, lower=False), *order


def _corner(x: Value, rows: Any, columns: Any) -> Value:
    from rlx.ops.shape import Slice

    limit = (*x.shape[:-2], rows, columns)
    return Slice(start_indices=(0,) * x.rank, limit_indices=limit, strides=(1,) * x.rank)(x)


def _widened(x: Value, columns: Any) -> Value:
    from rlx.ir.operators import constant
    from rlx.ops.shape import Pad

    none = (0,) * x.rank
    high = (*none[:-1], columns - x.shape[-1])
    return Pad(low=none, high=high, interior=none)(x, constant(0, x.dtype))
