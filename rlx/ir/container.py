"""The bytes of a container file: prefix, header and sections, checked before they are believed.

`rlx.ir.serialize` describes the file as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import mmap
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator
from typing import IO, Any, Never, cast, final

import numpy as np

from rlx import dims
from rlx.dtypes import BY_LABEL, DType
from rlx.errors import FormatError, RlxError, did_you_mean
from rlx.ir.attributes import Array
from rlx.ir.foreign_files import START, wrong_file
from rlx.ir.scanner import shown
from rlx.types import TensorType

MAGIC = b"\x89RLX\r\n\x1a\n"
"""First bytes of a container; a change of line ends or a cut eighth bit breaks them."""

VERSION = 1
ALIGNMENT = 64
MAX_HEADER = 2**25
"""Bytes of the header; it is the one part that is read into memory before it is understood."""

MAX_PARAMS = 100_000
MAX_RANK = 64
_PREFIX = struct.Struct("<8sIIQ32s8x")


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One param of a container.

    Attributes:
        name: the param's name in the graph.
        type: dtype and fixed shape.
        crc32: checksum of its bytes.
        offset: bytes from the start of the sections, or within ``file``; None when ``tensor``
            names it.
        file: another file, relative to the container's folder with ``/`` between folders, or an
            empty string when the bytes are in the container.
        tensor: the name within a safetensors file, or an empty string.
    """

    name: str
    type: TensorType
    crc32: int
    offset: int | None
    file: str = ""
    tensor: str = ""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """What a container holds.

    Attributes:
        text_length: bytes of the graph's text, which stands first among the sections.
        text_sha256: hexadecimal digest of the text.
        tensors: the params, in the order of their bytes.
    """

    text_length: int
    text_sha256: str
    tensors: tuple[Tensor, ...]

    def length(self) -> int:
        """Bytes of all sections, without padding at the end."""
        end = self.text_length
        for tensor in self.tensors:
            if not tensor.file:
                end = aligned(end) + tensor.type.nbytes
        return end


def aligned(offset: int) -> int:
    """Return the next multiple of the alignment."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def raw_bytes(array: Array) -> memoryview:
    """Return an array's bytes in C order, without a copy when they are so in memory."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def write(path: str, header: Header, text: bytes, arrays: Iterable[Array]) -> None:
    """Write a container beside its place, then move it there in one step.

    Args:
        path: where it goes.
        header: says what follows.
        text: the graph's text.
        arrays: the tensors that stand in the container, in the header's order.

    Raises:
        FormatError: the system refuses, or the header is too large.
    """
    encoded = json.dumps(_to_json(header), ensure_ascii=True, separators=(",", ":")).encode()
    if len(encoded) > MAX_HEADER:
        raise FormatError(
            f"save: a header of at most {MAX_HEADER} bytes is required; got {len(encoded)}. "
            "Use fewer params, or shorter names."
        )
    prefix = _PREFIX.pack(MAGIC, VERSION, 0, len(encoded), hashlib.sha256(encoded).digest())
    with written_whole(path) as file:
        for part in (prefix + encoded, text, *map(raw_bytes, arrays)):
            file.write(b"\0" * (aligned(file.tell()) - file.tell()))
            file.write(part)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str], where: str = "save") -> Generator[IO[bytes]]:
    """A file to write to, beside its place and moved there in one step when it is whole.

    Args:
        path: its place.
        where: what writes, for the message.

    Raises:
        FormatError: the system refuses; what was at the place stays.
    """
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        # The whole text would name the temporary file.
        reason = f"[Errno {error.errno}] {error.strerror}" if error.strerror else str(error)
        raise FormatError(f"{where}: {os.fspath(path)!r} cannot be written: {reason}.") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _to_json(header: Header) -> dict[str, Any]:
    tensors: list[dict[str, Any]] = []
    for tensor in header.tensors:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "dtype": tensor.type.dtype.label,
            "shape": list(tensor.type.shape),
            "crc32": tensor.crc32,
        }
        if tensor.offset is not None:
            entry["offset"] = tensor.offset
        if tensor.file:
            entry["file"] = tensor.file
        if tensor.tensor:
            entry["tensor"] = tensor.tensor
        tensors.append(entry)
    text = {"length": header.text_length, "sha256": header.text_sha256}
    return {"text": text, "tensors": tensors}


