"""The counts of a full run: written by ``full``, read for the README's table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.conformance.harness.limitations import limitation_of
from tests.conformance.harness.runner import Outcome, Status
from tests.docs.markdown import table as markdown_table

RESULTS = Path(__file__).with_name("results.json")


@dataclass
class Counts:
    """The cases of one primitive by how they ended, and why some are not modelled."""

    cases: int = 0
    modelled: int = 0
    external: int = 0
    refused: int = 0
    failed: int = 0
    reasons: tuple[str, ...] = ()


def count(outcomes: Iterable[Outcome]) -> dict[str, Counts]:
    """Counts by primitive, sorted by name."""
    found: dict[str, Counts] = {}
    for outcome in outcomes:
        mine = found.setdefault(outcome.group, Counts())
        mine.cases += 1
        mine.modelled += outcome.status is Status.MODELLED
        mine.external += outcome.status is Status.EXTERNAL
        mine.refused += outcome.status is Status.REFUSED
        mine.failed += outcome.status in (Status.WRONG, Status.ERROR)
        limit = limitation_of(outcome.group, outcome.name)
        if limit is not None and limit.reason not in mine.reasons:
            mine.reasons = (*mine.reasons, limit.reason)
    return dict(sorted(found.items()))


def write(outcomes: Iterable[Outcome], version: str) -> None:
    """Keep the counts of a full run with JAX's version."""
    groups = {name: asdict(counts) for name, counts in count(outcomes).items()}
    text = json.dumps({"jax": version, "groups": groups}, indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def read() -> tuple[str, dict[str, Counts]]:
    """JAX's version and the counts of the last full run."""
    data = json.loads(RESULTS.read_text(encoding="utf-8"))
    groups = {
        name: Counts(**{**counts, "reasons": tuple(counts["reasons"])})
        for name, counts in data["groups"].items()
    }
    return data["jax"], groups


def runnable(groups: Mapping[str, Counts]) -> int:
    """Cases that JAX itself runs on the CPU."""
    return sum(c.cases - c.refused for c in groups.values())


def without_external(groups: Mapping[str, Counts]) -> int:
    """Primitives none of whose cases has an opaque node."""
    return sum(not c.external and not c.failed for c in groups.values())


def summary(groups: Mapping[str, Counts]) -> str:
    """The totals in one line."""
    total = sum(c.cases for c in groups.values())
    modelled = sum(c.modelled for c in groups.values())
    external = sum(c.external for c in groups.values())
    failed = sum(c.failed for c in groups.values())
    ran = runnable(groups)
    return (
        f"{total:,} cases, {total - ran} refused by JAX on the CPU; of the others "
        f"{modelled:,} ({modelled / ran:.1%}) are modelled, {external} have an opaque node, "
        f"{failed} fail; {without_external(groups)} of {len(groups)} primitives have none."
    )


def table() -> str:
    """The README's table by primitive, from the last full run."""
    version, groups = read()
    rows = [
        [f"`{name}`", *(str(n or "") for n in (c.cases, c.modelled, c.external, c.refused)),
         "; ".join(c.reasons)]
        for name, c in groups.items()
        if c.modelled < c.cases
    ]  # fmt: skip
    whole = [f"`{name}` {c.cases}" for name, c in groups.items() if c.modelled == c.cases]
    header = ["primitive", "cases", "modelled", "external", "refused", "why not modelled"]
    return (
        f"jax {version}: {summary(groups)}\n\n{markdown_table(header, rows)}\n\n"
        f"All cases of the other {len(whole)} are modelled: {', '.join(whole)}."
    )
