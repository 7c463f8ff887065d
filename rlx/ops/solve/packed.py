"""Spectra in one result, as RLX packs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.dtypes import DType
from rlx.ir.op import Op, define_op
from rlx.ops.solve.matrices import check_dtype, check_matrix
from rlx.ops.solve.spectra import Eigh
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("eigh_batch")
class EighBatch(Op):
    """Eigenvalues and eigenvectors of symmetric matrices, one behind the other.

    y[...] = [λ_0, …, λ_{n−1} | U in C order],  x · U = U · diag(λ)

    Inputs:
        x: T[..., n, n]   symmetric; the lower triangle is read.

    Result:
        T[..., n + n²]: ascending eigenvalues, then U, whose column j belongs to λ_j and is unique
        up to its sign.

    Constraints:
        C1: x is [..., n, n].
        C2: x is f32 or f64.

    Source: RLX `Op::Eigh` and `Op::EighBatch`; `eigh` gives the parts as results of their own.
    """

    def infer(self, x: TensorType) -> TensorType:
        check_matrix(self, "C1", "x", x, square=True)
        check_dtype(self, "C2", "x", x, frozenset({DType.F32, DType.F64}))
        *batch, n, _ = x.shape
        return x.with_shape((*batch, n + n * n))

    def decompose(self, x: Value) -> Value:
        from rlx.ops.shape import Concatenate

        *batch, n, _ = x.shape
        vectors, values = Eigh()(x)
        return Concatenate(axis=len(batch))(values, vectors.reshape(*batch, n * n))
