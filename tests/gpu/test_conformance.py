"""Every op on the attached GPU against its NumPy meaning, through a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from tests.conformance import runner
from tests.conformance.test_ops import SEED, groups

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("group", groups())
def test_the_gpu_means_the_same(group: list[Any]) -> None:
    print(f"samples drawn with RLX_TEST_SEED={SEED}")
    graph, arrays = runner.graph_of(group)
    options = rlx.CompileOptions(matmul_precision="highest")
    compiled = rlx.Session("cuda").compile(graph, options=options)
    names = [value.name for value in graph.inputs]
    found = compiled.run(dict(zip(names, arrays, strict=True)))
    for sample in group:
        wanted = sample.op.evaluate(*sample.inputs)
        wanted = list(wanted) if type(wanted) is tuple else [np.asarray(wanted)]
        mine, found = found[: len(wanted)], found[len(wanted) :]
        runner.compare(sample, mine, wanted)
