"""Our CPU kernels against ``jax.jit``, the best form for XLA, NumPy, torch and onnxruntime.

Run with ``python -m tests.benchmarks.bench_kernels [part of a name]`` for the table, or with pytest
to check that every kernel gains where it is enabled.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

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

BEYOND_CACHES = 128 << 20
"""Bytes that caches do not hold."""

ROUND_OF_READS = 0.02
"""About how long one timing of reads takes, in seconds: they go through all copies."""

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
    if rows == 1:
        # A small size only shows that it works: two copies do.
        held = BEYOND_CACHES if size >= 4096 else 2 * sum(a.nbytes for a in params.values())
        found["read"] = _against_reading(label, graph, params, given, rounds, held)
    run = onnx_rivals.runner(onnx_rivals.four_bits(x, size)) if name == "int4/32" else None
    if run is not None:
        rival = repeated(run, ())
        found["onnxruntime"] = compare(label, runs[0], rival, rival, rounds=rounds)
    return found


def _against_reading(
    label: str,
    graph: rlx.Graph,
    params: dict[str, np.ndarray],
    x: jax.Array,
    rounds: int,
    held_bytes: int,
) -> Comparison:
    """Time a product against a plain read of its packed bytes by all threads.

    Both go through copies of the weights in turn, `held_bytes` or more of them.
    """
    copies = -(-held_bytes // sum(a.nbytes for a in params.values()))
    session = rlx.Session("cpu")
    programs = [session.compile(graph) for _ in range(copies)]
    held = [{n: a.copy() for n, a in params.items()} for _ in range(copies)]
    for program, copy in zip(programs, held, strict=True):
        program.set_params(copy)

    def product(calls: int) -> None:
        for i in range(calls):
            jax.block_until_ready(programs[i % copies](x))

    threads = len(os.sched_getaffinity(0))
    parts = [_in_parts(copy, threads) for copy in held]
    with ThreadPoolExecutor(threads) as pool:

        def read(calls: int) -> None:
            for i in range(calls):
                list(pool.map(_read, parts[i % copies]))

        return compare(
            f"{label}: read", product, read, read, rounds=rounds, round_seconds=ROUND_OF_READS
        )


def _in_parts(arrays: dict[str, np.ndarray], count: int) -> list[list[np.ndarray]]:
    """The bytes of arrays as words, in as many parts."""
    parts: list[list[np.ndarray]] = [[] for _ in range(count)]
    for array in arrays.values():
        flat = array.reshape(-1).view(np.uint8)
        words = flat[: flat.size // 4 * 4].view(np.uint32)
        for part, some in zip(parts, np.array_split(words, count), strict=True):
            part.append(some)
    return parts


def _read(arrays: list[np.ndarray]) -> None:
    for array in arrays:
        if array.size:
            array.max()


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
