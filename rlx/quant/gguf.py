"""GGUF files: memory-mapped, and checked before anything that they claim is believed.

Opening reads the header only; ``array`` is a view of the file's pages and copies nothing.

Source: the public GGUF specification (ggml), versions 1 to 3.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import re
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import FormatError, RlxError, did_you_mean
from rlx.ir.attributes import Array
from rlx.ir.container import map_file, path_text, raw_bytes, view, written_whole
from rlx.ir.foreign_files import START, kind_of, wrong_file
from rlx.ir.scanner import shown
from rlx.quant.packed import decode
from rlx.quant.pages import release_pages
from rlx.quant.schemes import QuantScheme
from rlx.quant.texts import TextTable
from rlx.types import MAX_BYTES, TensorType

_MAGIC = b"GGUF"
_PLAIN = {
    0: DType.F32, 1: DType.F16, 24: DType.I8, 25: DType.I16, 26: DType.I32, 27: DType.I64,
    28: DType.F64, 30: DType.BF16,
}  # fmt: skip
"""Tensor types that are not quantised, by number."""

_NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "u1", 10: "u8",
            11: "i8", 12: "f8"}  # fmt: skip
"""Metadata types that are numbers (7: a bool), as NumPy's codes."""

_BOOL, _STRING, _ARRAY = 7, 8, 9
_DEFAULT_ALIGNMENT, _MAX_ALIGNMENT = 32, 1 << 16
_MAX_AXES = 4
_MAX_NAME = 1 << 16
_MAX_STRINGS = 1 << 22
"""Strings in one metadata array; the largest vocabularies have a sixteenth of that."""
_MAX_FILES = 1000

_CONVERT = "Convert the model to GGUF."
_SPLIT = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@final
@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        name: unique in the file.
        shape: sizes, outermost first (files have them the other way round).
        scheme: how it is quantised, or None.
        type: of what is stored: u8[..., bytes of a row] when quantised.
        file: number of the part that holds it, for models in several files.
        offset: bytes from the start of that file.
    """

    name: str
    shape: tuple[int, ...]
    scheme: QuantScheme | None
    type: TensorType
    file: int
    offset: int


@final
class GgufFile:
    """An open file, or several that make one model.

    Attributes:
        version: of the format, 1 to 3.
        metadata: numbers, strings, NumPy arrays and tables of strings (`TextTable`) by key.
        tensors: what there is, by name, in the order of the files.
    """

    def __init__(
        self,
        version: int,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, GgufTensor],
        mapped: list[mmap.mmap],
    ) -> None:
        """Hold what ``open_gguf`` has checked."""
        self.version = version
        self.metadata = metadata
        self.tensors = tensors
        self._mapped = mapped

    def array(self, name: str) -> Array:
        """Return a read-only view of a tensor as it is stored; nothing is copied.

        Raises:
            RlxError: no such tensor.
        """
        tensor = self._tensor(name)
        return view(self._mapped[tensor.file], tensor.offset, tensor.type)

    def numbers(self, name: str) -> Array:
        """Return a tensor's numbers: f32 when it is quantised, else as it is stored.

        Raises:
            RlxError: no such tensor.
        """
        tensor, stored = self._tensor(name), self.array(name)
        return stored if tensor.scheme is None else decode(tensor.scheme, stored)

    def release(self) -> None:
        """Let the system take back the memory of pages that were read; they can be read again."""
        for mapped in self._mapped:
            release_pages(mapped)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"GgufFile({len(self.tensors)} tensors, {len(self.metadata)} keys)"

    def _tensor(self, name: str) -> GgufTensor:
        found = self.tensors.get(name)
        if found is None:
            raise RlxError(
                f"gguf: a tensor of the file is required; got {name!r}."
                f"{did_you_mean(name, self.tensors)}"
            )
        return found


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Map a GGUF file and read its header.

    Args:
        path: the file; of a model in several files the first (``…-00001-of-00003.gguf``).

    Raises:
        FormatError: it is no such file, it is damaged, or it claims what it does not hold.
    """
    first = path_text("gguf", path)
    paths = [first]
    header = _Header(first, 0)
    count = header.metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        paths = _split_paths(header, first, count)
    headers = [header, *(_Header(p, i) for i, p in enumerate(paths) if i)]
    tensors: dict[str, GgufTensor] = {}
    for part in headers:
        for tensor in part.tensors:
            if tensor.name in tensors:
                part.fail("names of tensors are required to be unique", shown(tensor.name))
            tensors[tensor.name] = tensor
    return GgufFile(header.version, header.metadata, tensors, [h.mapped for h in headers])


