"""Language models from folders of safetensors: the same numbers as GGUF files give; bad folders."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import jax.numpy as jnp  # noqa: E402  (after importorskip)

from rlx.errors import FormatError  # noqa: E402
from rlx.quant import QuantScheme, pack, unpack  # noqa: E402
from rlx_xla.generation.model import LanguageModel  # noqa: E402
from rlx_xla.models import decoder, packed  # noqa: E402
from rlx_xla.models.decoder_config import read_config  # noqa: E402
from rlx_xla.models.decoder_params import load_params, vocabulary_size  # noqa: E402
from rlx_xla.models.gguf_tokenizer import GgufTokenizer  # noqa: E402
from rlx_xla.models.model_folder import open_model  # noqa: E402
from rlx_xla.models.rope import RopeScaling  # noqa: E402
from tests.rlx_xla import tiny_folder  # noqa: E402

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def logits(path: Path, ids: Any, **words: Any) -> np.ndarray:
    file = open_model(path)
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    params = packed.unpacked(load_params(file, config, **words))
    caches = decoder.empty_caches(config, 1, decoder.BLOCK)
    start = jnp.zeros(1, jnp.int32)
    run = jax.jit(
        lambda p: decoder.logits_of(
            p, config, decoder.forward(p, config, ids, start, jnp.int32(0), caches)[0]
        )
    )
    return np.asarray(run(params))


@pytest.mark.parametrize(
    ("scaling", "numbers", "parts"),
    [
        (None, {}, 1),
        (YARN, {"type": "yarn", "factor": 4.0, "original_context_length": 64}, 3),
    ],
)
def test_a_folder_and_a_gguf_file_are_one_model(
    scaling: Any, numbers: dict[str, Any], parts: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    tensors = tiny_folder.weights(rng)
    config = {} if scaling is None else {"rope_scaling": scaling}
    folder = tiny_folder.write(tmp_path / "m", tensors, config=config, parts=parts)
    same = tiny_folder.write_as_gguf(
        tmp_path / "m.gguf", tensors, {f"rope.scaling.{k}": v for k, v in numbers.items()}
    )
    ids = rng.integers(0, len(tiny_folder.TOKENS), (1, 100), dtype=np.int32)
    found, wanted = logits(folder, ids), logits(same, ids)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    file = open_model(same)
    theirs = GgufTokenizer(file.metadata, vocabulary=vocabulary_size(file))
    mine = LanguageModel(folder).tokenizer
    text = "the sea a the\nzz"
    assert mine.encode(text) == theirs.encode(text)
    assert mine.decode(mine.encode(text)) == text
    assert mine.ends == theirs.ends == {2}
    assert mine.chat_template is not None


def test_the_family_of_gemma(tmp_path: Path, rng: np.random.Generator) -> None:
    """Gains are stored less 1, heads are tied, and pieces fall back on bytes."""
    norms = ("pre_feedforward_layernorm", "post_feedforward_layernorm",
             "self_attn.q_norm", "self_attn.k_norm")  # fmt: skip
    tensors = tiny_folder.weights(rng, norms=norms)
    del tensors["lm_head.weight"]
    tokens = ["<unk>", "<s>", "<end_of_turn>", *(f"<0x{i:02X}>" for i in range(256)), "▁",
              *"abcdet", "th", "the", "▁the", "h"]  # fmt: skip
    tokenizer = {
        "model": {
            "type": "BPE", "byte_fallback": True, "unk_token": "<unk>",
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [["t", "h"], ["th", "e"], ["▁", "the"]],
        },
        "added_tokens": [{"id": 1, "content": "<s>", "special": True},
                         {"id": 2, "content": "<end_of_turn>", "special": True}],
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}]},
    }  # fmt: skip
    embedding = rng.normal(0, 0.2, (len(tokens), tiny_folder.WIDTH)).astype(np.float32)
    tensors["model.embed_tokens.weight"] = embedding
    config = {
        "model_type": "gemma3_text", "tie_word_embeddings": True, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16,
        "rope_local_base_freq": 5000.0,
    }  # fmt: skip
    folder = tiny_folder.write(tmp_path / "m", tensors, config=config, tokenizer=tokenizer)
    file = open_model(folder)
    found = read_config(file.metadata, vocabulary=vocabulary_size(file))
    assert (found.window, found.window_pattern, found.query_scale) == (8, 2, 0.25)
    assert found.rope_local_base == 5000.0
    params = load_params(file, found)
    stored = tensors["model.layers.1.self_attn.q_norm.weight"]
    np.testing.assert_array_equal(params["layers"][1]["query_norm"], stored + 1)
    assert "head" not in params
    model = LanguageModel(folder)
    ids = model.tokenizer.encode("the the é")
    assert [model.tokenizer.pieces[i] for i in ids[:4]] == ["<s>", "the", "▁the", "▁"]
    assert model.tokenizer.decode(ids) == "the the é"
    assert model.tokenizer.ends == {2}
    shown = logits(folder, np.asarray([ids], np.int32))
    assert np.isfinite(shown).all()


def test_numbers_may_be_packed_when_they_are_read(tmp_path: Path, rng: np.random.Generator) -> None:
    tensors = tiny_folder.weights(rng)
    low = {k: v.astype(np.float16) for k, v in tensors.items()}
    folder = tiny_folder.write(tmp_path / "m", low)
    plain = LanguageModel(folder)
    small = LanguageModel(folder, weights="q8_0")
    assert small.packed_bytes < 0.62 * plain.packed_bytes
    ids = rng.integers(0, len(tiny_folder.TOKENS), (1, 20), dtype=np.int32)
    exact = logits(folder, ids)
    near = logits(folder, ids, scheme=QuantScheme.gguf("Q8_0"))
    error = np.linalg.norm(near - exact) / np.linalg.norm(exact)
    assert 0 < error < 0.05
    message = "language model [weights]: weights must be one of q4_0, "
    with pytest.raises(FormatError, match=re.escape(message)):
        LanguageModel(folder, weights="int8")


# Rotary positions.


def test_llama3_divides_slow_features_only() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, original=8192, low=1.0, high=4.0)
    found = scaling.rates(500_000.0, 128)
    for i, rate in enumerate(found):
        plain = 500_000.0 ** (-2 * i / 128)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            wanted = plain
        elif wavelength > 8192 / 1:
            wanted = plain / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            wanted = (1 - smooth) * plain / 8 + smooth * plain
        assert rate == pytest.approx(wanted, rel=1e-6)
    assert scaling.gain() == 1.0


def test_linear_scaling_divides_positions() -> None:
    plain = RopeScaling().rates(10_000.0, 64)
    half = RopeScaling(kind="linear", factor=2.0).rates(10_000.0, 64)
    np.testing.assert_allclose(half * 2, plain, rtol=1e-6)


def test_yarn_divides_what_turns_seldom_and_raises_scores() -> None:
    scaling = RopeScaling(kind="yarn", factor=4.0, original=32_768)
    found = scaling.rates(1_000_000.0, 128)
    place = [
        128 * math.log(32_768 / (turns * 2 * math.pi)) / (2 * math.log(1_000_000.0))
        for turns in (32, 1)
    ]
    first, last = math.floor(place[0]), math.ceil(place[1])
    for i, rate in enumerate(found):
        plain = 1_000_000.0 ** (-2 * i / 128)
        if i <= first:
            wanted = plain
        elif i >= last:
            wanted = plain / 4
        else:
            part = (i - first) / (last - first)
            wanted = plain / 4 * part + plain * (1 - part)
        assert rate == pytest.approx(wanted, rel=1e-6)
    assert 0 < first < last < 64
    assert scaling.gain() == pytest.approx(0.1 * math.log(4) + 1)
    assert RopeScaling(kind="yarn", factor=4.0, original=9, magnitude=1.5).gain() == 1.5


def test_llama3_folders_turn_as_the_config_says(tmp_path: Path, rng: np.random.Generator) -> None:
    tensors = tiny_folder.weights(rng)
    folder = tiny_folder.write(tmp_path / "m", tensors, config={"rope_scaling": LLAMA3})
    file = open_model(folder)
    found = read_config(file.metadata, vocabulary=vocabulary_size(file)).rope
    assert (found.kind, found.factor, found.original) == ("llama3", 8.0, 64)
    newer = {"rope_parameters": LLAMA3 | {"rope_theta": 77.0}}
    file = open_model(tiny_folder.write(tmp_path / "n", tensors, config=newer))
    config = read_config(file.metadata, vocabulary=vocabulary_size(file))
    assert (config.rope, config.rope_base) == (found, 77.0)


# Folders that do not fit.


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "bert"}, "model_type is required to be one of gemma3_text, llama"),
        ({"num_hidden_layers": None}, "num_hidden_layers is required; got None"),
        ({"num_hidden_layers": -1}, "a whole number from 1"),
        ({"num_hidden_layers": 10**9}, "a whole number from 1"),
        ({"hidden_size": "32"}, "a whole number from 1"),
        ({"rms_norm_eps": "x"}, "a finite number ≥ 0"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "one of 'none', 'linear', 'llama3', 'yarn'"),
        ({"rope_scaling": 3}, "rope_scaling is required to be an object"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "original_context_length"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, "more than 1, the low one"),
        ({"intermediate_size": 40}, r"ffn_up.weight must be \[40, 32\]; got \[48, 32\]"),
    ],
)
def test_configs_that_contradict_themselves(
    config: dict[str, Any], match: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    folder = tiny_folder.write(tmp_path / "m", tiny_folder.weights(rng), config=config)
    with pytest.raises(FormatError, match=match):
        LanguageModel(folder)


@pytest.mark.parametrize(
    ("tokenizer", "match"),
    [
        ({"model": {"type": "Unigram"}}, "of type BPE; got 'Unigram'"),
        ({"model": 3}, "of type BPE; got 'int'"),
        ({"model": {"vocab": {}, "merges": []}}, "an object with tokens"),
        ({"model": {"vocab": {"a": 2**40}, "merges": []}}, "numbers from 0 to 4194303"),
        ({"model": {"vocab": {"a": 900000}, "merges": []}}, "without large gaps"),
        ({"model": {"vocab": {"a": 0}, "merges": [["a", "b"]]}}, "pairs of known tokens"),
        ({"pre_tokenizer": {"type": "Split"}}, "neither"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"},
            {"type": "ByteLevel", "use_regex": False}]}}, "published patterns"),
        ({"added_tokens": [3]}, "a list of objects"),
    ],
)  # fmt: skip
def test_vocabularies_that_are_not_known(
    tokenizer: dict[str, Any], match: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    folder = tiny_folder.write(tmp_path / "m", tiny_folder.weights(rng), tokenizer=tokenizer)
    with pytest.raises(FormatError, match=match):
        LanguageModel(folder)


def test_folders_that_lack_or_hide_something(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = tiny_folder.weights(rng)
    folder = tiny_folder.write(tmp_path / "m", tensors, parts=2)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())

    def refused(match: str) -> None:
        with pytest.raises(FormatError, match=match):
            LanguageModel(folder)

    for name, match in (
        ("../model.safetensors", "names of safetensors files beside it"),
        ("/etc/passwd", "names of safetensors files beside it"),
        ("other.safetensors", "other.safetensors"),
        (3, "a file for each tensor"),
    ):
        changed = {**table, "weight_map": {**table["weight_map"], "lm_head.weight": name}}
        index.write_text(json.dumps(changed))
        refused(match)
    more = {**table["weight_map"], "extra": next(iter(table["weight_map"].values()))}
    index.write_text(json.dumps({"weight_map": more}))
    refused("its files are required to hold extra")
    index.write_text("[" * 100_000)
    refused("is required to be JSON")
    index.unlink()
    refused("model.safetensors or model.safetensors.index.json is required; got 'neither'")
    (folder / "config.json").write_bytes(b"\xff\xfe")
    refused("config.json is required to be UTF-8")
    (folder / "config.json").unlink()
    refused("config.json is required; got 'no such file'")
    monkeypatch.chdir(folder)
    with pytest.raises(FormatError, match=r"^model folder 'm': config\.json is required"):
        LanguageModel(".")
    with (folder / "config.json").open("wb") as file:
        file.truncate(1 << 27)
    refused("at most 67108864 bytes")


def test_tensors_that_do_not_belong(tmp_path: Path, rng: np.random.Generator) -> None:
    tensors = tiny_folder.weights(rng)
    extra = {**tensors, "model.vision.weight": np.ones((2, 2), np.float32)}
    with pytest.raises(FormatError, match=r"unexpected: model\.vision\.weight"):
        LanguageModel(tiny_folder.write(tmp_path / "a", extra))
    whole = {**tensors, "lm_head.weight": np.ones((35, 32), np.int32)}
    with pytest.raises(FormatError, match=r"lm_head\.weight is required to be f32, f16 or bf16"):
        LanguageModel(tiny_folder.write(tmp_path / "b", whole))
    tensors.pop("lm_head.weight")
    with pytest.raises(FormatError, match=r"lm_head\.weight is required, since config\.json"):
        LanguageModel(tiny_folder.write(tmp_path / "c", tensors))


# Folders that MLX quantised.


def quantised(
    tensors: dict[str, np.ndarray], scheme: QuantScheme, dtype: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tensors as MLX has them, and the same as numbers."""
    stored, plain = dict(tensors), dict(tensors)
    for name, array in tensors.items():
        if array.ndim != 2 or array.shape[1] % scheme.block:
            continue  # MLX leaves it too
        codes, *parts = (part for part in pack(scheme, array) if part is not None)
        if scheme.has_zero_point:
            parts = [part.astype(dtype) for part in parts]
        stored[name] = codes
        stem = name.removesuffix("weight")
        stored |= {f"{stem}{n}": p for n, p in zip(("scales", "biases"), parts, strict=False)}
        plain[name] = unpack(scheme, codes, *parts)
    return stored, plain