def read(where: str, path: str) -> tuple[Header, bytes, mmap.mmap, int]:
    """Read and check prefix, header and text; tensors stay where they are.

    Args:
        where: ``"load"`` or ``"load_params"``, for messages.
        path: a container.

    Returns:
        The header, the text, the mapped file, and the offset of the sections in it.

    Raises:
        FormatError: the file is no container, or is damaged, or claims what it does not hold.
    """
    found = f"{where}: {path!r}"
    mapped = map_file(where, path)
    if len(mapped) < _PREFIX.size or mapped[: len(MAGIC)] != MAGIC:
        raise wrong_file(
            where, "an RLX container", repr(path), mapped[:START], "Write one with rlx.save."
        )
    _, version, flags, length, digest = _PREFIX.unpack(mapped[: _PREFIX.size])
    if version != VERSION or flags or any(mapped[_PREFIX.size - 8 : _PREFIX.size]):
        raise FormatError(
            f"{found} is required to have version {VERSION}; got version {version}"
            f"{f' with flags {flags:#x}' if flags else ''}. Read it with a newer version of RLX."
        )
    if length > MAX_HEADER or length > len(mapped) - _PREFIX.size:
        raise FormatError(
            f"{found} claims a header of {length} bytes; the file has {len(mapped)}, and "
            f"{MAX_HEADER} are allowed. It is cut or damaged."
        )
    encoded = mapped[_PREFIX.size : _PREFIX.size + length]
    if hashlib.sha256(encoded).digest() != digest:
        raise FormatError(f"{found}: the header's checksum is wrong. The file is damaged.")
    header = _HeaderReader(found).header(encoded)
    start = aligned(_PREFIX.size + length)
    if start + header.length() != len(mapped):
        raise FormatError(
            f"{found} claims {start + header.length()} bytes; the file has {len(mapped)}. "
            "It is cut or damaged."
        )
    text = mapped[start : start + header.text_length]
    if hashlib.sha256(text).hexdigest() != header.text_sha256:
        raise FormatError(f"{found}: the graph text's checksum is wrong. The file is damaged.")
    if any(any(mapped[a:b]) for a, b in _gaps(header, _PREFIX.size + length, start)):
        raise FormatError(f"{found}: padding is required to be zero. The file is damaged.")
    return header, text, mapped, start


def _gaps(header: Header, end: int, start: int) -> Iterator[tuple[int, int]]:
    """Where the padding is."""
    yield end, start
    end = start + header.text_length
    for tensor in header.tensors:
        if not tensor.file:
            yield end, aligned(end)
            end = aligned(end) + tensor.type.nbytes


def path_text(where: str, path: str | os.PathLike[str]) -> str:
    """A path as text.

    Raises:
        FormatError: it is none.
    """
    found = os.fspath(path) if isinstance(cast("object", path), str | os.PathLike) else None
    if not isinstance(found, str):
        raise FormatError(f"{where}: a path is required; got {type(path).__name__}.")
    return found


def map_file(where: str, path: str) -> mmap.mmap:
    """Map a whole file for reading; nothing is read yet.

    Raises:
        FormatError: there is no such regular file, or it is empty.
    """
    try:
        # Opening a pipe would wait for a writer.
        mode, mapped = os.stat(path).st_mode, None
        if stat.S_ISREG(mode):
            with open(path, "rb") as file:
                mapped = _mapped(file)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        found = getattr(error, "strerror", None) or error
        raise FormatError(
            f"{where} [file]: a file is required; {path!r} cannot be read: {found}. Check its name "
            "and its permissions.",
            label="file",
        ) from error
    if not stat.S_ISREG(mode):
        raise FormatError(
            f"{where} [file]: a regular file is required; {path!r} is "
            f"{'a folder' if stat.S_ISDIR(mode) else 'none'}. Name a file.",
            label="file",
        )
    if mapped is None:
        raise FormatError(
            f"{where} [file]: a whole file is required; {path!r} is empty. Write it again.",
            label="file",
        )
    return mapped


def _mapped(file: IO[bytes]) -> mmap.mmap | None:
    """A file's bytes; None for an empty file, which has nothing to map."""
    if not os.fstat(file.fileno()).st_size:
        return None
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def view(mapped: mmap.mmap, offset: int, kind: TensorType) -> Array:
    """Return a read-only array over mapped bytes that are known to be there.

    Raises:
        FormatError: NumPy takes no such shape (an empty one with a huge dim).
    """
    shape = tuple(dims.evaluate(d, {}) for d in kind.shape)
    count = kind.nbytes // kind.dtype.itemsize
    source = mapped if count else b""
    try:
        flat: Array = np.frombuffer(source, kind.dtype.numpy, count, offset if count else 0)
        return flat.reshape(shape)
    except ValueError as error:
        raise FormatError(f"a shape that NumPy takes is required; got {kind}: {error}.") from error


def checksum(array: Array) -> int:
    """Return the CRC-32 of an array's bytes."""
    return zlib.crc32(raw_bytes(array))


