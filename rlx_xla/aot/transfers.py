"""What devices send each other, read from optimised HLO text: each operation with its bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

_KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
_LINE = re.compile(
    rf"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ({'|'.join(_KINDS)})(-start)?\(", re.MULTILINE
)
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)="
    r"(\{\{.*?\}\}|\{\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)"
)
_SOURCE = re.compile(r'source_file="([^"]+)" source_line=(\d+)')
_PAIRS = ("all-gather", "collective-permute", "all-to-all", "ragged-all-to-all")
"""Operations whose first half gives (operand, result, context) where there are two halves."""

_CONTEXT = ("u32", "")


@final
@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One operation between devices.

    Attributes:
        kind: such as ``all-reduce``.
        name: the instruction's.
        result: type of what each device has afterwards.
        nbytes: bytes of that result on one device.
        groups: which devices take part together, as HLO writes it.
        where: the user's file and line, where the compiler kept one.
    """

    kind: str
    name: str
    result: str
    nbytes: int
    groups: str
    where: str

    def __str__(self) -> str:
        where = f" at {self.where}" if self.where else ""
        groups = f" among {self.groups}" if self.groups else ""
        return f"{self.kind} of {self.result}, {self.nbytes:,} B{groups}{where}"


def transfers(hlo: str) -> list[Transfer]:
    """Operations between devices in the order of the text; one in a loop counts once."""
    found: list[Transfer] = []
    for match in _LINE.finditer(hlo):
        name, result, kind, start = match.groups()
        end = hlo.find("\n", match.end())
        rest = hlo[match.end() : end if end >= 0 else len(hlo)]
        arrays = _ARRAY.findall(result)
        if start and kind in _PAIRS:
            given = [array for array in arrays if array != _CONTEXT]
            arrays = given[len(given) // 2 :]
        groups, source = _GROUPS.search(rest), _SOURCE.search(rest)
        found.append(
            Transfer(
                kind=kind,
                name=name,
                result=", ".join(f"{dtype}[{sizes}]" for dtype, sizes in arrays),
                nbytes=sum(_bytes(dtype, sizes) for dtype, sizes in arrays),
                groups="" if groups is None else groups.group(1),
                where="" if source is None else f"{source.group(1)}:{source.group(2)}",
            )
        )
    return found


def totals(found: Iterable[Transfer]) -> dict[str, dict[str, int]]:
    """How many operations of each kind there are, and the bytes of their results."""
    made: dict[str, dict[str, int]] = {}
    for transfer in found:
        entry = made.setdefault(transfer.kind, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += transfer.nbytes
    return made


def _bytes(dtype: str, sizes: str) -> int:
    bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
    count = math.prod(int(n) for n in sizes.split(",") if n)
    return (count * bits + 7) // 8
