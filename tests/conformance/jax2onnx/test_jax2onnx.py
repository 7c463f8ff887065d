"""A fixed sample of jax2onnx's cases, and what a run of all of them gave.

``python -m tests.conformance.jax2onnx --full --write`` runs all and writes the results.
"""

from __future__ import annotations

import json

import jax

import rlx
from tests.conformance.jax2onnx import table
from tests.conformance.jax2onnx.cases import INSTALL, installed, sample
from tests.conformance.jax2onnx.runner import Status, run_case


def test_a_sample_of_the_cases() -> None:
    assert installed(), f"the cases are in the package jax2onnx: {INSTALL}"
    session = rlx.Session("cpu")
    outcomes = [run_case(case, session) for case in sample()]
    jax.clear_caches()
    bad = [o for o in outcomes if o.status in (Status.WRONG, Status.ERROR)]
    assert not bad, "\n".join(f"{o.name}: {o.status.value}: {o.detail}" for o in bad)
    modelled = sum(o.status is Status.MODELLED for o in outcomes)
    assert modelled >= 0.9 * len(outcomes), [o for o in outcomes if o.status is not Status.MODELLED]


def test_every_case_was_right() -> None:
    results = json.loads(table.RESULTS.read_text(encoding="utf-8"))
    assert not [row for row in results["not"] if row["status"] in ("wrong", "error")]
    cases = sum(row["cases"] for row in results["contexts"].values())
    assert cases >= 1644
    assert f"| {cases} |" in table.table().splitlines()[-1]
    assert table.reasons()
