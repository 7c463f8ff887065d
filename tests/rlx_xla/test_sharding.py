"""Graphs over eight CPU devices, in a process that has them."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

from tests.rlx_xla import sharded_programs


@functools.cache
def outcomes() -> dict[str, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.rlx_xla.sharded_programs"],
        env=sharded_programs.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.mark.xdist_group("sharding")
@pytest.mark.parametrize("name", sorted(sharded_programs.PROGRAMS))
def test_on_eight_devices(name: str) -> None:
    assert not outcomes()[name], outcomes()[name]
