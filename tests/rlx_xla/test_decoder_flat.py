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

import rlx_xla  # noqa: E402
from rlx.quant import open_gguf  # noqa: E402
from rlx_xla.aot import missing, parse_target  # noqa: E402
from rlx_xla.generation import sampling  # noqa: E402
from rlx_xla.generation.model import CHUNKS, LanguageModel  # noqa: E402
from rlx_xla.generation.programs import Programs  # noqa: E402
from rlx_xla.generation.sampling import SamplingOptions  # noqa: E402
from rlx_xla.models import decoder, decoder_flat, decoder_loop, decoder_step  # noqa: E402
from rlx_xla.models.decoder_config import read_config  # noqa: E402
from rlx_xla.models.decoder_flat import flat_params  # noqa: E402
from rlx_xla.models.decoder_params import load_params, vocabulary_size  # noqa: E402
from rlx_xla.models.packed import unpacked  # noqa: E402
from rlx_xla.runtime.cache import disable_cache, enable_cache  # noqa: E402
from rlx_xla.tracing import trace as tracing  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402
from tests.rlx_xla.decided import watched  # noqa: E402

LAYERS = 2
BURST = 3
FAMILIES = (
    ("qwen2", "gpt2", 0, ("Q4_0", "Q8_0")), ("gemma3", "llama", 8, ()),
)  # fmt: skip


def opened(path: Path) -> tuple[Any, Any]:
    file = open_gguf(path)
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    return config, load_params(file, config)


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
    config, params = opened(path)
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


def flattened(model: LanguageModel) -> LanguageModel:
    """The same model as a GPU would run it, on the CPU."""
    model.config = replace(model.config, sums=True)
    model._programs = Programs(
        model._session, model.config, model._params, jnp.float32, flat=True, burst=BURST
    )
    return model


DRAWN = SamplingOptions(temperature=0.9, top_k=9, top_p=0.95, min_p=0.01, seed=7)
CASES: tuple[tuple[Any, int, Any], ...] = (
    ("the a the", 1, None),
    ("the a the", 7, DRAWN),
    ("a the " * 12, 6, SamplingOptions(repetition_penalty=1.3)),
    (["the a", "a the the a"], 5, None),
)
ENDED = ("the a the", "the a the a the")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, LanguageModel]:
    """The same model twice; whatever it is asked here, no two tokens are near each other."""
    path = tmp_path_factory.mktemp("flat") / "m.gguf"
    while True:
        tiny_gguf.write(path, np.random.default_rng(), layers=1)
        with watched() as moved:
            plain = LanguageModel(path, inputs="exact")
            plain.tokenizer.ends = frozenset()
            for prompts, tokens, options in (*CASES, *((prompt, 7, None) for prompt in ENDED)):
                plain.generate(prompts, max_tokens=tokens, sampling=options)
            jax.effects_barrier()
        assert moved
        if not any(moved):
            return plain, flattened(LanguageModel(path, inputs="exact"))


def test_tokens_that_are_near_each_other_are_seen() -> None:
    seen = jnp.zeros((1, 3), bool)
    for options in (SamplingOptions(), DRAWN):
        given = (seen, jnp.asarray(options.array()), jnp.uint32(7), jnp.int32(3))
        with watched() as moved:
            for second in (1.0 + 2e-6, 9.0):
                sampling.choose(jnp.asarray([[-9.0, 1.0, second]]), *given)
            jax.effects_barrier()
        assert moved == [options.temperature == 0, False]


@pytest.mark.parametrize(("prompts", "tokens", "options"), CASES)
def test_bursts_choose_the_same_tokens(
    models: tuple[LanguageModel, LanguageModel],
    prompts: Any,
    tokens: int,
    options: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, _ = models
    for model in models:
        monkeypatch.setattr(model.tokenizer, "ends", frozenset())
    wanted, found = (m.generate(prompts, max_tokens=tokens, sampling=options) for m in models)
    for one, other in zip(wanted, found, strict=True):
        assert (one.tokens, one.text, one.reason) == (other.tokens, other.text, other.reason)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-3)
    assert models[0].timings.new_tokens == models[1].timings.new_tokens
    # The call that takes a short prompt's last token goes on with what it chose.
    longest = max(len(plain.tokenizer.encode(p)) for p in texts_of(prompts))
    at_once = BURST - (longest - 1) % BURST if longest <= CHUNKS[0] else 1
    firsts = [m.timings.first_tokens for m in models]
    assert firsts == [len(wanted), len(wanted) * min(tokens, at_once)]


