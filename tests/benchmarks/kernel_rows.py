"""One row for each kernel and shape: RLX, XLA's natural and best form, the best engine, a floor.

Run with ``python -m tests.benchmarks.kernel_rows [part of a name]`` for the rows as text.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.timing import Comparison

XLA = ("jit", "best form", "rule", "lax.scan")
"""What is compared with that XLA compiles; anything else is another engine."""

NATURAL = ("jit", "rule", "lax.scan")
"""The same program without the kernel."""

READ = "read"
"""A plain read of the packed weights, by all threads."""


@dataclass(frozen=True)
class Row:
    """What was measured of a program.

    Attributes:
        name: of the program.
        found: name of a form or engine → its comparison.
        nbytes: of what is read and written once, in bytes.
        flops: additions and multiplications; 0 where they are not what it takes time for.
    """

    name: str
    found: dict[str, Comparison]
    nbytes: int
    flops: float

    @property
    def ours_us(self) -> float:
        """Our best time, in microseconds."""
        return min(c.candidate_us for n, c in self.found.items() if n != READ)

    def against(
        self, names: tuple[str, ...], *, others: bool = False
    ) -> tuple[str, Comparison] | None:
        """The strongest of some forms, or of all others: the largest ratio."""
        some = [(n, c) for n, c in self.found.items() if (n in names) != others and n != READ]
        return max(some, key=lambda pair: pair[1].ratio.middle, default=None)

    def floor(self) -> tuple[float, str]:
        """The least time that this machine needs, in microseconds, and what sets it."""
        if READ in self.found:
            return self.found[READ].baseline_us, READ
        reading = self.nbytes / bytes_per_second(1 << (max(self.nbytes, 1) - 1).bit_length())
        counting = self.flops / flops_per_second() if self.flops else 0.0
        return max((reading * 1e6, "bytes"), (counting * 1e6, "flops"))

    def above_floor(self) -> float:
        """How many times the least time ours takes: against a read, both in turn."""
        if READ in self.found:
            return self.found[READ].ratio.middle
        return self.ours_us / self.floor()[0]


def rows(rounds: int, part: str = "") -> Iterator[Row]:
    """Measure every program whose name holds a text.

    Args:
        rounds: how often each side is timed.
        part: of the names.
    """
    # Their arrays are made when they are imported, 200 MB of them.
    from tests.benchmarks import bench_attention, bench_kernels
    from tests.benchmarks.kernel_cases import PACKED, Case, packed_graph

    cases: list[Case] = [*bench_kernels.CASES, *bench_attention.CASES]
    for case in cases:
        if part in case.name:
            found = bench_kernels.measure_case(case, rounds)
            yield Row(case.name, found, _bytes_of(case), case.flops)
    for scheme in PACKED:
        for count in (1, 16):
            name = f"{scheme}, {count} rows, 4096^2"
            if part in name:
                found = bench_kernels.measure_packed(scheme, count, rounds)
                _, params, x = packed_graph(scheme, count, 4096, np.random.default_rng(0))
                nbytes = sum(a.nbytes for a in params.values()) + 2 * x.nbytes
                yield Row(name, found, nbytes, 2.0 * count * 4096**2)
    for name, op, arrays in bench_attention.RECURRENCES:
        if part in name:
            found = bench_attention.measure_op(name, op, arrays, rounds)
            yield Row(name, found, sum(a.nbytes for a in arrays), 0)


def _bytes_of(case: Any) -> int:
    made = jax.eval_shape(case.function, *case.args)
    results = sum(y.size * y.dtype.itemsize for y in jax.tree.leaves(made))
    return results + sum(a.nbytes for a in case.args)


@functools.cache
def bytes_per_second(nbytes: int) -> float:
    """How many bytes a second are copied, in and out counted, of so many: one thread or all."""
    half = max(nbytes // 2, 64)
    source, target = np.ones(half, np.uint8), np.empty(half, np.uint8)
    threads = len(os.sched_getaffinity(0))
    edges = [half * i // threads for i in range(threads + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    with ThreadPoolExecutor(threads) as pool:

        def together() -> None:
            list(pool.map(lambda s: np.copyto(target[s], source[s]), parts))

        best = min(_best(lambda: np.copyto(target, source)), _best(together))
    return 2 * half / best


@functools.cache
def flops_per_second() -> float:
    """Additions and multiplications of f32 a second: the best product of 1024³ here."""
    x = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    product = jax.jit(jnp.matmul)
    on_device = jnp.asarray(x)
    best = min(
        _best(lambda: x @ x), _best(lambda: product(on_device, on_device).block_until_ready())
    )
    return 2 * 1024**3 / best


def _best(run: Callable[[], Any], seconds: float = 0.2) -> float:
    """The shortest of many runs, in seconds."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


HEADER = (
    "what",
    "RLX, µs",
    "`jax.jit`, µs",
    "RLX / `jax.jit` [95 % interval]",
    "RLX / best XLA form",
    "RLX / best engine",
    "onnxruntime",
    "floor, µs",
    "RLX / floor",
)


def cells(row: Row) -> list[str]:
    """A row of the table; a dash stands for what there is not."""
    natural, xla = row.against(NATURAL), row.against(XLA)
    engine = row.against(XLA, others=True)
    floor, why = row.floor()
    onnx = row.found.get("onnxruntime")
    return [
        row.name,
        f"{row.ours_us:,.1f}",
        "-" if natural is None else f"{natural[1].baseline_us:,.1f}",
        "-" if natural is None else str(natural[1].ratio),
        "-" if xla is None else f"{xla[1].ratio.middle:.2f} ({xla[0]})",
        "-" if engine is None else f"{engine[1].ratio.middle:.2f} ({engine[0]})",
        "-" if onnx is None else f"{onnx.ratio.middle:.2f}",
        f"{floor:,.1f} ({why})",
        f"{row.above_floor():.1f}",
    ]


def main(part: str = "") -> None:
    """Print the rows."""
    print(" | ".join(HEADER))
    for row in rows(7, part):
        print(" | ".join(cells(row)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
