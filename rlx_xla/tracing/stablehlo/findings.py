"""What cannot be imported, gathered so that one error lists everything."""

from __future__ import annotations

from typing import final

from rlx.errors import TraceError
from rlx.ir.location import Location

SHOWN = 3
"""Locations named for each finding."""


@final
class Findings:
    """Reasons with counts and the first few places."""

    def __init__(self) -> None:
        """Start without any."""
        self._places: dict[str, list[Location]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, reason: str, where: Location) -> None:
        """Record a reason once more."""
        self._places.setdefault(reason, []).append(where)

    def error(self, entry: str) -> TraceError:
        """One error with every reason, its count and places."""
        lines: list[str] = []
        for reason, places in self._places.items():
            known = [str(p) for p in dict.fromkeys(places) if p]
            more = ", …" if len(known) > SHOWN else ""
            at = f" at {'; '.join(known[:SHOWN])}{more}" if known else ""
            lines.append(f"  {len(places)} × {reason}{at}")
        total = sum(map(len, self._places.values()))
        return TraceError(
            f"from_stablehlo: every op of @{entry} must have a form in RLX; {total} "
            f"operation{'s have' if total != 1 else ' has'} none:\n" + "\n".join(lines)
        )
