"""Element types: everything that ml_dtypes and XLA share, and ``token``.

Names are short and fixed (``f32``, ``bf16``, ``i4``, ``f8e4m3fn``); NumPy arrays of the narrow
ones come from ml_dtypes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, cast, final

import ml_dtypes
import numpy as np

from rlx.errors import DTypeError, did_you_mean

if TYPE_CHECKING:
    import numpy.typing as npt


@final
class Kind(enum.Enum):
    """What family of numbers a dtype belongs to."""

    BOOL = "bool"
    INT = "signed integer"
    UINT = "unsigned integer"
    FLOAT = "float"
    COMPLEX = "complex"
    TOKEN = "token"


@final
class DType(enum.Enum):
    """An element type.

    Attributes:
        label: the short name, as printed.
        kind: the family of numbers.
        bits: width in bits; ``i4`` is 4 although NumPy stores it in a byte.
        numpy: the NumPy (or ml_dtypes) dtype that holds one element.
    """

    BOOL = ("bool", Kind.BOOL, 8, np.bool_)
    I2 = ("i2", Kind.INT, 2, ml_dtypes.int2)
    I4 = ("i4", Kind.INT, 4, ml_dtypes.int4)
    I8 = ("i8", Kind.INT, 8, np.int8)
    I16 = ("i16", Kind.INT, 16, np.int16)
    I32 = ("i32", Kind.INT, 32, np.int32)
    I64 = ("i64", Kind.INT, 64, np.int64)
    U2 = ("u2", Kind.UINT, 2, ml_dtypes.uint2)
    U4 = ("u4", Kind.UINT, 4, ml_dtypes.uint4)
    U8 = ("u8", Kind.UINT, 8, np.uint8)
    U16 = ("u16", Kind.UINT, 16, np.uint16)
    U32 = ("u32", Kind.UINT, 32, np.uint32)
    U64 = ("u64", Kind.UINT, 64, np.uint64)
    F4E2M1FN = ("f4e2m1fn", Kind.FLOAT, 4, ml_dtypes.float4_e2m1fn)
    F6E2M3FN = ("f6e2m3fn", Kind.FLOAT, 6, ml_dtypes.float6_e2m3fn)
    F6E3M2FN = ("f6e3m2fn", Kind.FLOAT, 6, ml_dtypes.float6_e3m2fn)
    F8E3M4 = ("f8e3m4", Kind.FLOAT, 8, ml_dtypes.float8_e3m4)
    F8E4M3 = ("f8e4m3", Kind.FLOAT, 8, ml_dtypes.float8_e4m3)
    F8E4M3B11FNUZ = ("f8e4m3b11fnuz", Kind.FLOAT, 8, ml_dtypes.float8_e4m3b11fnuz)
    F8E4M3FN = ("f8e4m3fn", Kind.FLOAT, 8, ml_dtypes.float8_e4m3fn)
    F8E4M3FNUZ = ("f8e4m3fnuz", Kind.FLOAT, 8, ml_dtypes.float8_e4m3fnuz)
    F8E5M2 = ("f8e5m2", Kind.FLOAT, 8, ml_dtypes.float8_e5m2)
    F8E5M2FNUZ = ("f8e5m2fnuz", Kind.FLOAT, 8, ml_dtypes.float8_e5m2fnuz)
    F8E8M0FNU = ("f8e8m0fnu", Kind.FLOAT, 8, ml_dtypes.float8_e8m0fnu)
    BF16 = ("bf16", Kind.FLOAT, 16, ml_dtypes.bfloat16)
    F16 = ("f16", Kind.FLOAT, 16, np.float16)
    F32 = ("f32", Kind.FLOAT, 32, np.float32)
    F64 = ("f64", Kind.FLOAT, 64, np.float64)
    C64 = ("c64", Kind.COMPLEX, 64, np.complex64)
    C128 = ("c128", Kind.COMPLEX, 128, np.complex128)
    TOKEN = ("token", Kind.TOKEN, 0, np.bool_)

    def __init__(self, label: str, kind: Kind, bits: int, scalar: Any) -> None:
        self.label = label
        self.kind = kind
        self.bits = bits
        self.numpy: np.dtype[Any] = np.dtype(scalar)

    __hash__ = object.__hash__  # each is one object; an Enum hashes its name, in Python

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return self.label

    @property
    def is_float(self) -> bool:
        """Whether this is a real floating-point type of any width."""
        return self.kind is Kind.FLOAT

    @property
    def is_complex(self) -> bool:
        """Whether this is a complex type."""
        return self.kind is Kind.COMPLEX

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type (not bool)."""
        return self.kind is Kind.INT or self.kind is Kind.UINT

    @property
    def is_signed(self) -> bool:
        """Whether negative numbers exist in this type."""
        return self.kind in (Kind.INT, Kind.FLOAT, Kind.COMPLEX)

    @property
    def itemsize(self) -> int:
        """Bytes that one element takes in a NumPy array."""
        return self.numpy.itemsize

    @property
    def real(self) -> DType:
        """The type of the parts of a complex type; itself otherwise."""
        return {DType.C64: DType.F32, DType.C128: DType.F64}.get(self, self)

    @property
    def compute(self) -> DType:
        """The type in which meaning is computed before rounding once to this type.

        Floats narrower than 32 bits compute in ``f32``, sub-byte integers in ``i32``.
        """
        if self.kind is Kind.FLOAT and self.bits < 32:
            return DType.F32
        if self.is_integer and self.bits < 8:
            return DType.I32
        return self


