"""Writes the README's performance table: runs the benchmarks, on a machine that does nothing else.

``python -m tests.docs.performance`` prints it; with ``--write`` it goes into the README. A
comparison takes ``--seconds`` at most, so that all end within a quarter of an hour; ``--fast`` is
for a look. An engine that is not installed leaves a dash.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import pkgutil
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import jax

import tests.benchmarks
from tests.benchmarks import kernel_rows
from tests.benchmarks.timing import Comparison, geometric_mean, limited
from tests.docs.markdown import README, table, with_generated

NAME = "performance"
HEADER = (
    "what",
    "RLX, µs",
    "baseline, µs",
    "ratio [95 % interval]",
    "two baselines [95 % interval]",
    "not slower",
)
APART = frozenset({"bench_generation"})
"""Benchmarks with a table of their own, which need a model's file."""

SECONDS = 2.0
"""How long a comparison takes at most: there are about three hundred."""

NOT_JIT = frozenset({"growth", "growth_bare"})
"""Comparisons whose baseline is not ``jax.jit``: the mean leaves them out."""


def modules() -> Iterator[ModuleType]:
    """Every ``tests/benchmarks/bench_*.py`` with a function ``measure``."""
    for info in pkgutil.iter_modules(tests.benchmarks.__path__):
        if info.name.startswith("bench_") and info.name not in APART:
            module = importlib.import_module(f"{tests.benchmarks.__name__}.{info.name}")
            if hasattr(module, "measure"):
                yield module


def machine() -> str:
    """CPU model, cores that this process may use, versions and date, as one sentence."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return (
        f"Measured on {cpu_model()}, {cores()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, jax {jax.__version__}, "
        f"device {jax.devices()[0].device_kind}, {today}."
    )


def cpu_model() -> str:
    """Model of the CPU, or the architecture where the system does not say more."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def measured(module: ModuleType, options: Mapping[str, int]) -> dict[str, Comparison]:
    """Run one benchmark: one ``measure`` for everything, or one for each of its ``CASES``."""
    if not hasattr(module, "CASES"):
        return module.measure(**options)
    return {str(case): module.measure(*case, **options) for case in module.CASES}


def rows(results: Mapping[str, Comparison]) -> list[list[str]]:
    """One row per comparison."""
    return [
        [
            result.name.strip(),
            f"{result.candidate_us:,.1f}",
            f"{result.baseline_us:,.1f}",
            str(result.ratio),
            str(result.control),
            "yes" if result.not_slower else "no",
        ]
        for result in results.values()
    ]


def performance(rounds: int | None, seconds: float = SECONDS) -> str:
    """Run every benchmark; return the table with the machine and the mean.

    Args:
        rounds: how often each side is timed, or None for each benchmark's own number.
        seconds: how long a comparison takes at most.
    """
    parts = [machine()]
    with limited(seconds):
        for module in modules():
            stem = module.__name__.rpartition(".")[2]
            started = time.perf_counter()
            results = measured(module, {} if rounds is None else {"rounds": rounds})
            ratios = [r.ratio.middle for key, r in results.items() if key not in NOT_JIT]
            parts.append(
                f"`{stem}`, geometric mean of the ratios {geometric_mean(ratios):.3f}:\n\n"
                f"{table(HEADER, rows(results))}"
            )
            _progress(stem, started)
        parts.append(kernels(rounds or 21))
    return "\n\n".join(parts)


def kernels(rounds: int) -> str:
    """The kernels' table: each against XLA's forms, other engines and the machine itself."""
    found: list[list[str]] = []
    for started, row in _timed(kernel_rows.rows(rounds)):
        found.append(kernel_rows.cells(row))
        _progress(row.name, started)
    return (
        "Kernels: RLX's time over that of `jax.jit` of the natural form, of the best form for XLA "
        "and of the fastest other engine (NumPy, torch, onnxruntime: where installed), below 1 is "
        "faster. The floor is what the bytes or the products take by the best copy and the best "
        "f32 product of this run; for one row and packed weights, a plain read of these by all "
        "threads, in turn with ours and through copies that no cache holds.\n\n"
        f"{table(kernel_rows.HEADER, found)}"
    )


def _timed(items: Iterator[kernel_rows.Row]) -> Iterator[tuple[float, kernel_rows.Row]]:
    """Each item with when its making began."""
    started = time.perf_counter()
    for item in items:
        yield started, item
        started = time.perf_counter()


def _progress(what: str, started: float) -> None:
    print(f"{what}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.docs.performance", description=main.__doc__
    )
    parser.add_argument("--write", action="store_true", help="put it into the README")
    parser.add_argument("--rounds", type=int, default=None, help="timings of each side")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="that a comparison takes at most"
    )
    parser.add_argument("--fast", action="store_true", help="two rounds, for a look")
    options = parser.parse_args()
    content = performance(2 if options.fast else options.rounds, options.seconds)
    if options.write:
        text = README.read_text(encoding="utf-8")
        README.write_text(with_generated(text, NAME, content), encoding="utf-8")
    else:
        print(content)


if __name__ == "__main__":
    main()
