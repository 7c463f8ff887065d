"""The general contraction, and what every product checks."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import round_to
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ops.dot.ragged import RaggedDot


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


@final
class DotAlgorithm(enum.Enum):
    """How a device has to multiply: LHS_RHS_ACCUMULATION dtypes, and Xn for n passes.

    Operands are converted to the storage that the algorithm takes, sums are rounded to its
    accumulation dtype, and then to the result's. A device without the algorithm refuses it.
    """

    ANY_F8_ANY_F8_F32 = "any_f8_any_f8_f32"
    ANY_F8_ANY_F8_F32_FAST_ACCUM = "any_f8_any_f8_f32_fast_accum"
    ANY_F8_ANY_F8_ANY = "any_f8_any_f8_any"
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = "any_f8_any_f8_any_fast_accum"
    F16_F16_F16 = "f16_f16_f16"
    F16_F16_F32 = "f16_f16_f32"
    BF16_BF16_BF16 = "bf16_bf16_bf16"
    BF16_BF16_F32 = "bf16_bf16_f32"
    BF16_BF16_F32_X3 = "bf16_bf16_f32_x3"
    BF16_BF16_F32_X6 = "bf16_bf16_f32_x6"
    BF16_BF16_F32_X9 = "bf16_bf16_f32_x9"
    TF32_TF32_F32 = "tf32_tf32_f32"
    TF32_TF32_F32_X3 = "tf32_tf32_f32_x3"
    F32_F32_F32 = "f32_f32_f32"
    F64_F64_F64 = "f64_f64_f64"

    def storage(self, operand: DType) -> DType:
        """The dtype that an operand is converted to."""
        match self:
            case DotAlgorithm.F16_F16_F16 | DotAlgorithm.F16_F16_F32:
                return DType.F16
            case DotAlgorithm.BF16_BF16_BF16 | DotAlgorithm.BF16_BF16_F32:
                return operand if operand is DType.F32 else DType.BF16
            case DotAlgorithm.F64_F64_F64:
                return DType.F64
            case _:
                return operand if self.takes_f8 else DType.F32

    def accumulation(self, lhs: DType, rhs: DType, result: DType) -> DType:
        """The dtype that sums are rounded to, for the dtypes of operands and result."""
        stored = {self.storage(lhs), self.storage(rhs)}
        match self:
            case DotAlgorithm.F16_F16_F16:
                return DType.F16
            case DotAlgorithm.F16_F16_F32 if result is DType.F16:
                return result
            case DotAlgorithm.BF16_BF16_BF16:
                return DType.BF16
            case DotAlgorithm.BF16_BF16_F32 if result is DType.BF16 and stored == {DType.BF16}:
                return result
            case DotAlgorithm.F64_F64_F64:
                return DType.F64
            case DotAlgorithm.ANY_F8_ANY_F8_ANY | DotAlgorithm.ANY_F8_ANY_F8_ANY_FAST_ACCUM:
                return result
            case _:
                narrow = self.takes_f8 and result is not DType.F64
                return result if narrow else DType.F32

    @property
    def takes_f8(self) -> bool:
        """Whether operands are of any two 8-bit float types."""
        return self.value.startswith("any_f8")


def check_algorithm(
    op: Op, algorithm: DotAlgorithm | None, lhs: TensorType, rhs: TensorType, label: str
) -> None:
    """Check that a named algorithm takes the operands: real floats, 8-bit ones where it says so."""

    def good(dtype: DType) -> bool:
        f8 = dtype.is_float and dtype.bits == 8
        return algorithm is None or (f8 if algorithm.takes_f8 else dtype.is_float)

    op.require(
        label,
        good(lhs.dtype) and good(rhs.dtype),
        lambda: (
            f"the algorithm {algorithm and algorithm.value} is required to get "
            f"{'8-bit' if algorithm and algorithm.takes_f8 else 'real'} floats; got lhs: {lhs} and "
            f"rhs: {rhs}. Convert them, or leave the algorithm out."
        ),
        DTypeError,
    )


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
        algorithm: the one way in which a device has to multiply; None leaves it to precision.

    Result:
        Batch axes, then the other axes of lhs, then those of rhs.

    Constraints:
        C1: contracting and batch axes are in range, distinct, and as many for lhs as for rhs.
        C2: paired contracting axes have one size.
        C3: paired batch axes have one size.
        C4: lhs and rhs have one dtype, or preferred_element_type is given and of their kind.
        C5: precision has two entries.
        C6: an algorithm gets real floats, and an f8 one 8-bit floats.

    Numerics: floats narrower than f32 accumulate in f32 and round once; integers wrap around. A
        device with the algorithm may round operands more than is said here, never less.
    Source: StableHLO `dot_general`, `jax.lax.dot_general`; RLX `Op::DotGeneral`.
    """

    lhs_contracting: tuple[int, ...] = ()
    rhs_contracting: tuple[int, ...] = ()
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    precision: tuple[DotPrecision, ...] = DEFAULT_PRECISION
    preferred_element_type: DType | None = None
    algorithm: DotAlgorithm | None = None

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        check_contraction(self, lhs, rhs, "C1", "C2", "C3")
        result = check_product(self, lhs, rhs, self.preferred_element_type, "C4")
        check_precision(self, "C5")
        check_algorithm(self, self.algorithm, lhs, rhs, "C6")
        batch = [lhs.shape[i] for i in self.lhs_batch]
        left_free = [lhs.shape[i] for i in self.lhs_free(lhs.rank)]
        right_free = [rhs.shape[i] for i in self.rhs_free(rhs.rank)]
        return TensorType(result, (*batch, *left_free, *right_free))

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        left_dtype, right_dtype = as_dtype(lhs.dtype), as_dtype(rhs.dtype)
        result = summed = self.preferred_element_type or left_dtype
        if self.algorithm is not None:
            summed = self.algorithm.accumulation(left_dtype, right_dtype, result)
            left_dtype, right_dtype = map(self.algorithm.storage, (left_dtype, right_dtype))
            lhs, rhs = round_to(lhs, left_dtype), round_to(rhs, right_dtype)
        wide = accumulator(left_dtype, right_dtype, summed).numpy
        left_free, right_free = self.lhs_free(lhs.ndim), self.rhs_free(rhs.ndim)
        left = _arrange(lhs.astype(wide), self.lhs_batch, left_free, self.lhs_contracting)
        right = _arrange(rhs.astype(wide), self.rhs_batch, self.rhs_contracting, right_free)
        with np.errstate(all="ignore"):
            product = np.matmul(left, right)
        shape = [lhs.shape[i] for i in (*self.lhs_batch, *left_free)]
        shape += [rhs.shape[i] for i in right_free]
        return round_to(round_to(product.reshape(shape), summed), result)

    def lhs_free(self, rank: int) -> tuple[int, ...]:
        """Axes of lhs that are neither batch nor contracting."""
        taken = (*self.lhs_batch, *self.lhs_contracting)
        return tuple(i for i in range(rank) if i not in taken)

    def rhs_free(self, rank: int) -> tuple[int, ...]:
        """Axes of rhs that are neither batch nor contracting."""
        taken = (*self.rhs_batch, *self.rhs_contracting)
        return tuple(i for i in range(rank) if i not in taken)


