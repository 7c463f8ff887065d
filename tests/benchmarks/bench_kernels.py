"""Our CPU kernels against ``jax.jit``, the best form for XLA, NumPy, torch and onnxruntime.

Run with ``python -m tests.benchmarks.bench_kernels [part of a name]`` for the table, or with pytest
to check that every kernel gains where it is enabled.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx_xla.kernels import ffi
from tests.benchmarks import onnx_rivals
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.kernel_cases import PACKED, Case, cases, compiled, packed_graph
from tests.benchmarks.timing import Comparison, compare

CLEAR = 1 / 1.5
"""The most time, as a part of ``jax.jit``'s, that an enabled kernel takes."""

CASES = list(cases(np.random.default_rng(0)))


def measure_case(case: Case, rounds: int) -> dict[str, Comparison]:
    """Time the kernel against each form and engine, with ``jax.jit`` against itself."""
    ours, args = compiled(case)
    mine = repeated(ours, args)
    found: dict[str, Comparison] = {}
    forms = {"jit": case.function, "best form": case.best}
    for name, form in forms.items():
        if form is not None:
            theirs = [jax.jit(form).lower(*args).compile() for _ in range(2)]
            runs = [repeated(f, args) for f in theirs]
            found[name] = compare(f"{case.name}: {name}", mine, *runs, rounds=rounds)
    rivals = dict(case.rivals)
    run = None if case.onnx is None else onnx_rivals.runner(case.onnx)
    if case.onnx is not None and run is not None:
        onnx_rivals.check(case.onnx, run, case.onnx_result, jax.tree.leaves(ours(*args))[0])
        rivals["onnxruntime"] = run
    for name, engine in rivals.items():
        rival = repeated(engine, ())
        found[name] = compare(f"{case.name}: {name}", mine, rival, rival, rounds=rounds)
    return found


def measure_packed(name: str, rows: int, rounds: int, size: int = 4096) -> dict[str, Comparison]:
    """Time a product with packed weights: against the same graph without the kernel, and others."""
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
    runs = [repeated(p, (given,)) for p in (ours, *theirs)]
    chosen = [c.implementation for c in ours.report().kernels]
    assert chosen == ["dequant_matmul.cpu.ffi"]
    label = f"{name}, {rows} rows, {size}^2"
    found = {"rule": compare(label, *runs, rounds=rounds)}
    run = onnx_rivals.runner(onnx_rivals.four_bits(x, size)) if name == "int4/32" else None
    if run is not None:
        rival = repeated(run, ())
        found["onnxruntime"] = compare(label, runs[0], rival, rival, rounds=rounds)
    return found


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernel_gains_where_it_is_enabled(case: Case, judged: bool, rounds: int) -> None:
    found = measure_case(case, min(rounds, 7))
    for result in found.values():
        print(result)
    assert not judged or case.kernel is None or found["jit"].within(CLEAR)


@pytest.mark.parametrize("name", PACKED)
def test_packed_products_gain(name: str, judged: bool, rounds: int) -> None:
    found = measure_packed(name, 1, min(rounds, 7), size=4096 if judged else 512)
    for result in found.values():
        print(result)
    assert not judged or found["rule"].within(CLEAR)


def main(part: str = "") -> None:
    """Print the table: times of the kernel, and how many times faster it is than each."""
    for case in CASES:
        if part in case.name:
            show(case.name, measure_case(case, 7), f"(target {case.target}x)")
    for name in PACKED:
        for rows in (1, 16):
            if part in name:
                show(f"{name}, {rows} rows, 4096^2", measure_packed(name, rows, 7))


def show(name: str, found: dict[str, Comparison], note: str = "") -> None:
    """Print one line."""
    ratios = ", ".join(f"{n} {1 / c.ratio.middle:.1f}x" for n, c in found.items())
    best = min(c.candidate_us for c in found.values())
    print(f"{name:<56} {best:10.1f} us  {ratios} {note}".rstrip(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
