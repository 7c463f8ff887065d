"""A fixed tenth of JAX's harness suite; ``make harness`` runs all of it."""

from __future__ import annotations

import jax
import pytest

from tests.conformance.harness import runner, table
from tests.conformance.harness.limitations import LIMITATIONS, violation


@pytest.mark.parametrize("group", runner.groups())
def test_a_tenth_of_the_cases(group: str) -> None:
    problems = [text for text in map(violation, runner.run_all(runner.tenth(group))) if text]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("limit", LIMITATIONS, ids=lambda limit: f"{limit.group}-{limit.cases}")
def test_every_limitation_is_about_a_case(limit: object) -> None:
    from tests.conformance.harness.limitations import limitation_of

    assert any(limitation_of(c.group_name, c.fullname) is limit for c in runner.cases())


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