BY_LABEL: dict[str, DType] = {d.label: d for d in DType}
_BY_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in DType if d is not DType.TOKEN}
_BY_NUMPY_NAME: dict[str, DType] = {d.numpy.name: d for d in DType if d is not DType.TOKEN}

# Rank of the RLX promotion table (rlx-semantics 1.1); ties go to the left operand.
_RANK = {
    DType.BOOL: 0, DType.I8: 1, DType.U8: 1, DType.I16: 2, DType.BF16: 2, DType.F16: 3,
    DType.I32: 4, DType.U32: 4, DType.I64: 5, DType.F32: 6, DType.F64: 7, DType.C64: 8,
    DType.C128: 9, DType.U16: 2, DType.U64: 5,
}  # fmt: skip


def as_dtype(spec: DType | str | npt.DTypeLike) -> DType:
    """Return the DType that a DType, a label (``"f32"``) or a NumPy dtype names.

    Raises:
        DTypeError: no such dtype; the closest name is suggested.
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str):
        found = BY_LABEL.get(spec) or _BY_NUMPY_NAME.get(spec)
        if found is not None:
            return found
        raise DTypeError(
            f"dtype: required one of {', '.join(BY_LABEL)}; got {spec!r}."
            f"{did_you_mean(spec, [*BY_LABEL, *_BY_NUMPY_NAME])}"
        )
    try:
        if cast("object", spec) is None:  # NumPy's float64
            raise TypeError
        numpy_dtype = np.dtype(spec)
    except (TypeError, ValueError) as error:  # ValueError: it has an attribute ``dtype``
        raise DTypeError(f"dtype: required a dtype or its name; got {spec!r}.") from error
    found = _BY_NUMPY.get(numpy_dtype)
    if found is None:
        raise DTypeError(f"dtype: {numpy_dtype} has no counterpart in RLX or XLA.")
    return found


def promote(lhs: DType, rhs: DType) -> DType:
    """Return RLX's common type of two dtypes (used for Python scalars in operators only).

    Source: RLX's promotion table; 16- and 64-bit unsigned types are ranked with their signed kin.
    """
    if lhs is rhs:
        return lhs
    pair = {lhs, rhs}
    if pair == {DType.F16, DType.BF16}:
        return DType.F32
    if lhs.is_integer != rhs.is_integer and (lhs.is_float or rhs.is_float):
        floating, integer = (lhs, rhs) if lhs.is_float else (rhs, lhs)
        if integer.is_integer:
            wide = floating is DType.F64 or integer in (DType.I64, DType.U64)
            return DType.F64 if wide else DType.F32
    for dtype in (lhs, rhs):
        if dtype not in _RANK:
            raise DTypeError(
                f"promote: {lhs} and {rhs} have no common type. Convert one of them explicitly."
            )
    return lhs if _RANK[lhs] >= _RANK[rhs] else rhs
