"""What a compiler fused, read from optimised HLO text: loops, the ops in each, and their line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import final

_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) (?:\(.*\) -> .+ )?\{$")
_LINE = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (\(.*?\)|\S+) ([\w-]+)\(")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_SOURCE = re.compile(r'source_file="([^"]+)" source_line=(\d+)')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_LAYOUT = re.compile(r"\{[^{}]*\}")
_FREE = (
    "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "broadcast", "reshape",
    "copy", "iota",
)  # fmt: skip
"""What a fused loop holds and does not compute."""


@final
@dataclass(frozen=True)
class Fusion:
    """Ops that a compiler made into one loop.

    Attributes:
        ops: name in HLO → how many.
        result: types of what it gives.
        where: name of the file and line, where the compiler kept one.
        cycles: the compiler's estimate; 0 where it makes none.
    """

    ops: tuple[tuple[str, int], ...]
    result: str
    where: str
    cycles: int

    def __str__(self) -> str:
        ops = ", ".join(f"{name} × {count}" if count > 1 else name for name, count in self.ops)
        where = f" at {self.where}" if self.where else ""
        cycles = f", {self.cycles:,} cycles" if self.cycles else ""
        return f"{ops} → {self.result}{where}{cycles}"


@final
@dataclass(frozen=True)
class _Instruction:
    op: str
    result: str
    called: str
    text: str


def fusions(hlo: str) -> list[Fusion]:
    """Fused loops of two ops or more, those that take most cycles first, then in order."""
    computations = _computations(hlo)
    inner = {i.called for body in computations.values() for i in body if i.op == "fusion"}
    made: list[Fusion] = []
    for name, body in computations.items():
        if name in inner:  # a part of another one
            continue
        for found in body:
            counts = Counter(_ops(found, computations)) if found.op == "fusion" else Counter()
            if counts.total() < 2:
                continue
            source = _SOURCE.search(found.text)
            cycles = _CYCLES.search(found.text)
            made.append(
                Fusion(
                    ops=tuple(counts.most_common()),
                    result=_LAYOUT.sub("", found.result),
                    where=f"{PurePath(source.group(1)).name}:{source.group(2)}" if source else "",
                    cycles=int(cycles.group(1)) if cycles else 0,
                )
            )
    return sorted(made, key=lambda fusion: -fusion.cycles)


def _computations(hlo: str) -> dict[str, list[_Instruction]]:
    found: dict[str, list[_Instruction]] = {}
    current: list[_Instruction] = []
    for line in hlo.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            current = found.setdefault(head.group(1), [])
            continue
        match = _LINE.match(line)
        if match is not None:
            calls = _CALLS.search(line)
            called = calls.group(1) if calls else ""
            current.append(_Instruction(match.group(2), match.group(1), called, line))
    return found


def _ops(fusion: _Instruction, computations: dict[str, list[_Instruction]]) -> Iterator[str]:
    """Names of what is computed in a fusion and in those inside of it."""
    waiting = [fusion.called]
    while waiting:
        for found in computations.get(waiting.pop(), ()):
            if found.op == "fusion":
                waiting.append(found.called)
            elif found.op not in _FREE:
                yield found.op
