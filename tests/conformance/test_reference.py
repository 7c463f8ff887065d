"""Small samples in StableHLO's reference interpreter: an oracle that shares no code with XLA."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

from rlx.errors import LoweringError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx_xla.lowering.text import stablehlo
from rlx_xla.testing.reference import Unavailable, reference_runs
from tests.conformance.runner import all_samples, compare, graph_of
from tests.samples.base import Sample

MOST_OPERANDS, MOST_RESULTS = 300, 600
"""Elements: the interpreter does about a million multiplications in a second."""

DRAWN = 40
"""Ops that are compared; RLX_CONFORMANCE=full takes all."""

LEAVES = ("external", "custom")


def _small(samples: list[Sample]) -> tuple[Sample, Graph, list[np.ndarray[Any, Any]]] | None:
    """The first sample that the interpreter can hold and that has a portable form."""
    for sample in samples:
        arrays = [np.asarray(a) for a in sample.inputs]
        if sum(a.size for a in arrays) > MOST_OPERANDS or any(a.dtype.kind == "c" for a in arrays):
            continue
        graph, inputs = graph_of([sample])
        if any(v.type.size > MOST_RESULTS or v.type.dtype.is_complex for v in graph.outputs):
            continue
        try:
            stablehlo(graph, portable=True)
        except LoweringError:
            continue
        return sample, graph, inputs
    return None


def test_xla_is_not_the_only_one_that_agrees() -> None:
    # The same in every run, as the interpreter has faults of its own (order of f8e4m3fnuz, NaN in
    # reduce_precision) that some draws meet.
    seed = random.randrange(2**32)
    rng = np.random.default_rng(seed)
    table = {op: s for op, s in all_samples(rng).items() if op not in LEAVES}
    names = sorted(table)
    if os.environ.get("RLX_CONFORMANCE") != "full":
        names = random.Random(seed).sample(names, DRAWN)
    # Not always the first sample.
    for name in names:
        random.Random(seed).shuffle(table[name])
    chosen = [found for name in names if (found := _small(table[name])) is not None]
    assert len(chosen) > len(names) // 2
    results = reference_runs([(graph, inputs) for _, graph, inputs in chosen], timeout=550)
    lacking: list[str] = []
    for (sample, graph, inputs), found in zip(chosen, results, strict=True):
        if isinstance(found, Unavailable):
            # It ends where it lacks an op, and where a CPU traps: at −128 / −1, for instance.
            assert "its process ended" in found.reason, (seed, sample, found.reason)
            lacking.append(sample.op.op_name)
            continue
        feeds = {v.name: x for v, x in zip(graph.inputs, inputs, strict=True)}
        try:
            compare(sample, found, interpret(graph, feeds))
        except AssertionError as error:
            error.add_note(f"  seed {seed}")
            raise
    assert len(lacking) <= max(6, len(chosen) // 10), (seed, lacking)
