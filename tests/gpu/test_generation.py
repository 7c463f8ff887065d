"""A packed language model on the GPU says what it says on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from rlx_xla.generation.model import LanguageModel
from tests.rlx_xla import tiny_gguf

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("inputs", ["exact", "int8"])
@pytest.mark.parametrize("scheme", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_text_is_that_of_the_cpu(
    architecture: str,
    scheme: str,
    inputs: str,
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Wide enough for the kernels, which take multiples of 256.
    monkeypatch.setattr(tiny_gguf, "WIDTH", 256)
    monkeypatch.setattr(tiny_gguf, "INNER", 512)
    vocabulary = "llama" if architecture == "gemma3" else "gpt2"
    path = tiny_gguf.write(
        tmp_path / "m.gguf", rng, architecture=architecture, vocabulary=vocabulary, scheme=scheme
    )
    there = LanguageModel(path, device="cuda", inputs=inputs)
    here = LanguageModel(path, device="cpu", inputs="exact")
    (found,), (wanted,) = (m.generate("the a the", max_tokens=6) for m in (there, here))
    # Products of f32 are TF32 there; bytes for inputs are farther from the exact ones.
    error = {"exact": 0.05, "int8": 0.2}[inputs]
    assert found.logprobs[0] == pytest.approx(wanted.logprobs[0], abs=error)
    kernels = {
        choice.implementation
        for program in there.programs().values()
        for choice in program.report().kernels
    }
    assert "dequant_matmul.cuda.ptx" in kernels
