"""The tokenizer of all-MiniLM-L6-v2: lower-casing BERT WordPiece, text to padded id arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx.errors import FormatError, RunError

if TYPE_CHECKING:
    import tokenizers

MAX_TOKENS = 256  # what the published model was trained and configured for
HEAD = 4096  # characters of a long text that are tried first
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# What the file must say; a file that says something else is another tokenizer.
SECTIONS: Mapping[str, Mapping[str, Any]] = {
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
    },
}


@final
class MiniLmTokenizer:
    """Turns texts into the arrays that the encoder takes; made by `from_file`."""

    def __init__(self, vocab: dict[str, int]) -> None:
        """Make the tokenizer from a checked vocabulary: word to id."""
        import tokenizers
        from tokenizers import models, normalizers, pre_tokenizers, processors

        # Built from its parts, because loading a damaged description raises untyped errors.
        model = dict(SECTIONS["model"])
        normalizer = dict(SECTIONS["normalizer"])
        del model["type"], normalizer["type"]
        base = tokenizers.Tokenizer(models.WordPiece(vocab, **model))
        base.normalizer = normalizers.BertNormalizer(**normalizer)
        base.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        ends = [(token, vocab[token]) for token in ("[CLS]", "[SEP]")]
        base.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
        base.add_special_tokens(list(SPECIAL_TOKENS))
        self._base: tokenizers.Tokenizer = base
        self._pad = vocab["[PAD]"]
        self._end = vocab["[SEP]"]

    @classmethod
    def from_file(cls, path: Path, *, vocab_size: int) -> MiniLmTokenizer:
        """Read a ``tokenizer.json``.

        Args:
            path: the file.
            vocab_size: the number of words it must have, with ids 0 … vocab_size − 1.

        Raises:
            FormatError: the file is no JSON, another kind of tokenizer, or its words are wrong.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"minilm tokenizer [json]: {path} must be JSON text; reading it gave: {error}. "
                "Use the published tokenizer.json."
            ) from error
        faults = _section_faults(data)
        if faults:
            raise FormatError(
                f"minilm tokenizer [sections]: {path} must describe the lower-casing BERT "
                f"WordPiece tokenizer; found {'; '.join(faults)}. "
                "Use the published tokenizer.json."
            )
        return cls(_checked_vocab(path, data["model"].get("vocab"), vocab_size))

    def __call__(
        self, texts: Sequence[str], *, length: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokenise, truncate to `MAX_TOKENS`, and pad.

        Args:
            texts: at least one text; an empty one gives its two end tokens.
            length: tokens per row, between 2 and `MAX_TOKENS`; longer texts are cut.
                The longest text of the batch decides if left out.

        Returns:
            ids i32[batch, seq] and mask i32[batch, seq], 1 for a token and 0 for padding.

        Raises:
            RunError: no text, something that is no text, or a length out of range.
        """
        rows = self._rows(texts)
        if length is not None and not 2 <= length <= MAX_TOKENS:
            raise RunError(
                f"minilm tokenizer [length]: length must be from 2 to {MAX_TOKENS} tokens; "
                f"got {length}. Leave it out to pad to the longest text."
            )
        most = MAX_TOKENS if length is None else length
        rows = [row if len(row) <= most else [*row[: most - 1], self._end] for row in rows]
        width = max(map(len, rows)) if length is None else length
        ids = np.full((len(rows), width), self._pad, np.int32)
        mask = np.zeros((len(rows), width), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        return ids, mask

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, the two end tokens included.

        The count stops at ``MAX_TOKENS + 1``, which means that the text gets truncated.
        """
        return [len(row) for row in self._rows(texts)]

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        if isinstance(texts, str) or not texts:
            found = "one text" if isinstance(texts, str) else "no text"
            raise RunError(
                f"minilm tokenizer [texts]: texts must be a list of at least one text; got "
                f'{found}. Pass for example ["a text"].'
            )
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise RunError(
                    f"minilm tokenizer [texts]: texts[{i}] must be a str; got "
                    f"{type(text).__name__}. Decode it first."
                )
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RunError(
                    f"minilm tokenizer [unicode]: texts[{i}] must be valid Unicode; it holds a "
                    "lone surrogate. Decode the bytes as UTF-8 first."
                ) from error
        short = [text if len(text) <= HEAD else "" for text in texts]
        rows = [row.ids for row in self._base.encode_batch(short)]
        return [
            (row if len(text) <= HEAD else self._long_row(text))[: MAX_TOKENS + 1]
            for text, row in zip(texts, rows, strict=True)
        ]

    def _long_row(self, text: str) -> list[int]:
        # The start of a text decides its first tokens, so a huge one costs no more than a page.
        size = HEAD
        while size < len(text):
            head = self._base.encode(text[:size])
            if _settled(head, size) > MAX_TOKENS:
                return head.ids
            size *= 8
        return self._base.encode(text).ids


def _settled(head: tokenizers.Encoding, size: int) -> int:
    """Return how many leading tokens of a text's first `size` characters stay if more follows.

    The last word may go on, and a special token may be cut, which is at most six characters.
    """
    words, ends = head.word_ids, [end for _, end in head.offsets]
    last = max((word for word in words if word is not None), default=None)
    changing = (
        i
        for i, word in enumerate(words)
        if (word is not None and word == last) or ends[i] > size - 8
    )
    return next(changing, 0)


def _section_faults(data: Any) -> list[str]:
    if not isinstance(data, dict):
        return [f"a {type(data).__name__} at the top"]
    faults: list[str] = []
    for name, wanted in SECTIONS.items():
        section = data.get(name)
        if not isinstance(section, dict):
            faults.append(f"no section {name!r}")
            continue
        faults.extend(
            f"{name}.{key} = {section.get(key)!r} instead of {value!r}"
            for key, value in wanted.items()
            if type(section.get(key)) is not type(value) or section.get(key) != value
        )
    return faults


def _checked_vocab(path: Path, vocab: Any, vocab_size: int) -> dict[str, int]:
    where = f"minilm tokenizer [vocab]: {path}"
    advice = "Use the published tokenizer.json, or a config with its vocab_size."
    if not isinstance(vocab, dict) or not all(type(i) is int for i in vocab.values()):
        raise FormatError(f"{where} must map words to whole numbers; it does not. {advice}")
    # An id outside the embedding's rows would read NaN, so the ids must be exactly these.
    if len(vocab) != vocab_size or set(vocab.values()) != set(range(vocab_size)):
        raise FormatError(
            f"{where} must give {vocab_size} words the ids 0 to {vocab_size - 1}, each once; got "
            f"{len(vocab)} words with {len(set(vocab.values()))} different ids. {advice}"
        )
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise FormatError(
            f"{where} must have all special tokens; no {', '.join(missing)}. {advice}"
        )
    return vocab
