"""Params by reference: tensors that stay in another file beside the container."""

from __future__ import annotations

import dataclasses
import mmap
import os
from typing import Any, cast, final

from rlx.dtypes import DType, as_dtype
from rlx.errors import FormatError, did_you_mean
from rlx.ir.attributes import Array
from rlx.ir.container import MAX_HEADER, JsonReader, Tensor, checksum, map_file, view
from rlx.ir.foreign_files import START, kind_of, wrong_file
from rlx.ir.scanner import shown
from rlx.types import Shape, TensorType

_SAFETENSORS: dict[str, DType] = {
    "BOOL": DType.BOOL, "I8": DType.I8, "I16": DType.I16, "I32": DType.I32, "I64": DType.I64,
    "U8": DType.U8, "U16": DType.U16, "U32": DType.U32, "U64": DType.U64, "F16": DType.F16,
    "BF16": DType.BF16, "F32": DType.F32, "F64": DType.F64, "C64": DType.C64,
    "F8_E4M3": DType.F8E4M3FN, "F8_E5M2": DType.F8E5M2, "F8_E8M0": DType.F8E8M0FNU,
}  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor in another file, to save instead of an array.

    Attributes:
        file: path of the file; `save` requires it to be in the container's folder or below.
        dtype: element type.
        shape: dims, all numbers.
        offset: bytes from the start of the file, for raw little-endian elements.
        tensor: its name, for a safetensors file. One of ``offset`` and ``tensor`` is given.
    """

    file: str
    dtype: DType
    shape: Shape
    offset: int | None = None
    tensor: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", os.fspath(self.file))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        object.__setattr__(self, "shape", tuple(self.shape))
        if (self.offset is None) != bool(self.tensor) or (self.offset or 0) < 0:
            raise FormatError(
                "TensorRef: either an offset ≥ 0 or a tensor's name is required; got "
                f"offset={self.offset} and tensor={self.tensor!r}."
            )
        if not self.type.is_static:
            raise FormatError(f"TensorRef: dims are required to be numbers; got {self.type}.")

    @property
    def type(self) -> TensorType:
        """Dtype and shape."""
        return TensorType(self.dtype, self.shape)


@final
class References:
    """Files that tensors are referred to in, each mapped and read once.

    Attributes:
        where: ``"save"`` or ``"load_params"``, for messages.
        folder: the container's folder, in which all files must be.
    """

    def __init__(self, where: str, folder: str) -> None:
        """Refer to files in a folder."""
        self.where = where
        self.folder = os.path.realpath(folder)
        self._mapped: dict[str, mmap.mmap] = {}
        self._tables: dict[str, dict[str, tuple[TensorType, int]]] = {}

    def to_tensor(self, name: str, ref: TensorRef) -> Tensor:
        """Return the header's entry for a reference, after reading what it refers to."""
        relative = os.path.relpath(os.path.realpath(ref.file), self.folder).replace(os.sep, "/")
        tensor = Tensor(name, ref.type, 0, ref.offset, relative, ref.tensor)
        return dataclasses.replace(tensor, crc32=checksum(self.array(tensor)))

    def array(self, tensor: Tensor) -> Array:
        """Return a read-only view of what a header's entry refers to.

        Raises:
            FormatError: the file is outside the folder, or does not hold such a tensor.
        """
        mapped = self._file(tensor)
        if tensor.offset is not None:
            offset = tensor.offset
        else:
            found, offset = self._entry(tensor, mapped)
            if found != tensor.type:
                raise FormatError(
                    f"{self.where}: param {tensor.name!r} is required to be {tensor.type}; "
                    f"{tensor.file!r} has {tensor.tensor!r} as {found}."
                )
        if offset + tensor.type.nbytes > len(mapped):
            raise FormatError(
                f"{self.where}: param {tensor.name!r} claims bytes {offset} to "
                f"{offset + tensor.type.nbytes} of {tensor.file!r}, which has {len(mapped)}."
            )
        return view(mapped, offset, tensor.type)

    def _file(self, tensor: Tensor) -> mmap.mmap:
        known = self._mapped.get(tensor.file)
        if known is None:
            parts = tensor.file.replace("\\", "/").split("/")
            plain = "\0" not in tensor.file and ":" not in parts[0]
            if not plain or ".." in parts or not parts[0]:
                raise self._outside(tensor)
            path = os.path.realpath(os.path.join(self.folder, *parts))
            # A link may lead out of the folder, too.
            if os.path.commonpath([path, self.folder]) != self.folder:
                raise self._outside(tensor)
            known = self._mapped[tensor.file] = map_file(self.where, path)
        return known

    def _outside(self, tensor: Tensor) -> FormatError:
        return FormatError(
            f"{self.where}: param {tensor.name!r} is required to be in the container's folder or "
            f"below; its file is {shown(tensor.file)}. Move the file there."
        )

    def _entry(self, tensor: Tensor, mapped: mmap.mmap) -> tuple[TensorType, int]:
        table = self._tables.get(tensor.file)
        if table is None:
            table = self._tables[tensor.file] = read_safetensors(
                f"{self.where}: {tensor.file!r}", mapped
            )
        if tensor.tensor not in table:
            raise FormatError(
                f"{self.where}: param {tensor.name!r} refers to {shown(tensor.tensor)}, which "
                f"{tensor.file!r} does not hold.{did_you_mean(tensor.tensor[:80], table)}"
            )
        return table[tensor.tensor]


def read_safetensors(where: str, mapped: mmap.mmap) -> dict[str, tuple[TensorType, int]]:
    """Return the type and offset of each tensor in a mapped safetensors file.

    Raises:
        FormatError: it is no such file.
    """
    reader = JsonReader(where)
    size = int.from_bytes(mapped[:8], "little")
    if mapped[8:9] != b"{" and kind_of(mapped[:START])[0]:
        at, _, name = where.partition(": ")
        raise wrong_file(at, "a safetensors file", name, mapped[:START], "Write it again.")
    if len(mapped) < 8 or size > min(MAX_HEADER, len(mapped) - 8):
        reader.fail(f"a safetensors header of at most {len(mapped) - 8} bytes is required", size)
    table: dict[str, tuple[TensorType, int]] = {}
    for name, entry in reader.document(mapped[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        what = f"tensor {shown(name)}"
        found = reader.keys(entry, {"dtype", "shape", "data_offsets"}, set(), what)
        dtype = reader.string(found["dtype"], f"{what}: dtype")
        if dtype not in _SAFETENSORS:
            continue  # a kind of element that no param has; others can still be read
        kind = reader.type(dtype, found["shape"], _SAFETENSORS, what)
        offsets: Any = found["data_offsets"]
        pair = cast("list[Any]", offsets) if isinstance(offsets, list) and offsets else [None]
        first = reader.integer(pair[0], f"{what}: start")
        if pair != [first, first + kind.nbytes]:
            reader.fail(f"{what} is required to end at {first + kind.nbytes}", pair)
        table[name] = (kind, 8 + size + first)
    return table
