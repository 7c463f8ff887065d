"""Python numbers and lists as arrays of a declared dtype, without losing what they say."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.errors import DTypeError, RunError

_ORDER = (Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.COMPLEX)
_PYTHON = {"b": Kind.BOOL, "i": Kind.INT, "u": Kind.INT, "f": Kind.FLOAT, "c": Kind.COMPLEX}
_EXTENSIONS = {d.numpy for d in DType if d.numpy.kind == "V"}
_WORD = {Kind.BOOL: "bools", Kind.INT: "integers", Kind.FLOAT: "floats", Kind.COMPLEX: "complex"}


def python_array(
    where: str,
    value: Any,
    dtype: DType,
    *,
    error: type[RunError] | type[DTypeError] = RunError,
) -> np.ndarray[Any, Any]:
    """Return a Python number, or nested lists of numbers, as an array of a dtype.

    Args:
        where: beginning of the message, such as ``"run: input 'x'"``.
        value: a number, or lists of equal lengths.
        dtype: floats round to it; integers must fit it; no kind is narrowed (1.5 for i32).
        error: class of the error.

    Raises:
        RunError: (or ``error``) ragged lists, no numbers, another kind, or integers out of range.
    """
    try:
        given = np.asarray(value)
    except ValueError as cause:
        raise error(
            f"{where} is required to be an array of {dtype}; got lists of different lengths. "
            "Make them equally long."
        ) from cause
    if given.dtype == dtype.numpy:
        return given
    if given.dtype == object and all(isinstance(n, int) for n in cast("Any", given.flat)):
        kind = Kind.INT  # integers beyond 64 bits
    elif given.dtype.kind in _PYTHON:
        kind = _PYTHON[given.dtype.kind]
    else:
        raise error(
            f"{where} is required to be an array of {dtype}; got {given.dtype} from "
            f"{type(value).__name__}. Pass numbers."
        )
    target = Kind.INT if dtype.is_integer else dtype.kind
    if given.size and (target not in _ORDER or _ORDER.index(kind) > _ORDER.index(target)):
        raise error(f"{where} is required to be {dtype}; got {_WORD[kind]}. Convert them first.")
    if dtype.is_integer and given.size:
        smallest, largest = integer_range(dtype)
        low, high = int(given.min()), int(given.max())
        if low < smallest or high > largest:
            found = low if low < smallest else high
            raise error(
                f"{where} is required to be {dtype}: {found} does not fit {dtype}, whose range is "
                f"{smallest} to {largest}. Use a number in range or a wider dtype."
            )
    if given.dtype == object:
        if max(abs(int(n)) for n in given.flat) >= 2**1023:
            raise error(f"{where} is required to be {dtype}; got an integer of over 1023 bits.")
        given = given.astype(np.float64)
    with np.errstate(over="ignore"):  # beyond the largest float is infinity, as in JAX
        return given.astype(dtype.numpy)


def refuse_masked(
    where: str, value: object, *, error: type[RunError] | type[DTypeError] = RunError
) -> None:
    """Refuse an array of NumPy with a mask, which a graph would lose.

    Raises:
        RunError: (or ``error``) it is one.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise error(
            f"{where} is required to be an array without a mask; got a masked array. Use "
            ".filled(value), or pass its data and its mask."
        )


def cast_array(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Return an array converted as the op ``convert`` does, on every path alike.

    Text, objects, and complex numbers for a real dtype come back unchanged: the caller refuses
    them by their dtype.
    """
    from rlx.ops.convert import Convert

    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    known = native.dtype.kind in "biufc" or native.dtype in _EXTENSIONS
    if not known or (native.dtype.kind == "c" and not dtype.is_complex):
        return array
    return np.asarray(Convert(dtype=dtype).evaluate(native), dtype.numpy)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest number of an integer dtype."""
    if dtype.kind is Kind.INT:
        return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
    return 0, 2**dtype.bits - 1