@pytest.mark.parametrize(
    ("scheme", "said", "dtype"),
    [
        *((QuantScheme.mlx_affine(bits, 32), {"group_size": 32, "bits": bits}, np.float16)
          for bits in (3, 4, 8)),
        (QuantScheme.mlx_affine(4, 32), {"group_size": 32, "bits": 4}, ml_dtypes.bfloat16),
        (QuantScheme.mlx_mxfp4(32), {"group_size": 32, "bits": 4, "mode": "mxfp4"}, None),
        (QuantScheme.mlx_mxfp8(32), {"group_size": 32, "bits": 8, "mode": "mxfp8"}, None),
    ],
    ids=str,
)  # fmt: skip
def test_folders_that_mlx_quantised_stay_packed(
    scheme: QuantScheme, said: dict[str, Any], dtype: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    stored, plain = quantised(tiny_folder.weights(rng), scheme, dtype)
    folder = tiny_folder.write(tmp_path / "m", stored, config={"quantization": said}, parts=2)
    same = open_model(tiny_folder.write(tmp_path / "n", plain))
    file = open_model(folder)
    assert file.tensors.keys() == same.tensors.keys()
    for name in same.tensors:
        assert file.tensors[name].shape == same.tensors[name].shape
        np.testing.assert_array_equal(file.numbers(name), same.numbers(name))
    model = LanguageModel(folder, inputs="exact")
    assert model.packed_bytes == sum(tensor.nbytes for tensor in stored.values())
    assert str(scheme) in str(model.report())


def test_an_mlx_model_answers_as_its_numbers_do(tmp_path: Path, rng: np.random.Generator) -> None:
    scheme = QuantScheme.mlx_affine(4, 32)
    stored, plain = quantised(tiny_folder.weights(rng), scheme, np.float16)
    name = "model.layers.0.mlp.gate_proj"
    eight = QuantScheme.mlx_affine(8, 32)
    own = quantised({f"{name}.weight": plain[f"{name}.weight"]}, eight, np.float16)
    stored |= own[0]
    plain |= own[1]
    said = {"group_size": 32, "bits": 4, name: {"group_size": 32, "bits": 8}}
    folder = tiny_folder.write(tmp_path / "m", stored, config={"quantization": said})
    model = LanguageModel(folder, inputs="exact")
    (found,) = model.generate("the a the", max_tokens=6)
    same = LanguageModel(tiny_folder.write(tmp_path / "n", plain), inputs="exact")
    (wanted,) = same.generate("the a the", max_tokens=6)
    assert found.tokens == wanted.tokens
    np.testing.assert_allclose(found.logprobs, wanted.logprobs, atol=1e-4)
    kernels = [k for program in model.report().programs for k in program.kernels]
    assert sum(k.calls for k in kernels if k.kernel == "dequant_matmul.cpu.ffi") == 13


GATE = "model.layers.0.mlp.gate_proj"


@pytest.mark.parametrize(
    ("said", "tensors", "message"),
    [
        (3, {}, "config.json: quantization is required to be an object; got 3."),
        ({"quant_method": "gptq", "bits": 4}, {}, "config.json: quantization is required to be "
         "MLX's, with group_size and bits; got 'gptq'."),
        ({"group_size": 32, "bits": 7}, {}, "bits of lm_head.weight are required to be "
         "of (2, 3, 4, 5, 6, 8); got 7."),
        ({"group_size": 2**70, "bits": 4}, {}, "group_size of lm_head.weight is "
         f"required to be of (32, 64, 128); got {2**70}."),
        ({"group_size": 32, "bits": 4, "mode": "nvfp4"}, {}, "mode of lm_head.weight is "
         "required to be of ('affine', 'mxfp4', 'mxfp8'); got 'nvfp4'."),
        ({"group_size": 64, "bits": 4, "mode": "mxfp4"}, {}, "mxfp4 of lm_head.weight "
         "is required to have groups of 32 and 4 bits; got (64, 4)."),
        ({"group_size": 32, "bits": 4}, {f"{GATE}.biases": None},
         f"{GATE}.weight (mlx_affine/4/32) is required to have scales and biases [N, K / 32] of "
         "f32, f16, bf16; got 'u32[48, 4], f16[48, 1]'."),
        ({"group_size": 32, "bits": 4}, {f"{GATE}.scales": np.ones((48, 2), np.float16)},
         f"{GATE}.weight (mlx_affine/4/32) is required to have scales and biases [N, K / 32] of "
         "f32, f16, bf16; got 'u32[48, 4], f16[48, 2], f16[48, 1]'."),
        ({"group_size": 32, "bits": 4}, {f"{GATE}.weight": np.ones((48, 32), np.float16)},
         f"{GATE}.weight (mlx_affine/4/32) is required to be u32[N, K · 4 / 32]; got 'f16[48, 32], "
         "f16[48, 1], f16[48, 1]'."),
        ({"group_size": 32, "bits": 3}, {f"{GATE}.weight": np.ones((48, 4), np.uint32)},
         "lm_head.weight (mlx_affine/3/32) is required to be u32[N, K · 3 / 32]; got "),
    ],
)  # fmt: skip
def test_mlx_folders_that_do_not_fit(
    said: Any,
    tensors: dict[str, Any],
    message: str,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    stored, _ = quantised(tiny_folder.weights(rng), QuantScheme.mlx_affine(4, 32), np.float16)
    given = {name: array for name, array in (stored | tensors).items() if array is not None}
    folder = tiny_folder.write(tmp_path / "m", given, config={"quantization": said})
    with pytest.raises(FormatError, match=re.escape(message)):
        open_model(folder)
