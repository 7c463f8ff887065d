"""Identities, checks and NumPy kernels that the reductions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import DTypeError
from rlx.ops.axes import require_axes, require_axis
from rlx.ops.elementwise import round_to

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.op import Op
    from rlx.types import TensorType

_NO_INFINITY = frozenset({
    DType.F4E2M1FN, DType.F6E2M3FN, DType.F6E3M2FN, DType.F8E4M3B11FNUZ, DType.F8E4M3FN,
    DType.F8E4M3FNUZ, DType.F8E5M2FNUZ, DType.F8E8M0FNU,
})  # fmt: skip


def lowest(dtype: DType) -> Any:
    """The identity of max: −inf, the most negative number, or False, as a NumPy scalar."""
    if dtype.kind is Kind.BOOL:
        return np.False_
    if dtype.is_integer:
        info = cast("Any", ml_dtypes.iinfo(dtype.numpy))
        return dtype.numpy.type(info.min)
    if dtype in _NO_INFINITY:
        limits = cast("Any", ml_dtypes.finfo(dtype.numpy))
        return dtype.numpy.type(limits.min)
    return dtype.numpy.type(-np.inf)


def highest(dtype: DType) -> Any:
    """The identity of min: +inf, the largest number, or True, as a NumPy scalar."""
    if dtype.kind is Kind.BOOL:
        return np.True_
    if dtype.is_integer:
        info = cast("Any", ml_dtypes.iinfo(dtype.numpy))
        return dtype.numpy.type(info.max)
    if dtype in _NO_INFINITY:
        limits = cast("Any", ml_dtypes.finfo(dtype.numpy))
        return dtype.numpy.type(limits.max)
    return dtype.numpy.type(np.inf)


def check_axes(op: Op, axes: Sequence[int], x: TensorType) -> None:
    """Check C1: axes are in range and strictly increasing."""
    require_axes(op, "C1", axes, x, sort=True)


def check_axis(op: Op, axis: int, x: TensorType) -> None:
    """Check C1: one axis is in range."""
    require_axis(op, "C1", axis, x)


def check_kind(op: Op, x: TensorType, good: bool, wanted: str) -> None:
    """Check C2: the element type is of the kinds that the op takes."""
    op.require(
        "C2",
        good,
        lambda: f"x is required to hold {wanted}; got {x}. Convert it first.",
        DTypeError,
    )


def is_ordered(dtype: DType) -> bool:
    """Whether the dtype has an order: bool, integers and real floats."""
    return dtype.kind is Kind.BOOL or dtype.is_integer or dtype.is_float


def is_number(dtype: DType) -> bool:
    """Whether the dtype adds and multiplies: integers, floats and complex."""
    return dtype.is_integer or dtype.is_float or dtype.is_complex


def widen(x: Array) -> Array:
    """The array in its compute type (f32 for narrow floats, i32 for sub-byte integers)."""
    return x.astype(as_dtype(x.dtype).compute.numpy, copy=False)


def narrow(wide: Any, dtype: DType) -> Array:
    """Round once to the result type."""
    return np.asarray(round_to(wide, dtype))


def maximum(lhs: Array, rhs: Array) -> Array:
    """Elementwise maximum: NaN wins, and −0 < +0."""
    with np.errstate(all="ignore"):
        picked = np.maximum(lhs, rhs)
        if picked.dtype.kind != "f":
            return picked
        # Of two zeros the sum is −0 only when both are.
        return np.where((lhs == 0) & (rhs == 0), lhs + rhs, picked)


def minimum(lhs: Array, rhs: Array) -> Array:
    """Elementwise minimum: NaN wins, and −0 < +0."""
    if lhs.dtype.kind != "f":
        return np.minimum(lhs, rhs)
    return -maximum(-lhs, -rhs)


def fold(function: Any, x: Array, axes: Sequence[int], initial: Any) -> Array:
    """Reduce axes with an associative and commutative function, from an initial scalar."""
    kept = [i for i in range(x.ndim) if i not in axes]
    moved = np.moveaxis(x, list(axes), range(len(axes)))
    shape = tuple(x.shape[i] for i in kept)
    result: Array = np.full(shape, initial, x.dtype)
    if not moved.size:
        return result
    rows = moved.reshape(-1, *shape)
    while len(rows) > 1:  # in halves: one NumPy call for each doubling, not for each row
        half = len(rows) // 2
        merged = function(rows[:half], rows[half : 2 * half])
        rows = np.concatenate([merged, rows[2 * half :]]) if len(rows) % 2 else merged
    return function(result, rows[0])
