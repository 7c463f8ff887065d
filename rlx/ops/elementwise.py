"""Shared checks and number rules of the elementwise families.

Narrow floats compute in f32 and sub-byte integers in i32, and round once to the result type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import DTypeError

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.op import Op
    from rlx.types import TensorType

INTEGER = frozenset({Kind.INT, Kind.UINT})
FLOATING = frozenset({Kind.FLOAT})
INEXACT = frozenset({Kind.FLOAT, Kind.COMPLEX})
REAL = INTEGER | FLOATING
SIGNED = frozenset({Kind.INT, Kind.FLOAT, Kind.COMPLEX})
NUMBER = INTEGER | INEXACT
LOGICAL = INTEGER | {Kind.BOOL}
ORDERED = REAL | {Kind.BOOL}
ANY = NUMBER | {Kind.BOOL}


def require_kind(op: Op, label: str, name: str, x: TensorType, kinds: frozenset[Kind]) -> None:
    """Raise DTypeError with the label unless the dtype's kind is one of ``kinds``."""
    op.require(
        label,
        x.dtype.kind in kinds,
        lambda: (
            f"{name} is required to be {_listing(kinds)}; got {x}. Convert it first, or use an "
            f"op that takes {x.dtype}."
        ),
        DTypeError,
    )


def unary_result(op: Op, x: TensorType, kinds: frozenset[Kind]) -> TensorType:
    """Check C1 (the kind of dtype), and return x's type."""
    require_kind(op, "C1", "x", x, kinds)
    return x


def binary_result(
    op: Op, lhs: TensorType, rhs: TensorType, kinds: frozenset[Kind] = ANY
) -> TensorType:
    """Check C1 (one shape), C2 (one dtype) and C3 (its kind), and return the common type."""
    require_same_type(op, "lhs", lhs, "rhs", rhs)
    require_kind(op, "C3", "lhs", lhs, kinds)
    return lhs


def require_same_type(op: Op, left: str, lhs: TensorType, right: str, rhs: TensorType) -> None:
    """Check C1 (one shape) and C2 (one dtype) of two named inputs."""
    if lhs == rhs:
        return
    op.require_same_dims(
        "C1",
        rhs.shape,
        lhs.shape,
        lambda: (
            f"{left} and {right} are required to have one shape; got {lhs} and {rhs}. "
            "Broadcast one of them (operators on values do it)."
        ),
    )
    op.require(
        "C2",
        lhs.dtype is rhs.dtype,
        lambda: (
            f"{left} and {right} are required to have one dtype; got {lhs} and {rhs}. "
            "Convert one of them."
        ),
        DTypeError,
    )


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


def precise(function: Callable[..., Any], *arrays: Array) -> Array:
    """Apply a NumPy function of floats in double precision and round once to their dtype.

    The functions of this kind have no exact result, so the reference is the best at hand.
    """
    dtype = as_dtype(arrays[0].dtype)
    target = np.complex128 if dtype.is_complex else np.float64
    with np.errstate(all="ignore"):
        wide = function(*(a.astype(target, copy=False) for a in arrays))
        return np.asarray(round_to(wide, dtype))


def parts(x: Array) -> tuple[Array, Array]:
    """Real and imaginary parts; views for a complex array."""
    return np.real(x), np.imag(x)


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


_KIND_TEXT = {
    Kind.BOOL: "bool",
    Kind.INT: "signed integer",
    Kind.UINT: "unsigned integer",
    Kind.FLOAT: "float",
    Kind.COMPLEX: "complex",
}


def _listing(kinds: frozenset[Kind]) -> str:
    names = [text for kind, text in _KIND_TEXT.items() if kind in kinds]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
