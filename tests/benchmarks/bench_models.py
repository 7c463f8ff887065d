"""Whole models against ``jax.jit``, with our kernels off and on.

Run with ``python -m tests.benchmarks.bench_models`` for the table, or with names of models and
dtypes for some of it; with ``gradients`` for those of networks of convolutions. With kernels off
the ratio shows what passes and lowering rules do; with kernels on, what users see. The compile is
compared with kernels off: passes, lowering and XLA against lowering and XLA.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx import tolerances
from rlx.dtypes import as_dtype
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.models import GRADIENTS, MODELS
from tests.benchmarks.timing import Comparison, Interval, compare, interval

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Case:
    """One model."""

    model: str
    dtype: str
    kernels: bool

    def __str__(self) -> str:
        return f"{self.model}, {self.dtype}, kernels {'on' if self.kernels else 'off'}"


def _cases(names: Iterable[str]) -> list[tuple[Case]]:
    return [
        (Case(name, dtype, kernels),)
        for name in names
        for dtype in DTYPES
        for kernels in (False, True)
    ]


CASES = _cases(MODELS)
MADE = {**MODELS, **GRADIENTS}


@functools.lru_cache(maxsize=2)
def _made(model: str, dtype: str) -> Any:
    function, params, inputs = MADE[model](jnp.dtype(dtype))
    traced = rlx_xla.trace(function, params, *inputs, params=0)
    copies = [jax.jit(lambda *args: function(*args)) for _ in range(2)]
    return traced, copies, params, inputs


def compiled_for(case: Case) -> Any:
    """The compiled trace."""
    return _compile(_made(case.model, case.dtype)[0], case)


def _compile(traced: Any, case: Case) -> Any:
    policy = rlx.KernelPolicy.PREFER_NATIVE if case.kernels else rlx.KernelPolicy.FORCE_COMMON
    options = rlx.CompileOptions(kernel_dispatch=rlx.KernelDispatch(policy=policy))
    return rlx.Session("cpu").compile(traced, options=options)


def measure(case: Case, *, rounds: int = 21) -> Comparison:
    """Time the compiled trace with bound params, and two copies of ``jax.jit``."""
    _, copies, params, inputs = _made(case.model, case.dtype)
    ours = compiled_for(case)
    calls = [
        repeated(ours, inputs),
        *(repeated(c, (params, *inputs)) for c in copies),
    ]
    return compare(str(case), *calls, rounds=rounds, round_seconds=0.01)


@dataclass(frozen=True)
class Compiles:
    """What compiling one model takes, against ``jax.jit``.

    Attributes:
        name: of the case.
        ratio: our compile / theirs, median and range of the rounds.
        passes: the part of our compile that passes take.
        seconds: the fastest compile of ours and of theirs.
    """

    name: str
    ratio: Interval
    passes: float
    seconds: tuple[float, float]

    def __str__(self) -> str:
        ours, theirs = self.seconds
        return (
            f"compile {self.name:<36} {ours:6.2f} s  jax.jit {theirs:6.2f} s  ratio {self.ratio}  "
            f"passes {self.passes:.1%} of it"
        )


def compiles(case: Case, *, rounds: int = 5) -> Compiles:
    """Time the compile of the trace, and that of ``jax.jit`` after its trace, in turn."""
    traced, _, params, inputs = _made(case.model, case.dtype)
    function, _, _ = MADE[case.model](jnp.dtype(case.dtype))
    ours: list[float] = []
    theirs: list[float] = []
    shares: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        found = _compile(traced, case)
        ours.append(time.perf_counter() - start)
        phases = found.report().phases
        shares.append((phases["passes"] + phases["legalize"]) / ours[-1])
        staged = jax.jit(lambda *args: function(*args)).trace(params, *inputs)
        start = time.perf_counter()
        staged.lower().compile()
        theirs.append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Compiles(
        str(case), interval(ratios), statistics.median(shares), (min(ours), min(theirs))
    )


@pytest.fixture(autouse=True)
def _as_people_write() -> Iterator[None]:
    """The models rely on NumPy's broadcasting between ranks, which the tests forbid themselves."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("case", [case for (case,) in CASES], ids=str)
def test_models(case: Case, judged: bool, rounds: int) -> None:
    _, copies, params, inputs = _made(case.model, case.dtype)
    wanted = jax.tree.leaves(copies[0](params, *inputs))
    found = jax.tree.leaves(compiled_for(case)(*inputs))
    for got, want in zip(found, wanted, strict=True):
        wide = np.asarray(want, np.float64)
        limit = 50 * tolerances.tolerance(as_dtype(want.dtype)).rtol * max(1.0, np.abs(wide).max())
        assert np.abs(np.asarray(got, np.float64) - wide).max() <= limit
    if not judged and case.model != "MLP":
        return  # one model shows that the measuring works; the others take their time
    result = measure(case, rounds=rounds)
    print(result)
    assert not judged or result.not_slower


def main() -> None:
    """Print the table."""
    wanted = set(sys.argv[1:])
    gradients = "gradients" in wanted
    wanted.discard("gradients")
    for (case,) in _cases(GRADIENTS) if gradients else CASES:
        named = {case.model, case.dtype}
        if wanted and not wanted & named:
            continue
        print(measure(case), flush=True)
        if not case.kernels:
            print(compiles(case), flush=True)


if __name__ == "__main__":
    main()
