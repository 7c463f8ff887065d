"""Writes the grids of GGUF's IQ formats as a C++ header, when the library is configured.

The tables stand once, in ``rlx/quant/iq_tables.py``, which is read and not imported: that needs
NumPy.
"""

from __future__ import annotations

import ast
import base64
import sys
import zlib
from pathlib import Path

TWO_BITS = {"iq2xxs": (8, 25, 43, 0), "iq2xs": (8, 25, 43, 0), "iq2s": (8, 25, 43, 0),
            "iq1s": (-8, 0, 8, 0)}  # fmt: skip
"""What two bits of an entry mean; eight times as much for iq1s, whose numbers have eighths."""

THREE_BITS = {
    "iq3xxs": (4, 12, 20, 28, 36, 44, 52, 62),
    "iq3s": (1, 3, 5, 7, 9, 11, 13, 15),
}
"""What three bits of an entry mean."""


def tables(source: Path) -> dict[str, list[int]]:
    """The entries of every grid, 16 bits each.

    Args:
        source: the Python file that has them, as sums to be taken.

    Raises:
        ValueError: there are none in it.
    """
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="_TABLES")], value=value):
                return {name: _entries(text) for name, text in ast.literal_eval(value).items()}
            case _:
                continue
    raise ValueError(f"{source}: a table named _TABLES is required; found none.")


def _entries(text: str) -> list[int]:
    data = zlib.decompress(base64.b85decode(text))
    total, made = 0, list[int]()
    for at in range(0, len(data), 2):
        total = (total + int.from_bytes(data[at : at + 2], "little")) & 0xFFFF
        made.append(total)
    return made


def header(grids: dict[str, list[int]]) -> str:
    """A C++ header with an array for every grid: a number of an entry a byte, lowest first."""
    lines = ["// Made by make_grids.py.", "#include <cstdint>", "namespace rlx::blocks {"]
    for name, entries in grids.items():
        values, width, count = (
            (TWO_BITS[name], 2, 8) if name in TWO_BITS else (THREE_BITS[name], 4, 4)
        )
        words: list[str] = []
        for entry in entries:
            fields = [(entry >> (width * i)) & (len(values) - 1) for i in range(count)]
            word = sum((values[field] & 0xFF) << (8 * i) for i, field in enumerate(fields))
            words.append(f"{word:#x}u")
        type_ = f"alignas(64) inline constexpr uint{8 * count}_t"
        lines.append(f"{type_} kGrid{name.capitalize()}[] = {{{', '.join(words)}}};")
    return "\n".join([*lines, "}  // namespace rlx::blocks", ""])


def main(source: str, target: str) -> None:
    """Write the header, unless it is as it should be."""
    text, path = header(tables(Path(source))), Path(target)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
