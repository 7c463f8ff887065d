"""How a ratio is measured: alternating in one process, with its A/A control and an interval.

Two copies of the baseline are timed alongside the candidate, in turn and in a rotating order, so
that a slow moment of the machine meets all three. "Not slower" means that the lower end of the
ratio's 95 % interval is at most max(1.02, the upper end of the A/A interval).
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

TOLERATED = 1.02

FEWEST = 5
"""Rounds of a comparison at least, however long they take."""

_most_seconds: ContextVar[float] = ContextVar("most_seconds", default=math.inf)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within it a comparison takes about so long at most: it has fewer rounds, if need be."""
    token = _most_seconds.set(seconds)
    try:
        yield
    finally:
        _most_seconds.reset(token)


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % bootstrap interval."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline.

    Attributes:
        name: what was measured.
        ratio: candidate time / baseline time, per round.
        control: second copy of the baseline / baseline, per round.
        candidate_us: best time of one candidate call, in microseconds.
        baseline_us: best time of one baseline call, in microseconds.
    """

    name: str
    ratio: Interval
    control: Interval
    candidate_us: float
    baseline_us: float

    @property
    def not_slower(self) -> bool:
        """Whether the candidate is not slower than two baselines differ from each other."""
        return self.ratio.low <= max(TOLERATED, self.control.high)

    def within(self, factor: float) -> bool:
        """Whether the candidate takes at most ``factor`` times the baseline, noise allowed for."""
        return self.ratio.low <= factor * max(1.0, self.control.high)

    def __str__(self) -> str:
        return (
            f"{self.name:<44} {self.candidate_us:9.2f} us  baseline {self.baseline_us:9.2f} us  "
            f"ratio {self.ratio}  A/A {self.control}"
        )


def compare(
    name: str,
    candidate: Callable[[int], None],
    baseline: Callable[[int], None],
    control: Callable[[int], None],
    *,
    rounds: int = 41,
    round_seconds: float = 0.004,
) -> Comparison:
    """Time a candidate against a baseline and a second copy of the baseline.

    Args:
        name: printed with the result.
        candidate: ``run(n)`` makes n calls and waits for the last result.
        baseline: the same work by the baseline.
        control: the same work by a second, separately made baseline.
        rounds: how often each is timed.
        round_seconds: about how long one timing takes, in seconds.
    """
    runs = [candidate, baseline, control]
    for run in runs:
        run(1)
    warm = [20 if _seconds(run) < 0.005 else 1 for run in runs]
    for run, count in zip(runs, warm, strict=True):
        run(count)
    one = _seconds(baseline, warm[1]) / warm[1]
    calls = max(1, int(round_seconds / one))
    if _most_seconds.get() < math.inf:
        whole = sum(_seconds(run, calls) for run in runs)
        rounds = max(min(rounds, int(_most_seconds.get() / whole)), min(rounds, FEWEST))
    times: list[list[float]] = [[], [], []]
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds):
            for offset in range(3):
                which = (index + offset) % 3
                start = time.perf_counter()
                runs[which](calls)
                times[which].append((time.perf_counter() - start) / calls)
    finally:
        if was_enabled:
            gc.enable()
    ratios = [a / b for a, b in zip(times[0], times[1], strict=True)]
    controls = [c / b for c, b in zip(times[2], times[1], strict=True)]
    return Comparison(
        name, interval(ratios), interval(controls), min(times[0]) * 1e6, min(times[1]) * 1e6
    )


def _seconds(run: Callable[[int], None], calls: int = 1) -> float:
    """How long calls take."""
    start = time.perf_counter()
    run(calls)
    return time.perf_counter() - start


def interval(values: Sequence[float], *, resamples: int = 400, seed: int = 0) -> Interval:
    """Return the median of values with its 95 % percentile-bootstrap interval."""
    rng = random.Random(seed)
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples)
    )
    low, high = medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]
    return Interval(low, statistics.median(values), high)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(statistics.fmean(map(math.log, values)))
