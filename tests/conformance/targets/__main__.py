"""Compiles every sample for absent devices: ``python -m tests.conformance.targets --write``.

Refusals go into ``results.json``, from which the README's table is made.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from collections.abc import Sequence

from rlx.errors import LoweringError
from rlx_xla.aot.compiling import FailureKind, compile_each, missing
from rlx_xla.aot.targets import Target, parse_target
from tests.conformance.targets import results
from tests.conformance.targets.programs import (
    TARGETS,
    Program,
    apart,
    joined,
    samples,
    text_for,
)

SECONDS = 120.0
"""Most time of one program's compile."""


def compile_all(target: Target) -> dict[str, str]:
    """``op dtype`` → why the compiler for a target does not take its sample."""
    doubtful = results.refused_anywhere()  # most likely refused here too: not put with others
    together = [p for op in samples() if (p := joined(op, without=doubtful)).dtypes]
    failed = [p for p, reason in zip(together, _reasons(together, target), strict=True) if reason]
    alone = [program for many in failed for program in apart(many)]
    alone += [p for op in samples() for p in apart(joined(op)) if str(p) in doubtful]
    reasons = zip(alone, _reasons(alone, target), strict=True)
    return {str(program): reason for program, reason in reasons if reason}


def _reasons(programs: Sequence[Program], target: Target) -> list[str]:
    """Why each program is not compiled; empty where it is."""
    reasons: list[str] = []
    texts: dict[int, str] = {}
    for number, program in enumerate(programs):
        try:
            texts[number] = text_for(program, target)
            reasons.append("")
        except LoweringError as error:
            reasons.append(results.reason_of(str(error)))
    found = compile_each(list(texts.values()), target, keep=False, timeout=SECONDS)
    for number, made in zip(texts, found, strict=True):
        if made.failure is not None:
            said = results.reason_of(made.failure.message)
            aborted = made.failure.kind is not FailureKind.REFUSED
            reasons[number] = f"{made.failure.kind.value}: {said}" if aborted else said
        print(f"  {made.seconds:6.1f} s  {programs[number]}", file=sys.stderr)
    return reasons


def main() -> None:
    """Compile, print what is refused, and maybe keep it."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.targets")
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--write", action="store_true", help="write results.json")
    options = parser.parse_args()
    for name in options.targets:
        target = parse_target(name)
        command = missing(target)
        if command is not None:
            print(f"{name}: left out; its compiler is not installed. Install it: {command}")
            continue
        before = time.perf_counter()
        refused = compile_all(target)
        count = sum(map(len, samples().values()))
        seconds = time.perf_counter() - before
        print(f"{name}: {len(refused)} of {count} not compiled, {seconds:.0f} s")
        for key, reason in refused.items():
            print(f"  {key}: {reason}")
        if options.write:
            package = "libtpu" if target.platform == "tpu" else "jax-cuda12-pjrt"
            version = f"{package} {importlib.metadata.version(package)}"
            results.write({name: refused}, {name: count}, {name: version})


if __name__ == "__main__":
    main()