def check_contraction(
    op: DotGeneral | RaggedDot,
    lhs: TensorType,
    rhs: TensorType,
    axes_label: str,
    contracting_label: str,
    batch_label: str,
) -> None:
    """Check that axes are in range, distinct and paired, and that pairs have one size."""
    sides = (
        ("lhs", (*op.lhs_batch, *op.lhs_contracting), lhs),
        ("rhs", (*op.rhs_batch, *op.rhs_contracting), rhs),
    )
    for name, axes, type_ in sides:
        op.require(
            axes_label,
            len(set(axes)) == len(axes) and all(0 <= a < type_.rank for a in axes),
            lambda name=name, axes=axes, type_=type_: (
                f"axes of {name}: {type_} are required to be distinct and from 0 to "
                f"{type_.rank - 1}; got batch and contracting axes {axes}. Count from 0."
            ),
        )
    op.require(
        axes_label,
        len(op.lhs_contracting) == len(op.rhs_contracting)
        and len(op.lhs_batch) == len(op.rhs_batch),
        lambda: (
            f"lhs and rhs are required to have as many contracting axes and as many batch "
            f"axes; got {op.lhs_contracting} with {op.rhs_contracting} and "
            f"{op.lhs_batch} with {op.rhs_batch}. Pair them."
        ),
    )

    def message(role: str) -> str:
        left, right = (op.lhs_batch, op.rhs_batch)
        if role == "contracting":
            left, right = (op.lhs_contracting, op.rhs_contracting)
        return (
            f"{role} axes are required to have one size; got lhs: {lhs} with {left} and "
            f"rhs: {rhs} with {right}. Check the axes."
        )

    op.require_same_dims(
        contracting_label,
        tuple(lhs.shape[i] for i in op.lhs_contracting),
        tuple(rhs.shape[i] for i in op.rhs_contracting),
        lambda: message("contracting"),
    )
    op.require_same_dims(
        batch_label,
        tuple(lhs.shape[i] for i in op.lhs_batch),
        tuple(rhs.shape[i] for i in op.rhs_batch),
        lambda: message("batch"),
    )


def check_precision(op: DotGeneral | RaggedDot, label: str) -> None:
    """Check that there is a precision for each operand."""
    op.require(
        label,
        len(op.precision) == 2,
        lambda: (
            f"precision is required to have two entries; got {len(op.precision)}. "
            "Give one for lhs and one for rhs."
        ),
    )


def _arrange(x: Array, *groups: Sequence[int]) -> Array:
    """Transpose to groups of axes and flatten each group to one axis."""
    order = [axis for group in groups for axis in group]
    sizes = [math.prod(x.shape[axis] for axis in group) for group in groups]
    return x.transpose(order).reshape(sizes)
