"""Measuring the bounds of this machine: each kernel against the lowering rule, over a few sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

import rlx
from rlx.dtypes import DType
from rlx.errors import RunError
from rlx.ir.graph import Graph
from rlx_xla.kernels import ffi
from rlx_xla.kernels.calibration import store
from rlx_xla.kernels.calibration.bounds import Bound, all_bounds, forget, open_all
from rlx_xla.kernels.calibration.cases import CASES

GAIN = 1 / 1.1
"""The most time, as a part of XLA's, that counts as a gain."""

_SECONDS = 0.15
"""How long one size is timed."""


@final
@dataclass(frozen=True)
class Measured:
    """One bound's measurement.

    Attributes:
        bound: what was measured.
        ratios: kernel time / XLA time at each of the bound's sizes.
        value: the number that follows.
    """

    bound: Bound
    ratios: tuple[float, ...]
    value: int

    def __str__(self) -> str:
        shown = "  ".join(
            f"{size}: {1 / ratio:.1f}x"
            for size, ratio in zip(self.bound.sizes, self.ratios, strict=True)
        )
        kind = "least" if self.bound.least else "most"
        value = "none gains" if self.value in (0, store.NEVER) else f"{kind} {self.value}"
        return f"{self.bound.name}: {value} (packaged {self.bound.packaged}; {shown})"


def bound_of(sizes: Sequence[int], ratios: Sequence[float], *, least: bool) -> int:
    """The bound beyond which every measured size gains.

    Args:
        sizes: ascending.
        ratios: kernel time / XLA time, one for each size.
        least: whether sizes from the bound on gain, and not those up to it.

    Returns:
        One of the sizes; where none gains, a number that no size reaches.
    """
    pairs = list(zip(sizes, ratios, strict=True))
    found = store.NEVER if least else 0
    for size, ratio in reversed(pairs) if least else pairs:
        if ratio > GAIN:
            break
        found = size
    return found


def calibrate(on_bound: Callable[[int, int, Measured], None] | None = None) -> list[Measured]:
    """Measure every bound on this machine and keep the numbers in its file.

    Args:
        on_bound: called after each with how many are done, of how many, and what it gave.

    Returns:
        What was measured, by name.

    Raises:
        RunError: the kernels cannot be used here, or the file cannot be written.
    """
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        raise RunError(
            f"calibrate: the C++ kernels are required; {library.reason}. There is nothing to "
            "measure without them."
        )
    bounds = [b for b in all_bounds() if b.name in CASES]
    found: list[Measured] = []
    for number, each in enumerate(bounds, 1):
        measured = _measure(each)
        found.append(measured)
        if on_bound is not None:
            on_bound(number, len(bounds), measured)
    store.write({m.bound.name: m.value for m in found})
    forget()
    return found


def _measure(bound: Bound) -> Measured:
    kernel = bound.name.partition("/")[0]
    with open_all():
        ratios = tuple(_ratio(CASES[bound.name](size), kernel) for size in bound.sizes)
    return Measured(bound, ratios, bound_of(bound.sizes, ratios, least=bound.least))


def _ratio(graph: Graph, kernel: str) -> float:
    """The kernel's best time over that of the lowering rule, in alternation."""
    session = rlx.Session("cpu")
    forced = rlx.KernelDispatch(forced=frozenset({kernel}))
    common = rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
    programs = [
        session.compile(graph, options=rlx.CompileOptions(kernel_dispatch=dispatch))
        for dispatch in (forced, common)
    ]
    args = [jax.device_put(x) for x in _drawn(graph).values()]
    for program in programs:
        jax.block_until_ready(program(*args))
    best = [float("inf")] * 2
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        for i, program in enumerate(programs):
            start = time.perf_counter()
            jax.block_until_ready(program(*args))
            best[i] = min(best[i], time.perf_counter() - start)
    return best[0] / best[1]


def _drawn(graph: Graph) -> Mapping[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for leaf in graph.inputs:
        shape = tuple(int(str(d)) for d in leaf.type.shape)
        if leaf.type.dtype is DType.U8:
            found[leaf.name] = rng.integers(0, 60, shape, dtype=np.uint8)
        else:
            found[leaf.name] = (rng.normal(size=shape) * 8).astype(leaf.type.dtype.numpy)
    return found
