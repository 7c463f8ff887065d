"""Language models for accelerators that are not there: they fit, and stay packed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import jax.numpy as jnp  # noqa: E402  (after importorskip)

import rlx  # noqa: E402
from rlx_xla.aot import missing, parse_target  # noqa: E402
from rlx_xla.generation.model import LanguageModel  # noqa: E402
from rlx_xla.generation.programs import Programs  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402


def needs(target: str) -> pytest.MarkDecorator:
    absent = missing(parse_target(target)) is not None
    return pytest.mark.skipif(absent, reason=f"the compiler for {target} is not installed")


@pytest.mark.parametrize("scheme", ["Q4_0", "Q4_1", "Q8_0"])
def test_weights_for_a_tpu_take_the_bytes_of_the_file(
    scheme: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng, scheme=scheme))
    config, params = replace(model.config, wide=False), model._params
    programs = Programs(rlx.Session("cpu"), config, params, jnp.bfloat16, native=True)
    leaves = programs.traced(1, 1, 128).graph.params
    bits = sum(math.prod(map(int, map(str, v.shape))) * v.dtype.bits for v in leaves)
    assert bits / 8 <= 1.02 * model.packed_bytes


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("tpu:v5e:1x1", marks=needs("tpu:v5e:1x1")),
        pytest.param("cuda:h200", marks=[needs("cuda:h200"), pytest.mark.slow]),
    ],
)
def test_preflight(target: str, tmp_path: Path, rng: np.random.Generator) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng, scheme="Q4_1"))
    found = model.preflight(target)
    assert found.ok, found.failure
    assert found.fits
    assert not found.unsupported
    caches = 2 * tiny_gguf.LAYERS * 2 * 128 * 16 * 2  # two bytes a number
    state = caches + model.config.vocabulary
    # Small vectors are padded to whole tiles on a TPU.
    assert found.memory["argument"] >= 0.9 * (model.packed_bytes + caches)
    assert found.memory["argument"] <= 4 * (model.packed_bytes + state)
    assert "dequant" not in str(found)
