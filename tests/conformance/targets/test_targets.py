"""Every sample lowers for every platform; chosen ops compile for TPUs and a GPU that are not here.

``RLX_CONFORMANCE=full`` lowers all dtypes; otherwise one of each op is drawn.
"""

from __future__ import annotations

import os
import random

import pytest

from rlx.errors import LoweringError
from rlx_xla.aot.compiling import compile_each, missing
from rlx_xla.aot.targets import parse_target
from rlx_xla.lowering.text import stablehlo
from tests.conformance.targets import results
from tests.conformance.targets.programs import (
    CHOSEN,
    NOT_COMPILED,
    TARGETS,
    Program,
    apart,
    chosen,
    joined,
    samples,
    text_for,
)

NOT_LOWERED = {("eig", "tpu"): "no general eigenvalues on TPUs"}
"""Op and platform → a part of what the rule says."""

FULL = os.environ.get("RLX_CONFORMANCE") == "full"


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_every_sample_lowers(platform: str) -> None:
    """The conformance tests lower all of them for the CPU, and run them."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    for op in samples():
        programs = apart(joined(op))
        for program in programs if FULL else [draw.choice(programs)]:
            refusal = _refusal(program, platform)
            wanted = NOT_LOWERED.get((op, platform), "")
            assert bool(refusal) == bool(wanted), (seed, str(program), refusal)
            assert wanted in refusal


def _refusal(program: Program, platform: str) -> str:
    try:
        text = stablehlo(program.graph, platform)
    except LoweringError as error:
        return str(error)
    return "" if "func.func public @main" in text else "there is no main"


@pytest.mark.parametrize("name", TARGETS)
def test_chosen_ops_compile(name: str) -> None:
    target = parse_target(name)
    command = missing(target)
    if command is not None:
        pytest.skip(f"needs {command}")
    known = results.refused_for(name)
    programs = chosen()
    made = compile_each([text_for(p, target) for p in programs], target, keep=False, timeout=120)
    for program, compilation in zip(programs, made, strict=True):
        refused = compilation.failure is not None
        assert refused == (str(program) in known), (str(program), str(compilation.failure))


def test_the_results_are_of_these_samples() -> None:
    names = {f"{op} {dtype}".strip() for op, found in samples().items() for dtype in found}
    assert set(results.read()) <= set(TARGETS)
    for target in TARGETS:
        assert set(results.refused_for(target)) <= names, target
    assert set(CHOSEN) <= samples().keys()
    assert not NOT_COMPILED.keys() & samples().keys()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "JaxRuntimeError: UNIMPLEMENTED: While rewriting computation to not contain X{64|128} "
            "element types, XLA encountered an HLO for which this rewriting is not implemented: …",
            "64-bit numbers are emulated, and not in this op",
        ),
        (
            "lowering of eig at runner.py:61: JAX has no general eigenvalues on TPUs",
            "JAX has no general eigenvalues on TPUs",
        ),
        (
            "exit code -6; F1129 21:29:20.346449 26599 shape.h:843] Check failed: buffer",
            "exit code -6; Check failed: buffer",
        ),
        ("INTERNAL: no " + "x" * 500, "INTERNAL: no " + "x" * 127),
    ],
)
def test_reasons_are_short_and_name_no_place(message: str, reason: str) -> None:
    assert results.reason_of(message) == reason
