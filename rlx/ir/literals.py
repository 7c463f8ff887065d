"""Elements of arrays as text, bit for bit, and back.

Ints are decimal, bools ``true`` and ``false``, floats the shortest decimals that round to the
same bits, else ``0x`` and the bits (NaN payloads); complex numbers are pairs of parts. At most
sixteen elements are written one by one, nested by axis; more are ``b64"…"``: their bytes, little
endian, in C order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.errors import FormatError
from rlx.ir.attributes import Literal
from rlx.ir.scanner import quoted_bytes, shown
from rlx.types import TensorType

INLINE = 16
"""Most elements that are written one by one."""

Element: TypeAlias = "tuple[str, ...]"
"""Text of one number, or of the two parts of a complex one."""

_NAN = struct.pack("<d", float("nan"))


def float_text(value: float) -> str:
    """Return a Python float so that the same bits are read back."""
    if value != value:
        bits = struct.pack("<d", value)
        return "nan" if bits == _NAN else f"nan(0x{bits[::-1].hex()})"
    return repr(value)


def data_text(literal: Literal) -> str:
    """Return a literal's elements without its type."""
    array = literal.array
    if array.size > INLINE:
        return quoted_bytes(literal.tobytes())
    dtype = literal.type.dtype
    if array.ndim == 0:
        return _element_text(array[()], dtype)
    if array.size == 0:
        return "[]"
    texts = [_element_text(v, dtype) for v in array.reshape(-1)]
    for size in reversed(array.shape):
        texts = [f"[{', '.join(texts[i : i + size])}]" for i in range(0, len(texts), size)]
    return texts[0]


def _element_text(value: Any, dtype: DType) -> str:
    if dtype.kind is Kind.BOOL:
        return "true" if value else "false"
    if dtype.is_integer:
        text = str(int(value))
        bits = np.asarray(value).tobytes()
        return text if dtype.bits >= 8 or bits == _integer_bytes(text, dtype) else _hex(bits)
    if dtype.is_complex:
        # The parts are taken from the bytes: arithmetic may change a NaN's payload.
        parts = np.frombuffer(np.asarray(value).tobytes(), dtype.real.numpy)
        return f"({_float_element(parts[0], dtype.real)}, {_float_element(parts[1], dtype.real)})"
    return _float_element(value, dtype)


def _float_element(value: Any, dtype: DType) -> str:
    bits = np.asarray(value).tobytes()
    number = float(value)
    whole = repr(number)
    if dtype is DType.F64 or len(whole) <= 6 or number != number:
        texts = [whole]
    else:
        texts = [f"{number:.{digits}g}" for digits in range(2, 10)] + [whole]
    for text in texts:
        if _float_bytes(float(text), dtype) == bits:
            plain = text.lstrip("-").isdecimal()
            return text + ".0" if plain else text
    return _hex(bits)


def _hex(bits: bytes) -> str:
    return f"0x{bits[::-1].hex()}"


def _float_bytes(number: float, dtype: DType) -> bytes:
    if dtype is DType.F64:
        return struct.pack("<d", number)
    with np.errstate(all="ignore"):
        return np.float64(number).astype(dtype.numpy).tobytes()


def from_bytes(kind: TensorType, data: bytes) -> Literal:
    """Return the literal that raw bytes hold.

    Raises:
        FormatError: there are too few or too many bytes, or they are no elements of the dtype.
    """
    wanted = _static_size(kind) * kind.dtype.itemsize
    if len(data) != wanted:
        raise FormatError(f"{wanted} bytes are required for {kind}; got {len(data)}.")
    array = np.frombuffer(data, kind.dtype.numpy)
    check_elements(array, kind.dtype)
    return _literal(array, kind)


def from_elements(kind: TensorType, elements: Sequence[Element], shape: Sequence[int]) -> Literal:
    """Return the literal that elements written one by one describe.

    Args:
        kind: the literal's type.
        elements: texts in C order.
        shape: how the elements were nested.

    Raises:
        FormatError: the nesting is not the type's shape, or an element is not of its dtype.
    """
    size = _static_size(kind)
    empty = size == 0 and not elements and kind.rank
    if not empty and tuple(shape) != kind.shape:
        raise FormatError(f"elements nested as {kind.shape} are required; got {tuple(shape)}.")
    data = b"".join(_element_bytes(element, kind.dtype) for element in elements)
    return _literal(np.frombuffer(data, kind.dtype.numpy), kind)


def check_elements(array: Any, dtype: DType) -> None:
    """Refuse bools other than 0 and 1, which NumPy and XLA take on trust.

    Raises:
        FormatError: there is such a byte.
    """
    if dtype.kind is Kind.BOOL and array.size and array.reshape(-1).view(np.uint8).max() > 1:
        raise FormatError("a bool of 0 or 1 is required in every byte; there are others.")


def _static_size(kind: TensorType) -> int:
    size = kind.size
    if not isinstance(size, int) or kind.dtype is DType.TOKEN:
        raise FormatError(f"a type with fixed dims and numbers is required; got {kind}.")
    return size


def _literal(flat: Any, kind: TensorType) -> Literal:
    try:
        return Literal(flat.reshape(kind.shape))
    except ValueError as error:  # more axes, or longer ones, than NumPy takes
        raise FormatError(f"a shape that NumPy takes is required; got {kind}: {error}.") from error


def _element_bytes(element: Element, dtype: DType) -> bytes:
    if dtype.is_complex:
        if len(element) != 2:
            raise FormatError(f"a pair (real, imaginary) is required; got {shown(element[0])}.")
        return _element_bytes(element[:1], dtype.real) + _element_bytes(element[1:], dtype.real)
    text = element[0]
    if len(element) != 1:
        raise FormatError(f"a number of {dtype} is required; got a pair.")
    if dtype.kind is Kind.BOOL:
        if text not in ("true", "false"):
            raise FormatError(f"'true' or 'false' is required; got {shown(text)}.")
        return b"\x01" if text == "true" else b"\x00"
    if text.startswith("0x"):
        return _bits(text, dtype)
    if dtype.is_integer:
        return _integer_bytes(text, dtype)
    if text in ("true", "false"):
        raise FormatError(f"a number of {dtype} is required; got {shown(text)}.")
    try:
        number = float(text)
    except ValueError as error:
        raise FormatError(f"a number of {dtype} is required; got {shown(text)}.") from error
    data = _float_bytes(number, dtype)
    finite = abs(number) < float("inf")
    if finite and not abs(float(np.frombuffer(data, dtype.numpy)[0])) < float("inf"):
        raise FormatError(f"a number in the range of {dtype} is required; got {shown(text)}.")
    return data


def _bits(text: str, dtype: DType) -> bytes:
    digits = text[2:]
    if len(digits) != 2 * dtype.itemsize:
        raise FormatError(
            f"{2 * dtype.itemsize} hexadecimal digits are required for {dtype}; got {shown(text)}."
        )
    data = bytes.fromhex(digits)[::-1]
    check_elements(np.frombuffer(data, dtype.numpy), dtype)
    return data


def _integer_bytes(text: str, dtype: DType) -> bytes:
    if not text.lstrip("+-").isdecimal() or len(text) > 40:
        raise FormatError(f"an integer of {dtype} is required; got {shown(text)}.")
    number = int(text)
    signed = dtype.kind is Kind.INT
    low = -(1 << (dtype.bits - 1)) if signed else 0
    if not low <= number < low + (1 << dtype.bits):
        raise FormatError(f"an integer in the range of {dtype} is required; got {shown(text)}.")
    return (number & ((1 << dtype.bits) - 1)).to_bytes(dtype.itemsize, "little")
