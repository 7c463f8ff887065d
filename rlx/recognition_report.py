"""What recognition found in a graph, what it left to XLA, and what came near and differed."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from rlx.passes.base import PassRecord


@final
@dataclass(frozen=True)
class NearMiss:
    """A form that comes near a pattern.

    Attributes:
        pattern: which one, such as ``softmax``.
        where: the user's line, with the label of its scope; empty where it is not known.
        reason: what differs.
    """

    pattern: str
    where: str
    reason: str

    def __str__(self) -> str:
        where = f" at {self.where}" if self.where else ""
        return f"near miss: {self.pattern}{where}: {self.reason}"


@final
@dataclass(frozen=True)
class RecognitionReport:
    """What recognition did: printed, shown as HTML in a notebook, or as JSON.

    Attributes:
        counts: how many composites were made of primitives, by pattern.
        units: how often whole units stand in the graph as their ops, by name: a product with its
            bias and activation, a gated unit. XLA fuses those by itself; a fusion target or a
            kernel makes one op of them.
        misses: what came near and was left alone.
    """

    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    units: Mapping[str, int] = field(default_factory=dict[str, int])
    misses: tuple[NearMiss, ...] = ()

    def of(self, pattern: str) -> int:
        """How often a pattern was found, whatever its kind is.

        Args:
            pattern: a name without what stands in brackets: ``attention`` counts causal ones too.
        """
        found = (*self.counts.items(), *self.units.items())
        return sum(n for name, n in found if pattern in (name, name.partition(" (")[0]))

    def lines(self) -> list[str]:
        """The report, line by line."""
        found = [f"{name} × {count}" for name, count in self.counts.items()]
        found += [f"{name} × {count}, left as ops" for name, count in self.units.items()]
        return [*found, *map(str, self.misses)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, texts and numbers."""
        return {
            "counts": dict(self.counts),
            "units": dict(self.units),
            "misses": [
                {"pattern": m.pattern, "where": m.where, "reason": m.reason} for m in self.misses
            ],
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """``to_dict`` as JSON text.

        Args:
            indent: blanks per level, None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "nothing was recognised"

    def _repr_html_(self) -> str:
        rows = [(name, f"{count:,}", "one op") for name, count in self.counts.items()]
        rows += [(name, f"{count:,}", "left as ops") for name, count in self.units.items()]
        rows += [(m.pattern, m.where, f"near miss: {m.reason}") for m in self.misses]
        cells = (f"<td>{'</td><td>'.join(map(html.escape, row))}</td>" for row in rows)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        heads = "<tr><th>pattern</th><th>count or line</th><th>what became of it</th></tr>"
        return f'<table class="rlx-recognition"><thead>{heads}</thead><tbody>{body}</tbody></table>'


def recognition_of(records: Sequence[PassRecord]) -> RecognitionReport:
    """The report that the passes of a compile left; an empty one where recognition did not run."""
    left = (r.found for r in records if isinstance(r.found, RecognitionReport))
    return next(left, RecognitionReport())
