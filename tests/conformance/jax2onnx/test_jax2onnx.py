"""A fixed sample of jax2onnx's cases, and what a run of all of them gave.

``python -m tests.conformance.jax2onnx --full --write`` runs all and writes the results.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.conformance.jax2onnx import table
from tests.conformance.jax2onnx.cases import INSTALL, installed

ROOT = Path(__file__).parents[3]


def test_a_sample_of_the_cases() -> None:
    assert installed(), f"the cases are in the package jax2onnx: {INSTALL}"
    # In a process of its own: jax2onnx replaces functions of jax.numpy when it is imported.
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.jax2onnx"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {k: int(n) for n, k in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])}
    assert counts["wrong"] == counts["error"] == 0
    assert counts["modelled"] >= 0.9 * sum(counts.values()) > 0, done.stdout


def test_every_case_was_right() -> None:
    results = json.loads(table.RESULTS.read_text(encoding="utf-8"))
    assert not [row for row in results["not"] if row["status"] in ("wrong", "error")]
    cases = sum(row["cases"] for row in results["contexts"].values())
    assert cases >= 1644
    assert f"| {cases} |" in table.table().splitlines()[-1]
    assert table.reasons()
