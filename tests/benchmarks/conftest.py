"""Benchmarks are the files ``bench_*.py``; in check mode they run briefly and judge nothing."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect ``bench_*.py`` as tests; pytest itself takes a file named on the command line."""
    named = parent.session.isinitpath(file_path)
    if named or file_path.suffix != ".py" or not file_path.name.startswith("bench_"):
        return None
    return pytest.Module.from_parent(parent, path=file_path)


@pytest.fixture
def judged(request: pytest.FixtureRequest) -> bool:
    """Whether measured ratios are held against their targets."""
    return not request.config.getoption("benchmark_disable")


@pytest.fixture
def rounds(judged: bool) -> int:
    """How often each side of a comparison is timed."""
    return 41 if judged else 2