def texts_of(prompts: Any) -> list[str]:
    return [prompts] if isinstance(prompts, str) else prompts


def test_a_burst_that_ends_early_leaves_caches_that_count(
    models: tuple[LanguageModel, LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, flat = models
    monkeypatch.setattr(plain.tokenizer, "ends", frozenset())
    (first,) = plain.generate(ENDED[0], max_tokens=7)
    for model in models:
        monkeypatch.setattr(model.tokenizer, "ends", frozenset({first.tokens[4]}))
    for prompt in (*ENDED, ENDED[0]):
        tokens = [
            [t.id for t in model.stream(prompt, max_tokens=7, reuse=True)] for model in models
        ]
        assert tokens[0] == tokens[1]
        assert flat._held is not None
        held = flat._held
        # All that the caches hold is known, also what nobody asked for.
        assert len(held.ids) == int(np.asarray(held.state.offset)) - held.start
    assert plain._held is not None
    assert len(flat._held.ids) > len(plain._held.ids)


def test_matrices_of_one_input_and_kind_are_one(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, layers=2, downs=("Q4_0", "Q8_0"))
    _, params = opened(path)
    first, second = params["layers"]
    first["up"] = replace(first["up"], inputs="int8")
    flat = flat_params(params, joined)
    assert flat is not None
    made = flat["layers"]["matrices"]
    assert list(made[0]) == ["output", "gate", "up", "down", "query,key,value"]
    assert list(made[1]) == ["output", "down", "query,key,value", "gate,up"]
    parts = [second[name].codes for name in ("query", "key", "value")]
    np.testing.assert_array_equal(made[1]["query,key,value"].codes, np.concatenate(parts))
    second["attention_norm"] = second["attention_norm"][:3]
    assert flat_params(params, joined) is None


def test_arrays_of_one_dtype_are_one_too(tmp_path: Path, rng: np.random.Generator) -> None:
    _, params = opened(tiny_gguf.write(tmp_path / "m.gguf", rng, layers=1))
    numbers = unpacked(params)
    numbers["layers"][0]["key"] = numbers["layers"][0]["key"].astype(np.float16)
    flat = flat_params(numbers, joined)
    assert flat is not None
    assert sorted(flat["layers"]["matrices"][0]) == [
        "down", "gate,up", "key", "output", "query", "value"
    ]  # fmt: skip


def test_limits_do_not_depend_on_the_bits_of_a_look(rng: np.random.Generator) -> None:
    logits = rng.normal(size=(5, 333)).astype(np.float32)
    logits[:, 7:40] = logits[:, 3:4]  # ties
    logits[2] = -np.abs(logits[2])
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.7, 0.0), (50, 0.4, 0.1)):
        options = SamplingOptions(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
        given = (jnp.asarray(logits), jnp.asarray(options.array()))
        with jax.numpy_rank_promotion("allow"):
            wanted, found = (sampling._least(*given, size) for size in (1, 4))
        np.testing.assert_array_equal(np.asarray(wanted), np.asarray(found))


def test_a_step_has_nothing_that_interrupts_a_graph(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng, layers=LAYERS))
    config = replace(model.config, wide=False, sums=True)
    programs = Programs(model._session, config, model._params, jnp.float32, flat=True)
    for greedy in (True, False):
        traced = programs._traced(1, 1, decoder.BLOCK, greedy)
        ops = [n.op.op_name for graph in traced.graph.all_graphs() for n in graph.nodes()]
        assert not {"dot_general", "matmul", "cond", "while", "scan"} & set(ops)
        assert sum(op.startswith("dequant_matmul") for op in ops) in (4 + 1, 4 * LAYERS + 1)


