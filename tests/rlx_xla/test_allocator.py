"""Large buffers kept by the process: an option that is settled before XLA's CPU starts."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import rlx
import rlx_xla
from rlx.errors import RunError
from rlx_xla._jax_compat import client
from rlx_xla.runtime import allocator, keep_large_buffers

PROGRAM = """
import resource
import jax.numpy as jnp
import numpy as np
import rlx, rlx_xla
x = np.zeros((8, 2**20), np.float32)
compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: x + 1, x))
x = jnp.asarray(x)
for _ in range(20):
    compiled(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    compiled(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*compiled.report().decisions, sep="\\n")
"""
GLIBC = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")


def run_with(**variables: str) -> tuple[int, str]:
    """Page faults of ten calls with results of 32 MB, and what the report says."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    faults, _, lines = done.stdout.partition("\n")
    return int(faults), lines


@pytest.mark.slow
@GLIBC
def test_kept_buffers_cost_fewer_page_faults_and_the_report_says_so() -> None:
    faults, report = run_with()
    assert faults > 80_000
    assert report.strip() == (
        "each call maps 33,554,432 bytes anew, 8,192 page faults: RLX_KEEP_LARGE_BUFFERS=1 keeps "
        "such buffers for the next call, and their memory with the process"
    )
    kept, report = run_with(RLX_KEEP_LARGE_BUFFERS="1")
    assert kept < faults * 0.75
    assert report.startswith("large buffers are kept (RLX_KEEP_LARGE_BUFFERS): the process holds ")
    assert "in one heap for all threads" in report


def test_it_must_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    jax.devices()
    with pytest.raises(RunError) as caught:
        keep_large_buffers()
    assert str(caught.value) == (
        "keep_large_buffers: it is required before XLA's CPU starts, whose threads choose their "
        "heaps then; it has started. Call it first in the program, or set "
        "RLX_KEEP_LARGE_BUFFERS=1."
    )
    monkeypatch.setenv("RLX_KEEP_LARGE_BUFFERS", "1")
    allocator.apply_environment()
    x = jnp.ones(3)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: x + 1, x))
    assert list(compiled.report().decisions) == [
        "RLX_KEEP_LARGE_BUFFERS has no effect: XLA's CPU had started when rlx_xla was imported"
    ]
    monkeypatch.delenv("RLX_KEEP_LARGE_BUFFERS")
    assert not allocator.cost_lines({"output": 100, "temp": 0})


def test_other_allocators_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.jax_client, "has_started", lambda: False)
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    with pytest.raises(RunError) as caught:
        keep_large_buffers()
    assert str(caught.value) == (
        "keep_large_buffers: glibc is required, whose mallopt it sets; darwin has another "
        "allocator. Leave the call out."
    )


def test_what_glibc_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.jax_client, "has_started", lambda: False)
    monkeypatch.setattr(allocator, "_mallopt", lambda: lambda parameter, value: 0)
    with pytest.raises(RunError) as caught:
        keep_large_buffers()
    assert str(caught.value) == (
        "keep_large_buffers: glibc is required to take mallopt(-3, 1073741824); it refused. Leave "
        "the call out."
    )


def test_memory_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def analysis(executable: object) -> dict[str, int]:
        asked.append(executable)
        return {"output": 4}

    monkeypatch.setattr(client, "memory_analysis", analysis)
    b = rlx.GraphBuilder()
    compiled = rlx.Session("cpu").compile(b.build(b.input("x", "f32[3]") * 2.0))
    compiled.memory()["output"] = 5  # the caller's own copy
    assert compiled.memory() == {"output": 4}
    assert len(asked) == 1
