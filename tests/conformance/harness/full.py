"""Runs the whole harness suite: ``python -m tests.conformance.harness.full --write``.

The counts go into ``results.json``, from which the README's table is made. The exit status is 1
when a case does not end as ``limitations.py`` says.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import sys
from collections.abc import Iterable

import jax
from rich.progress import track

from tests.conformance.harness import table
from tests.conformance.harness.limitations import unused, violation
from tests.conformance.harness.runner import Outcome, cases, run_all

CHUNK = 100
"""Cases that a process runs before it takes others."""


def run_chunk(start: int) -> list[Outcome]:
    """Run the cases from a number on."""
    return list(run_all(cases()[start : start + CHUNK]))


def run_suite(jobs: int) -> list[Outcome]:
    """Run every case in some processes; a crash of one ends the run."""
    starts = range(0, len(cases()), CHUNK)
    # Fresh processes: XLA's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        chunks: Iterable[list[Outcome]] = pool.map(run_chunk, starts)
        shown = track(chunks, "harness", total=len(starts))
        return [outcome for chunk in shown for outcome in chunk]


def main() -> int:
    """Run the suite, print what is not as expected, and maybe write the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.harness.full")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--write", action="store_true", help="write results.json")
    options = parser.parse_args()
    outcomes = run_suite(options.jobs)
    problems = [text for text in map(violation, outcomes) if text]
    problems += [f"no case has the limitation {limit}" for limit in unused(outcomes)]
    for text in problems:
        print(text)
    if options.write:
        table.write(outcomes, jax.__version__)
    print(table.summary(table.count(outcomes)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
