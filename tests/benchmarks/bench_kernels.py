"""Our CPU kernels against ``jax.jit``, the best form for XLA, NumPy and torch.

Run with ``python -m tests.benchmarks.bench_kernels [part of a name]`` for the table, or with pytest
to check that every kernel gains where it is enabled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx_xla.kernels import ffi
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.kernel_cases import PACKED, Case, cases, compiled, packed_graph
from tests.benchmarks.timing import Comparison, compare

CLEAR = 1 / 1.5
"""The most time, as a part of ``jax.jit``'s, that an enabled kernel takes."""

CASES = list(cases(np.random.default_rng(0)))


def _few(run: Callable[[int], None]) -> Callable[[int], None]:
    """The warm-up of ``compare`` is for calls of microseconds; ours take up to half a second."""
    return lambda calls: run(1 if calls == 20 else calls)


def measure(case: Case, rounds: int) -> dict[str, Comparison]:
    """Time the kernel against each form and engine, with ``jax.jit`` against itself."""
    ours, args = compiled(case)
    mine = _few(repeated(ours, args))
    found: dict[str, Comparison] = {}
    forms = {"jit": case.function, "best form": case.best}
    for name, form in forms.items():
        if form is not None:
            theirs = [jax.jit(form).lower(*args).compile() for _ in range(2)]
            runs = [_few(repeated(f, args)) for f in theirs]
            found[name] = compare(f"{case.name}: {name}", mine, *runs, rounds=rounds)
    for name, run in case.rivals.items():
        rival = _few(repeated(run, ()))
        found[name] = compare(f"{case.name}: {name}", mine, rival, rival, rounds=rounds)
    return found


def measure_packed(name: str, rows: int, rounds: int, size: int = 4096) -> Comparison:
    """Time a product with packed weights against the same graph without the kernel."""
    graph, params, x = packed_graph(name, rows, size, np.random.default_rng(0))
    common = rlx.CompileOptions(
        kernel_dispatch=rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
    )
    session = rlx.Session("cpu")
    ours = session.compile(graph)
    theirs = [session.compile(graph, options=common) for _ in range(2)]
    for program in (ours, *theirs):
        program.set_params(params)
    given = jnp.asarray(x)
    runs = [_few(repeated(p, (given,))) for p in (ours, *theirs)]
    for run in runs:
        run(1)
    chosen = [c.implementation for c in ours.report().kernels]
    assert chosen == ["dequant_matmul.cpu.ffi"]
    return compare(f"{name}, {rows} rows, {size}^2", *runs, rounds=rounds)


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernel_gains_where_it_is_enabled(case: Case, judged: bool, rounds: int) -> None:
    found = measure(case, min(rounds, 7))
    for result in found.values():
        print(result)
    assert not judged or found["jit"].within(CLEAR)


@pytest.mark.parametrize("name", PACKED)
def test_packed_products_gain(name: str, judged: bool, rounds: int) -> None:
    result = measure_packed(name, 1, min(rounds, 7), size=4096 if judged else 512)
    print(result)
    assert not judged or result.within(CLEAR)


def main(part: str = "") -> None:
    """Print the table: times of the kernel, and how many times faster it is than each."""
    for case in CASES:
        if part in case.name:
            found = measure(case, 7)
            ratios = ", ".join(f"{n} {1 / c.ratio.middle:.1f}x" for n, c in found.items())
            best = min(c.candidate_us for c in found.values())
            print(f"{case.name:<44} {best:10.1f} us  {ratios} (target {case.target}x)", flush=True)
    for name in PACKED:
        for rows in (1, 16):
            if part in name:
                result = measure_packed(name, rows, 7)
                ratio = 1 / result.ratio.middle
                print(f"{result.name:<44} {result.candidate_us:10.1f} us  rule {ratio:.1f}x")


if __name__ == "__main__":
    main(*sys.argv[1:2])
