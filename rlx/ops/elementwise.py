"""Shared checks and number rules of the elementwise families.

Narrow floats compute in f32 and sub-byte integers in i32, and round once to the result type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.op import Op
    from rlx.types import TensorType


def binary_result(op: Op, lhs: TensorType, rhs: TensorType) -> TensorType:
    """Check C1 (one shape) and C2 (one dtype), and return the common type."""
    if lhs == rhs:
        return lhs
    op.require_same_dims(
        "C1",
        rhs.shape,
        lhs.shape,
        lambda: (
            f"lhs and rhs are required to have one shape; got {lhs} and {rhs}. "
            "Broadcast one of them (operators on values do it)."
        ),
    )
    op.require(
        "C2",
        lhs.dtype is rhs.dtype,
        lambda: (
            f"lhs and rhs are required to have one dtype; got {lhs} and {rhs}. "
            "Convert one of them."
        ),
        DTypeError,
    )
    return lhs


def compute1(function: Callable[[Any], Any], x: Array) -> Array:
    """Apply a NumPy function in the compute type and round once to x's dtype."""
    dtype = as_dtype(x.dtype)
    wide = x.astype(dtype.compute.numpy, copy=False)
    with np.errstate(all="ignore"):
        return np.asarray(round_to(function(wide), dtype))


def compute2(function: Callable[[Any, Any], Any], lhs: Array, rhs: Array) -> Array:
    """Apply a NumPy function of two arrays in the compute type and round once."""
    dtype = as_dtype(lhs.dtype)
    target = dtype.compute.numpy
    with np.errstate(all="ignore"):
        wide = function(lhs.astype(target, copy=False), rhs.astype(target, copy=False))
        return np.asarray(round_to(wide, dtype))


def round_to(wide: Any, dtype: DType) -> Array:
    """Round a wide result to a dtype; integers narrower than a byte wrap around."""
    array = np.asarray(wide)
    if dtype.is_integer and dtype.bits < 8:
        mask = (1 << dtype.bits) - 1
        bits = array.astype(np.int64) & mask
        if dtype.is_signed:
            bits = np.where(bits > mask >> 1, bits - mask - 1, bits)
        return bits.astype(dtype.numpy)
    with np.errstate(all="ignore"):
        return array.astype(dtype.numpy, copy=False)
