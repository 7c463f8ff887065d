"""Importing rlx brings no jax with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.policy.sources import ROOT, modules

PROBE = """
import importlib, json, sys
for name in {names!r}:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""
FOREIGN = {"jax", "jaxlib", "rlx_xla", "flax"}


def imported(*names: str) -> list[str]:
    """Import modules in a fresh interpreter; return every module that is there afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(names=names)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def foreign_modules(*names: str) -> list[str]:
    """Import modules in a fresh interpreter; return what came along and should not."""
    return [m for m in imported(*names) if m.split(".")[0] in FOREIGN]


def test_rlx_imports_without_jax() -> None:
    foreign = foreign_modules("rlx")
    assert foreign == []


def test_rlx_imports_little() -> None:
    """What makes an import slow: packages beside the two that it needs, and families of ops."""
    bare = set(imported())  # a Python's own start may bring packages too
    brought = {m.split(".")[0] for m in set(imported("rlx")) - bare} - set(sys.stdlib_module_names)
    assert brought == {"rlx", "numpy", "ml_dtypes"}


def test_rlx_leaves_families_of_ops_for_first_use() -> None:
    families = {m for m in imported("rlx") if m.startswith("rlx.ops.")}
    assert families == {"rlx.ops.external", "rlx.ops.random_bits"}, "the graph's own, no families"


def test_no_module_of_rlx_brings_jax() -> None:
    names = [
        m.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for m in modules()
        if m.package == "rlx"
    ]
    foreign = foreign_modules(*names)
    assert foreign == []


def test_the_probe_can_fail() -> None:
    foreign = foreign_modules("rlx", "jax")
    assert "jax" in foreign
    assert any(name.startswith("jaxlib") for name in foreign)