@final
class JsonReader:
    """Reads JSON objects whose keys and kinds of values are known.

    Attributes:
        where: the file, for messages.
    """

    def __init__(self, where: str) -> None:
        """Read for a file."""
        self.where = where

    def document(self, encoded: bytes) -> dict[str, Any]:
        """Return the one object of a JSON text without duplicate keys.

        Raises:
            FormatError: it is no such text.
        """
        try:
            found: Any = json.loads(
                encoded.decode("utf-8"),
                object_pairs_hook=self._object,
                parse_constant=self._refuse_constant,
            )
        except (ValueError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{self.where}: the header is no JSON: {error}.") from error
        if not isinstance(found, dict):
            self.fail("the header is required to be a JSON object", found)
        return cast("dict[str, Any]", found)

    def keys(self, entry: Any, required: set[str], optional: set[str], what: str) -> dict[str, Any]:
        """Return an object that has the required keys and no unknown ones."""
        if not isinstance(entry, dict):
            self.fail(f"{what} is required to be an object", entry)
        known = cast("dict[str, Any]", entry)
        if not required <= known.keys() <= required | optional:
            self.fail(f"{what} is required to have {', '.join(sorted(required))}", list(known)[:20])
        return known

    def string(self, value: Any, what: str) -> str:
        """Return a string."""
        if not isinstance(value, str):
            self.fail(f"{what} is required to be a string", value)
        return value

    def integer(self, value: Any, what: str, most: int = 2**62) -> int:
        """Return an int in [0, most]."""
        if type(value) is not int or not 0 <= value <= most:
            self.fail(f"{what} is required to be an integer from 0 to {most}", value)
        return value

    def type(self, dtype: Any, shape: Any, dtypes: dict[str, DType], what: str) -> TensorType:
        """Return a type from a dtype's name and a list of dims."""
        label = self.string(dtype, f"{what}: dtype")
        if label not in dtypes or dtypes[label] is DType.TOKEN:
            hint = did_you_mean(label[:40], dtypes)
            raise FormatError(f"{self.where}: {what}: {shown(label)} is no dtype.{hint}")
        if not isinstance(shape, list) or len(cast("list[Any]", shape)) > MAX_RANK:
            self.fail(f"{what}: shape is required to be a list of at most {MAX_RANK} dims", shape)
        sizes = tuple(self.integer(d, f"{what}: a dim") for d in cast("list[Any]", shape))
        try:
            return TensorType(dtypes[label], sizes)
        except RlxError as error:
            raise FormatError(f"{self.where}: {what}: {error}") from error

    def fail(self, required: str, found: Any) -> Never:
        """Refuse a value."""
        raise FormatError(
            f"{self.where}: {required}; got {shown(str(found)[:100])}. The file is damaged."
        )

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            self.fail("keys are required to be unique", [k for k, _ in pairs][:20])
        return found

    def _refuse_constant(self, text: str) -> Never:
        self.fail("numbers are required to be finite", text)


@final
class _HeaderReader:
    """Checks a container's header."""

    def __init__(self, where: str) -> None:
        self.json = JsonReader(where)

    def header(self, encoded: bytes) -> Header:
        json_ = self.json
        top = json_.keys(json_.document(encoded), {"text", "tensors"}, set(), "the header")
        text = json_.keys(top["text"], {"length", "sha256"}, set(), "'text'")
        length = json_.integer(text["length"], "the text's length")
        digest = json_.string(text["sha256"], "the text's sha256")
        entries: Any = top["tensors"]
        if not isinstance(entries, list):
            json_.fail("'tensors' is required to be a list", entries)
        listed = cast("list[Any]", entries)
        if len(listed) > MAX_PARAMS:
            json_.fail(f"at most {MAX_PARAMS} tensors are required", len(listed))
        tensors: list[Tensor] = []
        names: set[str] = set()
        end = length
        for entry in listed:
            tensor = self.tensor(entry)
            if tensor.name in names:
                json_.fail("names of tensors are required to be unique", tensor.name)
            names.add(tensor.name)
            tensors.append(tensor)
            if not tensor.file:
                # One order without gaps: so sections cannot overlap, nor lie askew or outside.
                if tensor.offset != aligned(end):
                    json_.fail(
                        f"tensor {shown(tensor.name)} is required to start at {aligned(end)}",
                        tensor.offset,
                    )
                end = aligned(end) + tensor.type.nbytes
        return Header(length, digest, tuple(tensors))

    def tensor(self, entry: Any) -> Tensor:
        json_ = self.json
        found = json_.keys(
            entry, {"name", "dtype", "shape", "crc32"}, {"offset", "file", "tensor"}, "a tensor"
        )
        name = json_.string(found["name"], "a tensor's name")
        what = f"tensor {shown(name)}"
        file = json_.string(found.get("file", ""), f"{what}: file")
        within = json_.string(found.get("tensor", ""), f"{what}: tensor")
        if ("offset" in found) == bool(within) or (within and not file):
            json_.fail(f"{what} is required to have an offset, or a file and a tensor", list(found))
        return Tensor(
            name=name,
            type=json_.type(found["dtype"], found["shape"], BY_LABEL, what),
            crc32=json_.integer(found["crc32"], f"{what}: crc32", 2**32 - 1),
            offset=json_.integer(found["offset"], f"{what}: offset") if not within else None,
            file=file,
            tensor=within,
        )
