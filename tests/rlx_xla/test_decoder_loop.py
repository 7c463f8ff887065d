"""Language models as loops over their layers: what they say, compile and keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import jax.numpy as jnp  # noqa: E402  (after importorskip)

import rlx  # noqa: E402
import rlx_xla  # noqa: E402
from rlx.quant import open_gguf  # noqa: E402
from rlx_xla.generation.model import LanguageModel  # noqa: E402
from rlx_xla.generation.programs import Programs  # noqa: E402
from rlx_xla.models import decoder, decoder_loop  # noqa: E402
from rlx_xla.models.decoder_config import read_config  # noqa: E402
from rlx_xla.models.decoder_loop import loop_params  # noqa: E402
from rlx_xla.models.decoder_params import load_params, vocabulary_size  # noqa: E402
from rlx_xla.models.packed import PackedWeight, PickedWeight, product, unpacked  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402

LAYERS = 5
FAMILIES = (
    ("llama", "gpt2", 0, ()), ("qwen2", "gpt2", 0, ("Q4_0", "Q8_0")), ("gemma3", "llama", 8, ()),
)  # fmt: skip


def opened(path: Path) -> tuple[Any, Any]:
    file = open_gguf(path)
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    return config, load_params(file, config)


@pytest.mark.parametrize(("architecture", "vocabulary", "window", "downs"), FAMILIES)
def test_a_loop_says_what_the_layers_say(
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
    config, params = opened(path)
    joined = loop_params(params)
    assert joined is not None
    ids = rng.integers(0, config.vocabulary, (2, 16), dtype=np.int32)
    start = jnp.array([0, 3], jnp.int32)

    def step(p: Any, part: Any, offset: Any, stacks: Any) -> Any:
        hidden, stacks = decoder_loop.forward(p, config, part, start, offset, stacks)
        return decoder.logits_of(p, config, hidden), stacks

    stacks = decoder_loop.empty_stacks(config, 2, decoder.BLOCK)
    traced = rlx_xla.trace(step, joined, ids[:, :8], jnp.int32(0), stacks, params=0)
    compiled = rlx.Session("cpu").compile(traced)
    found: list[Any] = []
    for at in (0, 8):
        logits, stacks = compiled(ids[:, at : at + 8], jnp.int32(at), stacks)
        found.append(logits)
    plain = unpacked(params)

    @jax.jit
    def whole(ids: Any) -> Any:
        caches = decoder.empty_caches(config, 2, decoder.BLOCK)
        hidden, _ = decoder.forward(plain, config, ids, start, jnp.int32(0), caches)
        return decoder.logits_of(plain, config, hidden)

    wanted = np.asarray(whole(ids))
    seen = (
        np.arange(16)[None, :] >= np.asarray(start)[:, None]
    )  # what comes before the start is padding
    error = np.abs(np.concatenate(found, axis=1) - wanted)[seen]
    assert error.max() <= 1e-3 * np.abs(wanted).max()
    ops = [n.op.op_name for inner in traced.graph.all_graphs() for n in inner.nodes()]
    assert ops.count("dequant_matmul_pick") == 7 + bool(downs)
    # The head alone is outside of the loop.
    assert ops.count("dequant_matmul") == 1
    kernels = {c.implementation for c in compiled.report().kernels}
    assert "dequant_matmul_pick.cpu.ffi" in kernels


def test_programs_do_not_grow_with_the_layers(tmp_path: Path, rng: np.random.Generator) -> None:
    counts: list[int] = []
    for layers in (LAYERS, 3 * LAYERS):
        path = tiny_gguf.write(tmp_path / f"{layers}.gguf", rng, layers=layers)
        config, params = opened(path)
        programs = Programs(rlx.Session("cpu"), config, params, jnp.float32, loops=True)
        graphs = programs.traced(1, 1, decoder.BLOCK).graph.all_graphs()
        ops = [node.op.op_name for graph in graphs for node in graph.nodes()]
        counts.append(sum(op not in ("input", "param") for op in ops))
    assert counts[0] == counts[1]


def test_weights_of_a_loop_are_the_pages_of_the_file(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, layers=LAYERS)
    model = LanguageModel(path)
    model.generate("abcdefgh" * 3, max_tokens=2)
    (prefill, decode) = model.programs().values()
    packed = [name for name, value in prefill.params().items() if value.dtype == np.uint8]
    assert len(packed) == 7 * LAYERS + 1
    assert all(prefill.params()[name] is decode.params()[name] for name in prefill.params())
    assert sum(v.nbytes for v in prefill.params().values()) == model.packed_bytes


def test_layers_that_fit_no_loop(tmp_path: Path, rng: np.random.Generator) -> None:
    few = opened(tiny_gguf.write(tmp_path / "a.gguf", rng))[1]
    assert loop_params(few) is None
    many = opened(tiny_gguf.write(tmp_path / "b.gguf", rng, layers=LAYERS))[1]
    joined = loop_params(many)
    assert joined is not None
    assert joined["layers"]["attention_norm"].shape == (LAYERS, tiny_gguf.WIDTH)
    assert len(joined["layers"]["down"]) == LAYERS
    assert loop_params(unpacked(many)) is None
    first, *others = many["layers"]
    more = {**first, "query_bias": np.zeros(64, np.float32)}
    assert loop_params({**many, "layers": [more, *others]}) is None
    wider = {**first, "attention_norm": np.zeros(65, np.float32)}
    assert loop_params({**many, "layers": [wider, *others]}) is None


def test_a_picked_weight_under_jax_alone(rng: np.random.Generator) -> None:
    weights = [
        PackedWeight(rng.integers(0, 60, (5, size), dtype=np.uint8), scheme)
        for scheme, size in (("gguf_q8_0", 68), ("gguf_q4_0", 36), ("gguf_q8_0", 68))
    ]
    x = rng.normal(size=(3, 64)).astype(np.float32)
    run = jax.jit(lambda x, i: product(x, PickedWeight(weights, i)))
    for number in (0, 1, 2, 3, 99, -1, -2, -(2**31)):  # outside: the first or the last
        weight = weights[min(max(number, 0), 2)]
        found = run(x, np.int32(number))
        wanted = x @ weight.numbers().T
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
