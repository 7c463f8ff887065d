"""A fixed tenth of JAX's harness suite; ``make harness`` runs all of it."""

from __future__ import annotations

import jax
import pytest

from tests.conformance.harness import runner, table
from tests.conformance.harness.limitations import (
    LIMITATIONS,
    Limitation,
    limitation_of,
    violation,
)


@pytest.mark.parametrize("group", runner.groups())
def test_a_tenth_of_the_cases(group: str) -> None:
    problems = [text for text in map(violation, runner.run_all(runner.tenth(group))) if text]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("limit", LIMITATIONS, ids=lambda limit: f"{limit.group}-{limit.cases}")
def test_every_limitation_is_about_a_case(limit: Limitation) -> None:
    found = any(limitation_of(c.group_name, c.fullname) is limit for c in runner.cases())
    assert found == limit.holds()


@pytest.mark.parametrize(
    ("version", "held"),
    [("0.7.2", False), ("0.9", True), ("0.10.2", True), ("0.12.0.dev1", False), ("0.12.1", False)],
)
def test_a_limitation_names_its_versions(version: str, held: bool) -> None:
    limit = Limitation("sin", runner.Status.REFUSED, "why", since="0.9", before="0.12")
    assert limit.holds(version) is held
    assert Limitation("sin", runner.Status.REFUSED, "why").holds(version)


def test_the_last_full_run_reached_the_goal() -> None:
    version, groups = table.read()
    ran = table.runnable(groups)
    assert sum(c.failed for c in groups.values()) == 0
    assert sum(c.modelled for c in groups.values()) >= 0.97 * ran
    assert table.without_external(groups) >= 125
    if version == jax.__version__:
        assert sum(c.cases for c in groups.values()) == len(runner.cases())


def test_the_table_names_every_primitive() -> None:
    _, groups = table.read()
    text = table.table()
    assert all(f"`{name}`" in text for name in groups)
