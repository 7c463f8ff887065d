"""Every pass has a name of its own, and a place in a pipeline."""

from __future__ import annotations

import re

from rlx.options.compile import CompileOptions
from rlx.options.precision import PrecisionPolicy
from rlx.passes import pipelines
from rlx.passes.base import AbstractPass, Fixpoint, Pipeline
from rlx.quant import ScaledQuantConfig
from tests.policy.passes import registered_passes

EVERYTHING = CompileOptions(
    matmul_precision="highest",
    lint_numerics=True,
    strict=True,
    scaled_quant=ScaledQuantConfig(),
    policy=PrecisionPolicy.AUTO_MIXED_BF16,
)
"""Options that ask for every pass that is not in the pipelines by default."""

NOT_IN_A_PIPELINE = {
    "decompose": "run by hand; `legalize` decomposes what nothing else carries out",
    "insert-qdq": "run by hand, with a calibration of the graph",
    "fixpoint": "holds passes",
}


def _names_in(passes: tuple[AbstractPass, ...]) -> set[str]:
    names = {p.name for p in passes}
    return names.union(*(_names_in(p.passes) for p in passes if isinstance(p, Fixpoint)))


def _in_pipelines() -> set[str]:
    names: set[str] = set()
    for name, function in vars(pipelines).items():
        if name.endswith("_pipeline"):
            pipeline: Pipeline = function(EVERYTHING)
            names |= _names_in(pipeline.passes)
    return names


def test_every_pass_is_in_a_pipeline_or_says_why_not() -> None:
    outside = {p.name for p in registered_passes()} - _in_pipelines()
    assert outside == set(NOT_IN_A_PIPELINE)


def test_names() -> None:
    names = [p.name for p in registered_passes()]
    assert len(set(names)) == len(names)
    assert [n for n in names if not re.fullmatch(r"[a-z]+(-[a-z]+)*", n)] == []
