"""How every op reaches every platform: what is missing is written down here."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.options.dispatch import KernelDispatch
from rlx.passes.legalize import examine
from rlx_xla.kernels.select import choose
from rlx_xla.lowering.registry import PLATFORMS, coverage
from tests.conformance.runner import all_samples, graph_of

MISSING: set[tuple[str, str]] = set()
"""(op, platform) without a rule, a kernel or a decomposition. An entry that holds no longer fails
the test, as does one that is new."""

STUCK = {"tpu": {"eig": "eig"}}
"""Platform → op → the op that nothing carries out there: JAX has no general eigenvalues on TPUs."""

OURS = "rlx.ops."


def test_what_is_missing_is_on_the_list() -> None:
    from rlx.ir.op import all_ops

    table = coverage()
    found = {
        (name, platform)
        for name, row in table.items()
        for platform, how in row.items()
        if how.startswith("missing") and all_ops()[name].__module__.startswith(OURS)
    }
    assert found == MISSING


def test_every_cell_says_how() -> None:
    for name, row in coverage().items():
        assert set(row) == set(PLATFORMS), name
        for how in row.values():
            assert how.startswith(("rule", "decomposition", "kernel ", "missing: ")), how


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_op_ends_in_rules_on_every_platform(platform: str, rng: np.random.Generator) -> None:
    """A cell says how an op itself is carried out; this follows its decomposition to the end."""
    stuck: dict[str, str] = {}
    for name, samples in all_samples(rng).items():
        for sample in samples[:3]:
            graph, _ = graph_of([sample])
            legal = examine(graph, lambda node: choose(node, platform, KernelDispatch()), platform)
            stuck.update((name, u.node.op.op_name) for u in legal.unsupported)
    assert stuck == STUCK.get(platform, {})
