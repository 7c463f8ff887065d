"""Argmax and argmin along the last axis: our CPU kernel against ``jax.jit``.

Run with ``python -m tests.benchmarks.bench_argreduce`` for the table, or with pytest to check that
the kernel wins on every dtype and shape that it takes.
"""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType
from rlx.ops.reduction import Argmax, Argmin
from rlx.types import TensorType
from rlx_xla.kernels import ffi
from rlx_xla.kernels.library.argreduce import MIN_COLS
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.timing import Comparison, compare

LARGE = ((64, 65), (1, 50_000), (4096, 1024))
CASES = [
    (dtype, shape)
    for dtype, least in ((dtype, bound.value) for dtype, bound in MIN_COLS.items())
    for shape in ((1, least), (1024, least), (20_000, least), *LARGE)
    if shape[1] >= least
]


def _graph(dtype: DType, shape: tuple[int, ...], *, minimum: bool) -> rlx.Graph:
    b = rlx.GraphBuilder("argreduce")
    op = Argmin if minimum else Argmax
    return b.build(op(axis=1)(b.input("x", TensorType(dtype, shape))))


def measure(
    dtype: DType, shape: tuple[int, ...], *, minimum: bool = False, rounds: int = 41
) -> Comparison:
    """Time the kernel, and two compiles of XLA's own program for the same graph."""
    graph = _graph(dtype, shape, minimum=minimum)
    common = rlx.CompileOptions(
        kernel_dispatch=rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
    )
    session = rlx.Session("cpu")
    ours = session.compile(graph)
    assert ours.report().kernels, str(ours.report())
    theirs = [session.compile(graph, options=common) for _ in range(2)]
    x = (np.random.default_rng(0).normal(size=shape) * 1000).astype(dtype.numpy)
    on_device = session.backend.to_device(x, TensorType(dtype, shape))
    calls = [repeated(c, (on_device,)) for c in (ours, *theirs)]
    name = f"arg{'min' if minimum else 'max'} {TensorType(dtype, shape)}"
    return compare(name, *calls, rounds=rounds)


@pytest.mark.parametrize(("dtype", "shape"), CASES, ids=str)
def test_the_kernel_wins_where_it_is_enabled(
    dtype: DType, shape: tuple[int, ...], judged: bool, rounds: int
) -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)
    result = measure(dtype, shape, rounds=rounds)
    print(result)
    assert not judged or result.not_slower


def main() -> None:
    """Print the table."""
    for dtype, shape in CASES:
        for minimum in (False, True):
            print(measure(dtype, shape, minimum=minimum), flush=True)


if __name__ == "__main__":
    main()
