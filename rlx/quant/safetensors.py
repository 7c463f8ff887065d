"""Safetensors files: memory-mapped, and checked before anything that they claim is believed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from typing import final

from rlx.errors import FormatError, RlxError, did_you_mean
from rlx.ir.attributes import Array
from rlx.ir.container import map_file, path_text, view
from rlx.ir.references import read_safetensors
from rlx.quant.pages import release_pages
from rlx.types import TensorType


@final
class SafetensorsFile:
    """An open file.

    Attributes:
        tensors: types by name; kinds of elements that RLX does not have are left out.
    """

    def __init__(
        self, tensors: Mapping[str, TensorType], offsets: Mapping[str, int], mapped: mmap.mmap
    ) -> None:
        """Hold what ``open_safetensors`` has checked."""
        self.tensors = tensors
        self._offsets = offsets
        self._mapped = mapped

    def array(self, name: str) -> Array:
        """Return a read-only view of a tensor; nothing is copied.

        Raises:
            RlxError: no such tensor.
        """
        if name not in self.tensors:
            raise RlxError(
                f"safetensors: a tensor of the file is required; got {name!r}."
                f"{did_you_mean(name, self.tensors)}"
            )
        return view(self._mapped, self._offsets[name], self.tensors[name])

    def release(self) -> None:
        """Let the system take back the memory of pages that were read; they can be read again."""
        release_pages(self._mapped)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"SafetensorsFile({len(self.tensors)} tensors)"


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Map a safetensors file and read its header.

    Raises:
        FormatError: it is no such file, it is damaged, or it claims what it does not hold.
    """
    name = path_text("safetensors", path)
    mapped = map_file("safetensors", name)
    table = read_safetensors(f"safetensors: {os.path.basename(name)!r}", mapped)
    ended, last = 0, ""
    for key, (kind, offset) in sorted(table.items(), key=lambda item: item[1][1]):
        if kind.nbytes and offset < ended:
            raise FormatError(
                f"safetensors: {os.path.basename(name)!r}: tensors are required not to overlap; "
                f"{last!r} ends at {ended}; got {key!r} at {offset}. "
                "The file is damaged or not what it says."
            )
        ended, last = max(ended, offset + kind.nbytes), key
        if offset + kind.nbytes > len(mapped):
            raise FormatError(
                f"safetensors: {os.path.basename(name)!r}: {key!r} is required to end within "
                f"{len(mapped)} bytes; got {offset + kind.nbytes}. "
                "The file is damaged or not what it says."
            )
    types = {key: kind for key, (kind, _) in table.items()}
    offsets = {key: offset for key, (_, offset) in table.items()}
    return SafetensorsFile(types, offsets, mapped)
