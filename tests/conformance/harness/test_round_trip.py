"""``trace(to_jax(trace(f)))`` is ``trace(f)`` in canonical form, on the whole suite."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.passes import Canonicalize, EliminateCommonSubexpressions, Fixpoint, PassContext
from tests.conformance.harness.runner import groups

CANONICAL = Fixpoint(passes=(Canonicalize(), EliminateCommonSubexpressions()))

_NAMES = (
    (re.compile(r'"[^"]*"'), '""'),  # names of graphs and inputs
    (re.compile(r"%[A-Za-z_][\w./]*"), "%v"),
    (re.compile(r"@[\w.]+"), "@g"),
)


def form(graph: rlx.Graph) -> str:
    """The canonical text of a graph without the names that a caller chooses."""
    text = str(CANONICAL.run(graph, PassContext()))
    for pattern, stand_in in _NAMES:
        text = pattern.sub(stand_in, text)
    return text


@pytest.mark.parametrize("name", sorted(groups()))
def test_the_way_back(name: str) -> None:
    compared = 0
    for harness in groups()[name]:
        args = harness.dyn_args_maker(np.random.RandomState(0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX's own about the case, such as a lossy conversion
            try:
                traced = rlx_xla.trace(harness.dyn_fun, *args)
            except (TypeError, ValueError, NotImplementedError):
                continue  # JAX refuses the case; test_harness counts these
            again = rlx_xla.trace(rlx_xla.to_jax(traced), *args)
        assert form(again.graph) == form(traced.graph), harness.fullname
        compared += 1
    assert compared
