"""Dense attributes as NumPy arrays, for every dtype, and MLIR locations as ours."""

from __future__ import annotations

import re
from typing import Any, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import FormatError
from rlx.ir import location as loc
from rlx.ir.location import Location
from rlx_xla._jax_compat.mlir import ir

_HEX = re.compile(r'"0x([0-9A-Fa-f]*)"$')
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|true|false")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAME = re.compile(r'^loc\("((?:[^"\\]|\\.)*)"')
_BY_BUFFER = frozenset({
    DType.BOOL, DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32,
    DType.U64, DType.F16, DType.F32, DType.F64,
})  # fmt: skip


def constant_array(op: Any, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Read a constant; a splat gives one element of rank 0, whatever its type claims.

    Args:
        op: a ``stablehlo.constant``.
        dtype: the element type of its result.
        shape: the shape of its result.

    Raises:
        FormatError: its value is no dense attribute (a resource, say), or holds another number of
            elements than its type says.
    """
    if dtype not in _BY_BUFFER:  # the bindings have no buffers of these: read what is printed
        return _from_text(str(op), dtype, shape)
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr):
        raise _no_dense(str(value))
    if value.is_splat:
        # The buffer of a splat has strides of zero: nothing of the claimed size is allocated.
        view: Any = memoryview(value)  # pyright: ignore[reportArgumentType]
        return np.array(np.asarray(view).flat[0], dtype.numpy)
    return np.array(value).astype(dtype.numpy, copy=False).reshape(shape)


def _from_text(text: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    start, end = text.find("dense<"), text.rfind("> : ")
    if start < 0 or end < start:
        raise _no_dense(text)
    body = text[start + len("dense<") : end]
    found = _HEX.match(body)
    if found:
        flat = _from_bits(np.frombuffer(bytes.fromhex(found.group(1)), _bits_of(dtype)), dtype)
    else:
        flat = _from_numbers(_NUMBER.findall(body), dtype)
    if flat.size == 1:
        return flat.reshape(())
    if flat.size != int(np.prod(shape, dtype=np.int64)):
        raise FormatError(
            f"from_stablehlo: a constant of type {dtype}{list(shape)} must hold as many elements; "
            f"it holds {flat.size}. The file is damaged."
        )
    return flat.reshape(shape)


def _no_dense(found: str) -> FormatError:
    return FormatError(
        f"from_stablehlo: a constant must be a dense attribute; got {found[:60]}…. "
        "Print the module with its constants in place."
    )


def _bits_of(dtype: DType) -> np.dtype[Any]:
    """The unsigned integers that MLIR stores the elements (or parts of complex ones) in."""
    part = dtype.real
    return np.dtype(f"<u{part.numpy.itemsize}")


def _from_bits(bits: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.is_integer and dtype.bits < 8:
        wide = (bits & ((1 << dtype.bits) - 1)).astype(np.int16)
        if dtype.is_signed:
            wide = np.where(wide >= 1 << (dtype.bits - 1), wide - (1 << dtype.bits), wide)
        return wide.astype(dtype.numpy)
    if dtype is DType.BOOL:
        return bits.astype(np.bool_)
    return bits.view(dtype.numpy)


def _from_numbers(numbers: list[str], dtype: DType) -> np.ndarray:
    """Elements as MLIR prints them: decimal, or the bits of a float in hexadecimal."""
    part = dtype.real
    width = _bits_of(dtype)
    values = np.empty(len(numbers), part.numpy)
    for index, number in enumerate(numbers):
        if number.startswith("0x") and part.is_float:
            values[index] = np.array(int(number, 16), width).view(part.numpy)
        elif part.is_float:
            values[index] = float(number)
        elif number in ("true", "false"):
            values[index] = number == "true"
        else:
            values[index] = int(number, 0)
    return values.view(dtype.numpy) if dtype.is_complex else values


@final
class Locations:
    """MLIR locations as ours, by their text."""

    def __init__(self) -> None:
        """Start without any."""
        self._known: dict[str, Location] = {}

    def of(self, where: ir.Location) -> Location:
        """The innermost file and line, and the scope that the name gives."""
        text = str(where)
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = _location(text)
        return found


def _location(text: str) -> Location:
    name = _NAME.match(text)
    file = _FILE.search(text)
    label = ""
    if name and not (file and file.start() == name.start(1) - 1):
        label = scope_label(name.group(1))
    if file:
        place = "<stablehlo>" if file.group(1) == "-" else file.group(1)
        return loc.intern(place, int(file.group(2)), label)
    return loc.intern("", 0, label) if label else loc.UNKNOWN


def scope_label(name: str) -> str:
    """``jit(f)/encoder/jit(silu)/mul`` → ``encoder``: functions and the op's own name left out."""
    parts = re.sub(r"\([^()/]*(?:\([^()]*\)[^()/]*)*\)", "()", name).split("/")
    if len(parts) == 1:
        return name if "()" not in parts[0] else ""
    return "/".join(p for p in parts[:-1] if p and not p.endswith("()"))


def argument_name(where: ir.Location) -> str:
    """The name that an argument's location gives, or an empty string."""
    name = _NAME.match(str(where))
    return name.group(1) if name and '":' not in str(where) else ""
