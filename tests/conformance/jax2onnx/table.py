"""The results of all cases as data and as a table."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.conformance.jax2onnx.runner import Outcome, Status

RESULTS = Path(__file__).with_name("results.json")
"""Counts by context, and every case that is not modelled with one graph for all its sizes."""

_COLUMNS = (
    "cases", "modelled", "one graph, every size", "external", "refused by JAX", "wrong or error",
)  # fmt: skip


def write(outcomes: Iterable[Outcome]) -> None:
    """Write the results file."""
    counts: dict[str, collections.Counter[str]] = {}
    told: list[dict[str, Any]] = []
    for outcome in sorted(outcomes, key=lambda o: o.name):
        row = counts.setdefault(outcome.context, collections.Counter())
        row["cases"] += 1
        row[outcome.status.value] += 1
        row["symbolic"] += outcome.status is Status.MODELLED and outcome.sizes == "symbolic"
        if outcome.status is not Status.MODELLED:
            told.append({**asdict(outcome), "status": outcome.status.value})
    data = {"contexts": {name: dict(row) for name, row in sorted(counts.items())}, "not": told}
    RESULTS.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def table() -> str:
    """A Markdown table by context, from the results file."""
    contexts: Mapping[str, Mapping[str, int]] = _results()["contexts"]
    lines = [f"| jax2onnx's cases | {' | '.join(_COLUMNS)} |", "|---" + "|--:" * 6 + "|"]
    total: collections.Counter[str] = collections.Counter()
    for name, row in contexts.items():
        total.update(row)
        lines.append(_line(name, row))
    lines.append(_line("all", total))
    return "\n".join(lines)


def reasons() -> str:
    """A Markdown list: opaque primitives and JAX's refusals, with the number of cases of each."""
    found = collections.Counter((row["status"], row["detail"][:100]) for row in _results()["not"])
    return "\n".join(f"- {n} {status}: {why}" for (status, why), n in found.most_common())


def _results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def _line(name: str, row: Mapping[str, int]) -> str:
    bad = row.get("wrong", 0) + row.get("error", 0)
    keys = ("cases", "modelled", "symbolic", "external", "refused")
    numbers = [*(row.get(key, 0) for key in keys), bad]
    return f"| {name} | {' | '.join(map(str, numbers))} |"
