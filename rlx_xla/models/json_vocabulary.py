"""A ``tokenizer.json`` in the words of GGUF metadata: tokens, merges, kinds, how text is cut.

Two kinds of byte-pair tokenizers are known: of letters that stand for bytes (GPT-2's), and of
pieces with a mark for blanks (SentencePiece's). Patterns are compared with published ones and never
compiled from the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from rlx.errors import FormatError
from rlx_xla.models.gguf_tokenizer import KEY, SPLITS

MAX_TOKENS = 1 << 22
"""Tokens of a vocabulary; the largest ones have a sixteenth of that."""

_CONTROL, _USER, _BYTE, _PLAIN, _UNKNOWN = 3, 4, 6, 1, 2


def vocabulary_metadata(
    tokenizer: Mapping[str, Any],
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    template: str | None,
) -> dict[str, Any]:
    """Return the metadata that `GgufTokenizer` reads.

    Args:
        tokenizer: the content of ``tokenizer.json``.
        settings: of ``tokenizer_config.json``, or nothing.
        config: of ``config.json`` and ``generation_config.json``.
        template: of ``chat_template.jinja``, or None.

    Raises:
        FormatError: it is damaged, or of a kind that is not known.
    """
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        _fail("model is required to be of type BPE", _kind(model))
    tokens, kinds = _tokens(model, tokenizer.get("added_tokens") or [])
    ids = {token: i for i, token in enumerate(tokens)}
    merges = _merges(model.get("merges"), ids)
    found: dict[str, Any] = {f"{KEY}tokens": tokens}
    if _has(tokenizer.get("pre_tokenizer"), "ByteLevel"):
        found |= {
            f"{KEY}model": "gpt2",
            f"{KEY}pre": _pre(tokenizer["pre_tokenizer"], bool(model.get("ignore_merges"))),
            f"{KEY}merges": [f"{a} {b}" for a, b in merges],
        }
    elif model.get("byte_fallback") is True:
        scores = np.full(len(tokens), -1e30, np.float32)
        for rank, (first, second) in reversed(list(enumerate(merges))):
            scores[ids[first + second]] = -rank
        for i, token in enumerate(tokens):
            if kinds[i] == _PLAIN and len(token) == 6 and token.startswith("<0x"):
                kinds[i] = _BYTE
        found |= {
            f"{KEY}model": "llama",
            f"{KEY}scores": scores,
            f"{KEY}add_space_prefix": _prefix(tokenizer),
        }
        if model.get("unk_token") in ids:
            found[f"{KEY}unknown_token_id"] = ids[model["unk_token"]]
            kinds[ids[model["unk_token"]]] = _UNKNOWN
    else:
        _fail("bytes as letters, or pieces with bytes to fall back on, are required", "neither")
    found[f"{KEY}token_type"] = np.asarray(kinds, np.int32)
    found |= _special(tokenizer, settings, config, ids)
    chat = template if template is not None else settings.get("chat_template")
    if isinstance(chat, list):
        named = [c for c in chat if isinstance(c, dict) and c.get("name") == "default"]
        chat = named[0].get("template") if named else None
    if isinstance(chat, str):
        found["tokenizer.chat_template"] = chat
    return found


def _fail(wanted: str, found: object) -> NoReturn:
    raise FormatError(
        f"tokenizer.json: {wanted}; got {found!r}. The file is damaged or of another kind."
    )


def _kind(model: object) -> object:
    return model.get("type") if isinstance(model, dict) else type(model).__name__


def _tokens(model: Mapping[str, Any], added: object) -> tuple[list[str], list[int]]:
    """Tokens by id, and their kinds."""
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        _fail("model.vocab is required to be an object with tokens", type(vocabulary).__name__)
    named: dict[int, tuple[str, int]] = {}

    def put(token: object, number: object, kind: int) -> None:
        if not isinstance(token, str) or type(number) is not int or not 0 <= number < MAX_TOKENS:
            _fail(f"texts with numbers from 0 to {MAX_TOKENS - 1} are required", (token, number))
        named[number] = (token, kind)

    for token, number in vocabulary.items():
        put(token, number, _PLAIN)
    if not isinstance(added, list) or not all(isinstance(one, dict) for one in added):
        _fail("added_tokens is required to be a list of objects", type(added).__name__)
    for one in added:
        put(one.get("content"), one.get("id"), _CONTROL if one.get("special") else _USER)
    count = max(named) + 1
    if count > 2 * len(named):
        _fail("numbers of tokens without large gaps are required", f"{len(named)} up to {count}")
    blank = [named.get(i, (f"[unused {i}]", _CONTROL)) for i in range(count)]
    return [token for token, _ in blank], [kind for _, kind in blank]


def _merges(given: object, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    if not isinstance(given, list):
        _fail("model.merges is required to be a list", type(given).__name__)
    found: list[tuple[str, str]] = []
    for one in given:
        pair = one.split(" ") if isinstance(one, str) else one
        good = isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) for p in pair)
        if not good or not {pair[0], pair[1], pair[0] + pair[1]} <= ids.keys():
            _fail("model.merges is required to hold pairs of known tokens", one)
        found.append((pair[0], pair[1]))
    return found


def _members(stage: object) -> list[Mapping[str, Any]]:
    """The stages of a sequence, or the one that there is."""
    if not isinstance(stage, dict):
        return []
    inner = next(
        (stage[k] for k in ("pretokenizers", "normalizers", "processors") if k in stage), 0
    )
    if stage.get("type") == "Sequence" and isinstance(inner, list):
        return [one for one in inner if isinstance(one, dict)]
    return [stage]


def _has(stage: object, kind: str) -> bool:
    return any(one.get("type") == kind for one in _members(stage))


def _pre(stage: object, ignores_merges: bool) -> str:
    """The name of a way to cut text into words."""
    splits: list[str] = []
    for one in _members(stage):
        kind = one.get("type")
        pattern = one.get("pattern")
        if kind == "Split" and isinstance(pattern, dict) and one.get("behavior") == "Isolated":
            splits.append(str(pattern.get("Regex")))
        elif kind == "Digits" and one.get("individual_digits") is True:
            splits.append(r"\p{N}")
        elif kind == "ByteLevel" and not one.get("add_prefix_space"):
            splits += SPLITS["gpt-2"] if one.get("use_regex", True) else ()
        else:
            _fail("a known way to cut text into words is required", one)
    known = [name for name, patterns in SPLITS.items() if patterns == tuple(splits)]
    if not known:
        _fail("published patterns that cut text into words are required", splits)
    return "llama-bpe" if ignores_merges and "llama-bpe" in known else known[-1]


def _prefix(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a blank is put before a text."""
    marks = [one for one in _members(tokenizer.get("normalizer")) if one.get("type") == "Prepend"]
    blanks = [
        one.get("prepend_scheme", "always") != "never"
        for one in _members(tokenizer.get("pre_tokenizer"))
        if one.get("type") == "Metaspace"
    ]
    return bool(marks) or any(blanks)


