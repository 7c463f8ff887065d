"""Matrix product over the last two axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import dims
from rlx.dtypes import as_dtype
from rlx.errors import DimError, InconclusiveDimError, ShapeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.dot.general import DotGeneral, accumulator, check_product
from rlx.ops.elementwise import round_to
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("matmul")
class Matmul(Op):
    """Matrix product over the last two axes, as NumPy's matmul.

    y[..., m, n] = Σ_k lhs[..., m, k] · rhs[..., k, n]

    Inputs:
        lhs: T[..., M, K]   or T[K].
        rhs: T[..., K, N]   or T[K].

    Result:
        T[..., M, N]; leading axes broadcast, and the axis that a vector lacks is left out.

    Constraints:
        C1: lhs and rhs have at least one axis.
        C2: both have one size K.
        C3: the leading axes broadcast.
        C4: one dtype, a number or bool.

    Numerics: floats narrower than f32 accumulate in f32 and round once; integers wrap around.
    Source: RLX `Op::MatMul`; NumPy `matmul`.

    Example:
        >>> import numpy as np
        >>> Matmul().evaluate(np.eye(2, dtype=np.float32), np.ones((2, 1), np.float32))
        array([[1.],
               [1.]], dtype=float32)
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        self.require(
            "C1",
            lhs.rank > 0 and rhs.rank > 0,
            lambda: (
                f"lhs and rhs are required to have at least one axis; got {lhs} and {rhs}. "
                "Multiply by a scalar with *."
            ),
        )
        inner = rhs.shape[max(rhs.rank - 2, 0)]
        self.require_same_dims(
            "C2",
            lhs.shape[-1:],
            (inner,),
            lambda: (
                f"matmul K mismatch: {lhs.shape[-1]} vs {inner}; got lhs: {lhs} and "
                f"rhs: {rhs}. Transpose or reshape one of them."
            ),
        )
        batch = self._batch(lhs, rhs)
        result = check_product(self, lhs, rhs, None, "C4")
        return TensorType(result, (*batch, *lhs.shape[-2:-1], *rhs.shape[max(rhs.rank - 1, 1) :]))

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        dtype = as_dtype(lhs.dtype)
        wide = accumulator(dtype, dtype, dtype).numpy
        with np.errstate(all="ignore"):
            product: Any = np.matmul(lhs.astype(wide), rhs.astype(wide))
        return round_to(product, dtype)

    def decompose(self, lhs: Value, rhs: Value) -> Value:
        from rlx.ir.operators import broadcast_to

        if lhs.rank == 1 or rhs.rank <= 2:
            contract = DotGeneral(
                lhs_contracting=(lhs.rank - 1,), rhs_contracting=(max(rhs.rank - 2, 0),)
            )
            return contract(lhs, rhs)
        batch = self._batch(lhs.type, rhs.type)
        axes = tuple(range(len(batch)))
        contract = DotGeneral(
            lhs_contracting=(len(batch) + 1,),
            rhs_contracting=(len(batch),),
            lhs_batch=axes,
            rhs_batch=axes,
        )
        left = broadcast_to(lhs, (*batch, *lhs.shape[-2:]))
        return contract(left, broadcast_to(rhs, (*batch, *rhs.shape[-2:])))

    def _batch(self, lhs: TensorType, rhs: TensorType) -> Shape:
        try:
            return dims.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
        except DimError as error:
            kind = InconclusiveDimError if isinstance(error, InconclusiveDimError) else ShapeError
            raise kind(
                f"matmul [C3]: leading axes are required to broadcast; got {lhs} and {rhs}. "
                f"{error}",
                label="C3",
            ) from error
