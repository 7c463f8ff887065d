"""Matrix products: the general contraction, and matmul."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import DimError, DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import round_to
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@final
class DotPrecision(enum.Enum):
    """How exactly a device multiplies f32 operands; the CPU is always exact.

    On a TPU the default is one bf16 pass, high is three and highest is six; on a GPU the default
    is TF32.
    """

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


DEFAULT_PRECISION = (DotPrecision.DEFAULT, DotPrecision.DEFAULT)


def accumulator(lhs: DType, rhs: DType, result: DType) -> DType:
    """The type in which products of two dtypes are summed before rounding to a result dtype."""
    three = (lhs, rhs, result)
    if any(d.is_complex for d in three):
        double = any(d in (DType.C128, DType.F64) for d in three)
        return DType.C128 if double else DType.C64
    if any(d.is_float for d in three):
        return DType.F64 if DType.F64 in three else DType.F32
    return DType.BOOL if result is DType.BOOL else DType.I64


def check_product(
    op: Op, lhs: TensorType, rhs: TensorType, preferred: DType | None, label: str
) -> DType:
    """Check the dtypes of a product and return the result's.

    The label's constraint: lhs and rhs have one dtype, or the preferred one is given; it is of
    the same kind as they are, or wider: bool < integer < float < complex.
    """
    result = lhs.dtype if preferred is None else preferred
    op.require(
        label,
        preferred is not None or lhs.dtype is rhs.dtype,
        lambda: (
            f"lhs and rhs are required to have one dtype; got {lhs} and {rhs}. "
            "Convert one of them, or give preferred_element_type."
        ),
        DTypeError,
    )
    op.require(
        label,
        _rank(result) >= max(_rank(lhs.dtype), _rank(rhs.dtype)),
        lambda: (
            f"preferred_element_type is required to hold products of {lhs.dtype} and "
            f"{rhs.dtype}; got {result}. Choose a type of their kind."
        ),
        DTypeError,
    )
    return result


def _rank(dtype: DType) -> int:
    order = (Kind.TOKEN, Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.COMPLEX)
    return order.index(Kind.INT if dtype.kind is Kind.UINT else dtype.kind)


@define_op("dot_general")
class DotGeneral(Op):
    """Sum of products over contracting axes, for every batch index.

    y[b, m, n] = Σ_k lhs[b, m, k] · rhs[b, n, k]   (axes gathered by role)

    Inputs:
        lhs: T[...]   number or bool (∨ of ∧).
        rhs: U[...]

    Attributes:
        lhs_contracting: axes of lhs that are summed, pairwise with rhs_contracting.
        rhs_contracting: the same for rhs.
        lhs_batch: axes of lhs that are kept together, pairwise with rhs_batch.
        rhs_batch: the same for rhs.
        precision: for lhs and for rhs.
        preferred_element_type: dtype of the accumulation and the result; None means that of lhs.

    Result:
        Batch axes, then the other axes of lhs, then those of rhs.

    Constraints:
        C1: contracting and batch axes are in range, distinct, and as many for lhs as for rhs.
        C2: paired contracting axes have one size.
        C3: paired batch axes have one size.
        C4: lhs and rhs have one dtype, or preferred_element_type is given and of their kind.
        C5: precision has two entries.

    Numerics: floats narrower than f32 accumulate in f32 and round once; integers wrap around.
    Source: StableHLO `dot_general`, `jax.lax.dot_general`; RLX `Op::DotGeneral`.
    """

    lhs_contracting: tuple[int, ...] = ()
    rhs_contracting: tuple[int, ...] = ()
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    precision: tuple[DotPrecision, ...] = DEFAULT_PRECISION
    preferred_element_type: DType | None = None

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        self._check_axes("lhs", (*self.lhs_batch, *self.lhs_contracting), lhs)
        self._check_axes("rhs", (*self.rhs_batch, *self.rhs_contracting), rhs)
        self.require(
            "C1",
            len(self.lhs_contracting) == len(self.rhs_contracting)
            and len(self.lhs_batch) == len(self.rhs_batch),
            lambda: (
                f"lhs and rhs are required to have as many contracting axes and as many batch "
                f"axes; got {self.lhs_contracting} with {self.rhs_contracting} and "
                f"{self.lhs_batch} with {self.rhs_batch}. Pair them."
            ),
        )

        def message(role: str) -> str:
            left, right = (self.lhs_batch, self.rhs_batch)
            if role == "contracting":
                left, right = (self.lhs_contracting, self.rhs_contracting)
            return (
                f"{role} axes are required to have one size; got lhs: {lhs} with {left} and "
                f"rhs: {rhs} with {right}. Check the axes."
            )

        self.require_same_dims(
            "C2",
            tuple(lhs.shape[i] for i in self.lhs_contracting),
            tuple(rhs.shape[i] for i in self.rhs_contracting),
            lambda: message("contracting"),
        )
        self.require_same_dims(
            "C3",
            tuple(lhs.shape[i] for i in self.lhs_batch),
            tuple(rhs.shape[i] for i in self.rhs_batch),
            lambda: message("batch"),
        )
        result = check_product(self, lhs, rhs, self.preferred_element_type, "C4")
        self.require(
            "C5",
            len(self.precision) == 2,
            lambda: (
                f"precision is required to have two entries; got {len(self.precision)}. "
                "Give one for lhs and one for rhs."
            ),
        )
        batch = [lhs.shape[i] for i in self.lhs_batch]
        left_free = [lhs.shape[i] for i in self.lhs_free(lhs.rank)]
        right_free = [rhs.shape[i] for i in self.rhs_free(rhs.rank)]
        return TensorType(result, (*batch, *left_free, *right_free))

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        left_dtype, right_dtype = as_dtype(lhs.dtype), as_dtype(rhs.dtype)
        result = self.preferred_element_type or left_dtype
        wide = accumulator(left_dtype, right_dtype, result).numpy
        left_free, right_free = self.lhs_free(lhs.ndim), self.rhs_free(rhs.ndim)
        left = _arrange(lhs.astype(wide), self.lhs_batch, left_free, self.lhs_contracting)
        right = _arrange(rhs.astype(wide), self.rhs_batch, self.rhs_contracting, right_free)
        with np.errstate(all="ignore"):
            product = np.matmul(left, right)
        shape = [lhs.shape[i] for i in (*self.lhs_batch, *left_free)]
        shape += [rhs.shape[i] for i in right_free]
        return round_to(product.reshape(shape), result)

    def lhs_free(self, rank: int) -> tuple[int, ...]:
        """Axes of lhs that are neither batch nor contracting."""
        taken = (*self.lhs_batch, *self.lhs_contracting)
        return tuple(i for i in range(rank) if i not in taken)

    def rhs_free(self, rank: int) -> tuple[int, ...]:
        """Axes of rhs that are neither batch nor contracting."""
        taken = (*self.rhs_batch, *self.rhs_contracting)
        return tuple(i for i in range(rank) if i not in taken)

    def _check_axes(self, name: str, axes: Sequence[int], type_: TensorType) -> None:
        self.require(
            "C1",
            len(set(axes)) == len(axes) and all(0 <= a < type_.rank for a in axes),
            lambda: (
                f"axes of {name}: {type_} are required to be distinct and from 0 to "
                f"{type_.rank - 1}; got batch and contracting axes {tuple(axes)}. Count from 0."
            ),
        )


def _arrange(x: Array, *groups: Sequence[int]) -> Array:
    """Transpose to groups of axes and flatten each group to one axis."""
    order = [axis for group in groups for axis in group]
    sizes = [math.prod(x.shape[axis] for axis in group) for group in groups]
    return x.transpose(order).reshape(sizes)


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