def _special(
    tokenizer: Mapping[str, Any],
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    ids: Mapping[str, int],
) -> dict[str, Any]:
    """Start and end tokens."""
    found: dict[str, Any] = {}
    starts = [
        item["SpecialToken"].get("id")
        for one in _members(tokenizer.get("post_processor"))
        if one.get("type") == "TemplateProcessing" and isinstance(one.get("single"), list)
        for item in one["single"][:1]
        if isinstance(item, dict) and isinstance(item.get("SpecialToken"), dict)
    ]
    first = starts[0] if starts else _text(settings.get("bos_token"))
    if isinstance(first, str) and first in ids:
        found[f"{KEY}bos_token_id"] = ids[first]
    found[f"{KEY}add_bos_token"] = bool(starts or settings.get("add_bos_token"))
    last = _text(settings.get("eos_token"))
    if isinstance(last, str) and last in ids:
        found[f"{KEY}eos_token_id"] = ids[last]
    ends = config.get("eos_token_id")
    numbers = ends if isinstance(ends, list) else [ends]
    good = [n for n in numbers if type(n) is int and 0 <= n < len(ids)]
    if good:
        found.setdefault(f"{KEY}eos_token_id", good[0])
        found[f"{KEY}end_token_ids"] = good
    return found


def _text(token: object) -> object:
    return token.get("content") if isinstance(token, dict) else token
