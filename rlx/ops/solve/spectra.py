"""Eigenvalues of Hermitian and of general matrices, and singular values."""

from __future__ import annotations

import enum
import importlib
from typing import Any, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.solve.matrices import check_dtype, check_matrix, over_batches
from rlx.types import TensorType


@final
class EighMethod(enum.Enum):
    """How eigenvalues are computed; a device that lacks a method refuses it."""

    DEFAULT = "default"
    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


@final
class SvdMethod(enum.Enum):
    """How singular values are computed; a device that lacks a method refuses it."""

    DEFAULT = "default"
    QR = "qr"
    JACOBI = "jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


@define_op("eigh")
class Eigh(Op):
    """Eigenvectors and eigenvalues of Hermitian matrices.

    x · v = v · diag(w),  vᴴ · v = I

    Inputs:
        x: T[..., n, n]   Hermitian; one triangle is read.

    Attributes:
        lower: which triangle is read.
        sort_eigenvalues: whether w must ascend; a device may leave it unsorted otherwise.
        method: how to compute them.

    Result:
        v T[..., n, n], column j for eigenvalue j, unique up to its phase; and w real(T)[..., n].
        NaN where the method does not converge.

    Constraints:
        C1: x is [..., n, n].
        C2: x is f32, f64, c64 or c128.

    Source: `jax.lax.linalg.eigh`, LAPACK `syevd` and `heevd`; RLX `Op::Eigh`.
    """

    lower: bool = True
    sort_eigenvalues: bool = True
    method: EighMethod = EighMethod.DEFAULT

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        check_matrix(self, "C1", "x", x, square=True)
        check_dtype(self, "C2", "x", x)
        return x, TensorType(x.dtype.real, x.shape[:-1])

    def evaluate(self, x: Array) -> tuple[Array, ...]:
        def factor(matrix: Array) -> tuple[Any, Any]:
            try:
                w, v = np.linalg.eigh(matrix, "L" if self.lower else "U")
            except np.linalg.LinAlgError:  # no convergence
                return np.full_like(matrix, np.nan), np.full(matrix.shape[0], np.nan)
            return v, w

        return over_batches(self, factor, (2,), x)


@define_op("eig")
class Eig(Op):
    """Eigenvalues and eigenvectors of general matrices, all of them complex.

    x · right = right · diag(w),  leftᴴ · x = diag(w) · leftᴴ

    Inputs:
        x: T[..., n, n]

    Attributes:
        left: whether left eigenvectors are wanted.
        right: whether right eigenvectors are wanted.
        vector_derivatives: whether JAX may differentiate the vectors, which has a meaning only
            where eigenvalues are distinct and vectors are used up to their phase.

    Result:
        w complex(T)[..., n] in no order; then, where wanted, left and right complex(T)[..., n, n],
        column j for eigenvalue j, of length 1, unique up to their phase. NaN where the method does
        not converge.

    Constraints:
        C1: x is [..., n, n].
        C2: x is f32, f64, c64 or c128.

    Source: `jax.lax.linalg.eig`, LAPACK `geev`.
    """

    left: bool = True
    right: bool = True
    vector_derivatives: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_matrix(self, "C1", "x", x, square=True)
        check_dtype(self, "C2", "x", x)
        wide = DType.C128 if x.dtype.real is DType.F64 else DType.C64
        vectors = x.with_dtype(wide)
        return (TensorType(wide, x.shape[:-1]), *[vectors] * (self.left + self.right))

    def evaluate(self, x: Array) -> tuple[Array, ...]:
        linalg: Any = importlib.import_module("scipy.linalg")  # NumPy has no left eigenvectors

        def factor(matrix: Array) -> tuple[Any, ...]:
            if not np.isfinite(matrix).all():
                return (np.nan,) * (1 + self.left + self.right)
            made = linalg.eig(matrix, left=self.left, right=self.right)
            return made if self.left or self.right else (made,)

        return over_batches(self, factor, (2,), x)


@define_op("svd")
class Svd(Op):
    """Singular values and vectors.

    x = u · diag(s) · vt,  uᴴ · u = I,  vt · vtᴴ = I

    Inputs:
        x: T[..., m, n]

    Attributes:
        full_matrices: u and vt are square.
        compute_uv: whether u and vt are wanted.
        method: how to compute them.

    Result:
        s real(T)[..., k] descending, k = min(m, n); with compute_uv also u T[..., m, k or m] and
        vt T[..., k or n, n], unique up to common phases. NaN where x is not finite, or the method
        does not converge.

    Constraints:
        C1: x is [..., m, n].
        C2: x is f32, f64, c64 or c128.

    Source: `jax.lax.linalg.svd`, LAPACK `gesdd`; RLX `Op::Svd`, whose parts are the results.
    """

    full_matrices: bool = False
    compute_uv: bool = True
    method: SvdMethod = SvdMethod.DEFAULT

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_matrix(self, "C1", "x", x)
        check_dtype(self, "C2", "x", x)
        *batch, m, n = x.shape
        k = dims.min_(m, n)
        s = TensorType(x.dtype.real, (*batch, k))
        if not self.compute_uv:
            return (s,)
        left, right = (m, n) if self.full_matrices else (k, k)
        return s, x.with_shape((*batch, m, left)), x.with_shape((*batch, right, n))

    def evaluate(self, x: Array) -> tuple[Array, ...]:
        count = 3 if self.compute_uv else 1
        full = self.full_matrices and self.compute_uv

        def factor(matrix: Array) -> tuple[Any, ...]:
            if not matrix.size:
                return (0.0, *map(np.eye, x.shape[-2:])) if full else (0.0,) * count
            if not np.isfinite(matrix).all():  # NumPy's gesdd never ends on some of these
                return (np.nan,) * count
            try:
                made = np.linalg.svd(
                    matrix, full_matrices=self.full_matrices, compute_uv=self.compute_uv
                )
            except np.linalg.LinAlgError:  # no convergence
                return (np.nan,) * count
            if not self.compute_uv:
                return (made,)
            u, s, vt = made
            return s, u, vt

        return over_batches(self, factor, (2,), x)
