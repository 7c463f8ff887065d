"""Many texts in one piece of memory: a vocabulary as Python's strings takes ten times the bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import final, overload


@final
class TextTable(Sequence[str]):
    """Texts that are made when they are asked for; equal to a list of the same ones."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]  as of a list

    def __init__(self, data: bytes, stops: array[int], gap: int = 0) -> None:
        """Hold texts that lie one after another.

        Args:
            data: UTF-8, with ``gap`` bytes before each text that do not belong to it. What is no
                UTF-8 becomes a lone surrogate (``surrogateescape``).
            stops: where each text ends.
            gap: bytes.
        """
        self._data = data
        self._stops = stops
        self._gap = gap

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextTable:
        """Return a table of some texts.

        Raises:
            UnicodeEncodeError: a text has a surrogate that stands for no byte.
        """
        data, stops = bytearray(), array("Q")
        for text in texts:
            data += text.encode("utf-8", "surrogateescape")
            stops.append(len(data))
        return cls(bytes(data), stops)

    @property
    def nbytes(self) -> int:
        """Bytes of the texts and of where they end."""
        return len(self._data) + len(self._stops) * self._stops.itemsize

    def raw(self, number: int) -> bytes:
        """Return the bytes of a text; ``number`` is from 0 on."""
        start = self._stops[number - 1] if number else 0
        return self._data[start + self._gap : self._stops[number]]

    def raws(self) -> Iterator[bytes]:
        """The bytes of all texts in their order."""
        start = 0
        for stop in self._stops:
            yield self._data[start + self._gap : stop]
            start = stop

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        numbers = range(len(self._stops))[index]
        if isinstance(numbers, range):
            return [self[i] for i in numbers]
        return self.raw(numbers).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (raw.decode("utf-8", "surrogateescape") for raw in self.raws())

    def __len__(self) -> int:
        return len(self._stops)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TextTable):
            return list(self) == list(other)
        return list(self) == other if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))