@pytest.mark.parametrize("window", [0, 90])
def test_values_may_have_positions_last(window: int, rng: np.random.Generator) -> None:
    capacity, place = 3 * decoder.BLOCK, 2 * decoder.BLOCK + 5
    keys, values = (
        jnp.asarray(rng.standard_normal((2, 2, capacity, size), np.float32)) for size in (16, 8)
    )
    start = jnp.array([0, 140], jnp.int32)
    turned = jnp.swapaxes(values, -1, -2)
    with jax.numpy_rank_promotion("allow"):
        for seq in (1, 3):
            q = jnp.asarray(rng.standard_normal((2, 4, seq, 16), np.float32))
            places = place + jnp.arange(seq, dtype=jnp.int32)
            wanted = decoder.attend(q, keys, values, places, start, window)
            found = decoder.attend(q, keys, turned, places, start, window, turned=True)
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            if seq == 1:
                found = decoder_step.attend_one(q, keys, turned, places[0], start, window)
                np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_bursts_load_without_being_traced(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, layers=1)
    before = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    enable_cache(tmp_path / "cache")
    try:
        said: list[Any] = []
        for options in (None, DRAWN):
            model = flattened(LanguageModel(path, inputs="exact"))
            (wanted,) = model.generate("the a the", max_tokens=5, sampling=options)
            said.append((wanted.tokens, wanted.logprobs))
        monkeypatch.setattr(tracing, "trace", None)
        for options, wanted in zip((None, DRAWN), said, strict=True):
            model = flattened(LanguageModel(path, inputs="exact"))
            (found,) = model.generate("the a the", max_tokens=5, sampling=options)
            assert (found.tokens, found.logprobs) == wanted
    finally:
        disable_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


@pytest.mark.slow
@pytest.mark.skipif(
    missing(parse_target("cuda:h200")) is not None,
    reason="the compiler for cuda:h200 is not installed",
)
def test_a_gpu_runs_a_burst_without_the_host(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wide enough for the kernels, which take multiples of 256.
    monkeypatch.setattr(tiny_gguf, "WIDTH", 256)
    monkeypatch.setattr(tiny_gguf, "INNER", 512)
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng, layers=LAYERS, scheme="Q4_0"))
    config = replace(model.config, wide=False, sums=True)
    for burst, greedy in ((1, True), (8, False)):
        programs = Programs(
            model._session, config, model._params, jnp.float32, flat=True, burst=burst
        )
        traced = programs._traced(1, 1, 4 * decoder.BLOCK, greedy)
        text = rlx_xla.aot(traced, target="cuda:h200").hlo
        # All products but those of what attention gives, which is narrow here.
        assert text.count('custom_call_target="__gpu$xla.gpu.ptx"') == 3 * LAYERS + 1
        assert "cublas" not in text
        assert " conditional(" not in text
        # The host knows how often the one loop turns, so that it waits for nothing.
        assert text.count(" while(") == (burst > 1)
        assert text.count(f'"known_trip_count":{{"n":"{burst}"}}') == (burst > 1)


def test_layers_that_stay_apart_take_sums_too(tmp_path: Path, rng: np.random.Generator) -> None:
    config, params = opened(tiny_gguf.write(tmp_path / "m.gguf", rng, layers=1))
    numbers = unpacked(params)
    ids = rng.integers(0, config.vocabulary, (2, 6), dtype=np.int32)
    start = jnp.array([0, 2], jnp.int32)
    found: list[Any] = []
    for here in (config, replace(config, sums=True)):
        caches = decoder.empty_caches(here, 2, decoder.BLOCK)
        forward = jax.jit(lambda *args, here=here: decoder.forward(numbers, here, *args))
        _, caches = forward(ids[:, :5], start, jnp.int32(0), caches)
        hidden, _ = forward(ids[:, 5:], start, jnp.int32(5), caches)
        found.append(np.asarray(hidden))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