def _split_paths(header: _Header, first: str, count: int) -> list[str]:
    match = _SPLIT.fullmatch(first)
    if match is None or int(match[2]) != 1 or int(match[3]) != count or count > _MAX_FILES:
        header.fail(
            f"the first of {count} files is required to be named …-00001-of-{count:05}.gguf", first
        )
    return [f"{match[1]}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


@final
class _Header:
    """The header of one file, read from front to back; every length is checked before it is used.

    Attributes:
        mapped: the file.
        version: of the format.
        metadata: values by key.
        tensors: in the order of the header.
    """

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.mapped = map_file("gguf", path)
        self._at = 0
        self._number = number
        if self.mapped[:4] != _MAGIC:
            if kind_of(self.mapped[:START])[0]:
                name = repr(os.path.basename(path))
                raise wrong_file("gguf", "a GGUF file", name, self.mapped[:START], _CONVERT)
            self.fail("the magic 'GGUF' is required", repr(self.mapped[:4]))
        self._at = 4
        self.version = self._integer(4)
        if not 1 <= self.version <= 3:
            swapped = 1 <= int.from_bytes(self.version.to_bytes(4, "little"), "big") <= 3
            hint = " (a big-endian file; convert it)" if swapped else ""
            self.fail("version 1, 2 or 3 is required", f"{self.version}{hint}")
        self._width = 4 if self.version == 1 else 8
        tensors, keys = self._integer(self._width), self._integer(self._width)
        self._require_room(tensors, 2 * self._width + 8, "tensors")
        self._require_room(keys, self._width + 4, "metadata keys")
        self.metadata = self._metadata(keys)
        self.tensors = self._tensors(tensors)

    def fail(self, wanted: str, found: object) -> NoReturn:
        """Raise for something that the file has and must not have."""
        raise FormatError(
            f"gguf: {os.path.basename(self.path)!r}: {wanted}; got {found}. "
            "The file is damaged or not what it says."
        )

    def _require_room(self, count: int, least: int, what: str) -> None:
        room = len(self.mapped) - self._at
        if count * least > room:
            self.fail(f"{what} of at least {least} bytes each are required to fit", (
                f"{count} of them in {room} bytes"
            ))  # fmt: skip

    def _bytes(self, count: int, what: str) -> bytes:
        self._require_room(count, 1, what)
        self._at += count
        return self.mapped[self._at - count : self._at]

    def _integer(self, width: int) -> int:
        return int.from_bytes(self._bytes(width, "a number"), "little")

    def _string(self, most: int | None = None) -> str:
        size = self._integer(self._width)
        if most is not None and size > most:
            self.fail(f"a name of at most {most} bytes is required", size)
        # Vocabularies hold pieces of characters, which must come back as the bytes they were.
        return self._bytes(size, "bytes of a string").decode("utf-8", "surrogateescape")

    def _metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string(_MAX_NAME)
            if key in found:
                self.fail("metadata keys are required to be unique", shown(key))
            found[key] = self._value(self._integer(4), key)
        return found

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        code = _NUMBERS.get(kind)
        if code is None:
            self.fail(f"a known type of {shown(key)} is required", kind)
        value = np.frombuffer(self._bytes(int(code[1]), "a number"), f"<{code}")[0].item()
        return self._as_bool(value, key) if kind == _BOOL else value

    def _as_bool(self, value: int, key: str) -> bool:
        if value > 1:
            self.fail(f"{shown(key)} is required to be 0 or 1", value)
        return bool(value)

    def _array(self, key: str) -> Any:
        kind, count = self._integer(4), self._integer(self._width)
        if kind == _STRING:
            self._require_room(count, self._width, f"strings of {shown(key)}")
            if count > _MAX_STRINGS:
                self.fail(f"at most {_MAX_STRINGS} strings of {shown(key)} are required", count)
            return self._strings(count)
        code = _NUMBERS.get(kind)
        if code is None:
            self.fail(f"numbers or strings are required in {shown(key)}", f"type {kind}")
        size = int(code[1])
        self._require_room(count, size, f"numbers of {shown(key)}")
        start, self._at = self._at, self._at + count * size
        source = self.mapped if count else b""
        found: Array = np.frombuffer(source, f"<{code}", count, start if count else 0)
        if kind == _BOOL:
            if found.max(initial=0) > 1:
                self.fail(f"{shown(key)} is required to hold 0 and 1", int(found.max()))
            return found.astype(np.bool_)
        return found

    def _strings(self, count: int) -> TextTable:
        """Vocabularies are the longest part of a header; their texts are made when asked for."""
        mapped, start, at, end, width = (
            self.mapped,
            self._at,
            self._at,
            len(self.mapped),
            self._width,
        )
        length = struct.Struct("<Q" if width == 8 else "<I").unpack_from
        stops = array("Q")
        for _ in range(count):
            text = at + width
            at = text + length(mapped, at)[0] if text <= end else end + 1
            if at > end:
                self.fail("strings are required to end within the file", f"{end} bytes of it")
            stops.append(at - start)
        self._at = at
        return TextTable(mapped[start:at], stops, width)

    def _tensors(self, count: int) -> list[GgufTensor]:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if (
            type(alignment) is not int
            or not 0 < alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            wanted = f"general.alignment is required to be a power of two ≤ {_MAX_ALIGNMENT}"
            self.fail(wanted, alignment)
        entries = [self._entry() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        made: list[GgufTensor] = []
        for name, shape, kind, offset in entries:
            if offset % alignment:
                self.fail(
                    f"{shown(name)} is required to start at a multiple of {alignment}", offset
                )
            scheme, stored = self._stored(name, shape, kind)
            end = start + offset + stored.nbytes
            if end > len(self.mapped):
                self.fail(f"{shown(name)} is required to end within {len(self.mapped)} bytes", end)
            made.append(GgufTensor(name, shape, scheme, stored, self._number, start + offset))
        self._require_apart(made)
        return made

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self._string(_MAX_NAME), self._integer(4)
        if axes > _MAX_AXES:
            self.fail(f"at most {_MAX_AXES} axes of {shown(name)} are required", axes)
        sizes = [self._integer(self._width) for _ in range(axes)]
        if math.prod(size or 1 for size in sizes) > MAX_BYTES:
            self.fail(f"fewer than 2^62 elements of {shown(name)} are required", sizes)
        return name, tuple(reversed(sizes)), self._integer(4), self._integer(8)

    def _stored(
        self, name: str, shape: tuple[int, ...], kind: int
    ) -> tuple[QuantScheme | None, TensorType]:
        """How a tensor is quantised, and the type of what is stored."""
        if kind in _PLAIN:
            dtype = _PLAIN[kind]
            if math.prod(size or 1 for size in shape) * dtype.itemsize > MAX_BYTES:
                self.fail(f"fewer than 2^62 bytes of {shown(name)} are required", shape)
            return None, TensorType(dtype, shape)
        try:
            scheme = QuantScheme.gguf(kind)
        except RlxError as error:
            raise FormatError(
                f"gguf: {os.path.basename(self.path)!r}: tensor {shown(name)}: {error}"
            ) from error
        if not shape or shape[-1] % scheme.block_size:
            wanted = f"rows of {shown(name)} ({scheme}) are required to be whole blocks of"
            self.fail(f"{wanted} {scheme.block_size}", list(shape))
        width = shape[-1] // scheme.block_size * scheme.block_bytes
        if math.prod((*(size or 1 for size in shape[:-1]), width)) > MAX_BYTES:
            self.fail(f"fewer than 2^62 bytes of {shown(name)} are required", shape)
        return scheme, TensorType(DType.U8, (*shape[:-1], width))

    def _require_apart(self, tensors: list[GgufTensor]) -> None:
        ordered = sorted((t for t in tensors if t.type.nbytes), key=lambda t: t.offset)
        for before, after in itertools.pairwise(ordered):
            end = before.offset + before.type.nbytes
            if after.offset < end:
                self.fail(
                    f"tensors are required not to overlap; {shown(before.name)} ends at {end}",
                    f"{shown(after.name)} at {after.offset}",
                )


def write_gguf(
    path: str | os.PathLike[str],
    tensors: Mapping[str, tuple[Array, QuantScheme | None]],
    metadata: Mapping[str, int | float | bool | str] | None = None,
) -> None:
    """Write a GGUF file (version 3, alignment 32), beside its place and moved there when whole.

    Args:
        path: the file; an existing one is replaced in one step, and stays where writing fails.
        tensors: by name: stored arrays (u8[..., bytes of a row] with a scheme) and their schemes.
        metadata: single values by key; whole numbers as i64 or u32, others as f32.

    Raises:
        RlxError: a dtype or a value that the format does not have.
        FormatError: the system refuses.
    """
    numbers = {dtype: number for number, dtype in _PLAIN.items()}
    body, offset = bytearray(), 0
    for key, value in (metadata or {}).items():
        body += _packed_string(key) + _packed_value(key, value)
    for name, (stored, scheme) in tensors.items():
        kind = _kind_of(name, stored, scheme, numbers)
        shape = list(stored.shape)
        if scheme is not None:
            shape[-1] = shape[-1] // scheme.block_bytes * scheme.block_size
        body += _packed_string(name) + struct.pack("<I", len(shape))
        body += struct.pack(f"<{len(shape)}QIQ", *reversed(shape), kind, offset)
        offset += stored.nbytes + -stored.nbytes % _DEFAULT_ALIGNMENT
    head = _MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata or {})) + body
    with written_whole(path, "write_gguf") as file:
        for part in (head, *(raw_bytes(stored) for stored, _ in tensors.values())):
            file.write(part)
            file.write(bytes(-len(part) % _DEFAULT_ALIGNMENT))


def _packed_string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _packed_value(key: str, value: object) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int) and 0 <= value < 2**32:
        return struct.pack("<II", 4, value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _packed_string(value)
    raise RlxError(
        f"write_gguf: {key!r} is required to be a bool, int, float or str; got "
        f"{type(value).__name__}. Leave it out."
    )


def _kind_of(
    name: str, array: Array, scheme: QuantScheme | None, numbers: Mapping[DType, int]
) -> int:
    from rlx.dtypes import as_dtype

    if scheme is None:
        kind = numbers.get(as_dtype(array.dtype))
        if kind is None:
            raise RlxError(
                f"write_gguf: {name!r} is required to be one of {', '.join(map(str, numbers))}; "
                f"got {array.dtype}. Convert it."
            )
        return kind
    whole = array.dtype == np.uint8 and array.ndim and not array.shape[-1] % scheme.block_bytes
    if scheme.gguf_number is None or not whole:
        raise RlxError(
            f"write_gguf: {name!r} is required to be u8 rows of whole blocks of a GGUF scheme; got "
            f"{array.dtype}{list(array.shape)} of {scheme}. Encode it first."
        )
    return scheme.gguf_number
