"""``python -m tests.conformance.jax2onnx [--full] [--write] [--only TEXT]``: run the cases."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter

import jax

import rlx
from tests.conformance.jax2onnx import table
from tests.conformance.jax2onnx.cases import INSTALL, cases, installed, sample
from tests.conformance.jax2onnx.runner import Outcome, Status, run_case

CLEAR_EVERY = 150
"""Cases between two times that JAX's caches are emptied; compiled programs take memory."""


def main() -> int:
    """Run what the arguments ask for; the exit status is 1 when a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.jax2onnx")
    parser.add_argument("--full", action="store_true", help="every case, not the fixed sample")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--write", action="store_true", help=f"write {table.RESULTS.name}")
    options = parser.parse_args()
    if not installed():
        print(f"jax2onnx is not installed: {INSTALL}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    chosen = [c for c in (cases() if options.full else sample()) if options.only in c.name]
    session = rlx.Session("cpu")
    outcomes: list[Outcome] = []
    for number, case in enumerate(chosen, 1):
        outcome = run_case(case, session)
        outcomes.append(outcome)
        if outcome.status is not Status.MODELLED:
            print(f"{outcome.status.value:9} {outcome.name}: {outcome.detail}", flush=True)
        if number % CLEAR_EVERY == 0:
            jax.clear_caches()
            print(f"{number} of {len(chosen)}", file=sys.stderr, flush=True)
    counts = Counter(outcome.status for outcome in outcomes)
    print(", ".join(f"{counts[status]} {status.value}" for status in Status))
    if options.write:
        table.write(outcomes)
    return int(bool(counts[Status.WRONG] or counts[Status.ERROR]))


if __name__ == "__main__":
    sys.exit(main())
