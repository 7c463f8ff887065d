"""Importing rlx brings no jax with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.policy.sources import ROOT, modules

IMPORT_SECONDS = 0.3

PROBE = """
import importlib, json, sys, time
start = time.process_time()
for name in {names!r}:
    importlib.import_module(name)
seconds = time.process_time() - start
foreign = sorted(m for m in sys.modules if m.split(".")[0] in ("jax", "jaxlib", "rlx_xla", "flax"))
print(json.dumps([foreign, seconds]))
"""


def foreign_modules(*names: str) -> tuple[list[str], float]:
    """Import modules in a fresh interpreter; return what came along, and the CPU seconds taken."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(names=names)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    foreign, seconds = json.loads(done.stdout)
    return foreign, seconds


def test_rlx_imports_without_jax() -> None:
    foreign, _ = foreign_modules("rlx")
    assert foreign == []


def test_rlx_imports_fast() -> None:
    """CPU time, and the best of a few: other processes must not decide."""
    taken: list[float] = []
    while len(taken) < 5 and min(taken, default=IMPORT_SECONDS) >= IMPORT_SECONDS:
        taken.append(foreign_modules("rlx")[1])
    print("import rlx:", ", ".join(f"{seconds:.3f} s" for seconds in taken))
    assert min(taken) < IMPORT_SECONDS


def test_no_module_of_rlx_brings_jax() -> None:
    names = [
        m.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for m in modules()
        if m.package == "rlx"
    ]
    foreign, _ = foreign_modules(*names)
    assert foreign == []


def test_the_probe_can_fail() -> None:
    foreign, _ = foreign_modules("rlx", "jax")
    assert "jax" in foreign
    assert any(name.startswith("jaxlib") for name in foreign)
