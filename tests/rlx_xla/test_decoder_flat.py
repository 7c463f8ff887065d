"""Language models as GPUs run them, layers written out: what they say and are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import jax.numpy as jnp  # noqa: E402  (after importorskip)

from rlx.quant import open_gguf  # noqa: E402
from rlx_xla.models import decoder, decoder_flat, decoder_loop  # noqa: E402
from rlx_xla.models.decoder_config import read_config  # noqa: E402
from rlx_xla.models.decoder_flat import flat_params  # noqa: E402
from rlx_xla.models.decoder_params import load_params, vocabulary_size  # noqa: E402
from rlx_xla.models.packed import unpacked  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402

LAYERS = 3
FAMILIES = (
    ("llama", "gpt2", 0, ()), ("qwen2", "gpt2", 0, ("Q4_0", "Q8_0")), ("gemma3", "llama", 8, ()),
)  # fmt: skip


def joined(parts: Any) -> Any:
    return np.concatenate([np.asarray(part) for part in parts])


@pytest.mark.parametrize(("architecture", "vocabulary", "window", "downs"), FAMILIES)
def test_it_says_what_the_layers_say(
    architecture: str,
    vocabulary: str,
    window: int,
    downs: tuple[str, ...],
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    path = tiny_gguf.write(
        tmp_path / "m.gguf", rng, architecture=architecture, vocabulary=vocabulary, window=window,
        layers=LAYERS, downs=downs,
    )  # fmt: skip
    file = open_gguf(path)
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    params = load_params(file, config)
    flat = flat_params(params, joined)
    assert flat is not None
    ids = rng.integers(0, config.vocabulary, (2, 12), dtype=np.int32)
    start = jnp.array([0, 3], jnp.int32)
    here = replace(config, sums=True)

    @jax.jit
    def step(p: Any, part: Any, offset: Any, stacks: Any) -> Any:
        hidden, stacks = decoder_flat.forward(p, here, part, start, offset, stacks)
        return decoder.logits_of(p, here, hidden), stacks

    stacks = decoder_loop.empty_stacks(here, 2, decoder.BLOCK)
    found: list[Any] = []
    for at, count in ((0, 8), *((at, 1) for at in range(8, 12))):
        logits, stacks = step(flat, ids[:, at : at + count], jnp.int32(at), stacks)
        found.append(logits)
    plain = unpacked(params)

    @jax.jit
    def whole(ids: Any) -> Any:
        caches = decoder.empty_caches(config, 2, decoder.BLOCK)
        hidden, _ = decoder.forward(plain, config, ids, start, jnp.int32(0), caches)
        return decoder.logits_of(plain, config, hidden)

    seen = np.arange(12)[None] >= np.asarray(start)[:, None]
    wanted = np.asarray(whole(ids))[seen]
    np.testing.assert_allclose(np.concatenate(found, axis=1)[seen], wanted, rtol=1e-4, atol=2e-4)
