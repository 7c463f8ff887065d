"""Byte pairs by the library tokenizers, which gets as much of a vocabulary as a text can use.

The pieces of a word are parts of it, so that a model of those tokens alone, with the merges that
make them, gives what the whole one would. The library's tables of a whole vocabulary take ten times
the memory of the texts. Here merges are two numbers a token: where it is cut, and when it is made.

Source: Sennrich et al. 2016, arXiv:1508.07909.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, final

import tokenizers
from tokenizers import models, pre_tokenizers

from rlx.quant.texts import TextTable
from rlx_xla.models.token_index import TokenIndex

NEVER = 0x7FFFFFFF
"""The rank of a token that no merge makes."""

MAX_WORDS = 4096
"""Words whose tokens are kept; a text has its own often."""

_LONG = 64
"""Letters of a word that is not kept."""

MAX_PARTS = 1 << 18
"""Parts of words that are looked up for one text; the whole vocabulary serves one with more."""


@final
class BytePairs:
    """Turns text into token ids by a vocabulary and its merges."""

    def __init__(
        self,
        texts: TextTable,
        index: TokenIndex,
        patterns: Sequence[str],
        *,
        whole_words: bool,
    ) -> None:
        """Hold a vocabulary; ``merge`` takes its merges.

        Args:
            texts: of all tokens, by number.
            index: of the same.
            patterns: what a text is cut by into words, one after another.
            whole_words: a word that is a token is not made of others.
        """
        self._texts = texts
        self._index = index
        self._whole_words = whole_words
        self._longest = max(map(len, texts.raws()), default=0)
        self._cut = array("i", [0]) * len(texts)
        self._rank = array("i", [NEVER]) * len(texts)
        self._others: dict[int, dict[int, int]] = {}
        self._known: dict[str, tuple[int, ...]] = {}
        splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns]
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._words = pre_tokenizers.Sequence([*splits, level])

    @property
    def nbytes(self) -> int:
        """Bytes of the tables of merges."""
        return sum(len(t) * t.itemsize for t in (self._cut, self._rank))

    def merge(self, made: int, cut: int, rank: int) -> None:
        """Take a merge.

        Args:
            made: token that it makes.
            cut: letters of its first part; both parts are tokens.
            rank: merges with lower ones come first.
        """
        if self._rank[made] == NEVER or self._cut[made] == cut:
            self._rank[made], self._cut[made] = rank, cut
        else:  # another pair that makes the same token
            self._others.setdefault(made, {})[cut] = rank

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; what has no token is left out."""
        words = [word for word, _ in self._words.pre_tokenize_str(text)]
        found = {word: self._known.get(word) for word in words}
        new = [word for word, tokens in found.items() if tokens is None]
        if new:
            model = self._model_of(new)
            made = {word: tuple(t.id for t in model.tokenize(word)) for word in new}
            found |= made
            if len(self._known) + len(made) > MAX_WORDS:
                self._known.clear()
            kept = ((w, t) for w, t in made.items() if len(w) <= _LONG)
            self._known.update(pair for pair, _ in zip(kept, range(MAX_WORDS), strict=False))
        return [token for word in words for token in found[word] or ()]

    def _model_of(self, words: Sequence[str]) -> Any:
        """The library's model of what some words can become."""
        parts = sum(len(word) * min(len(word), self._longest) for word in words)
        used = self._used(words) if parts <= MAX_PARTS else _all(self._texts)
        merges = sorted(
            (rank, piece[:cut], piece[cut:])
            for piece, number in used.items()
            for cut, rank in self._merges(number)
        )
        pairs = [(first, second) for _, first, second in merges]
        return models.BPE(dict(used), pairs, ignore_merges=self._whole_words)

    def _used(self, words: Sequence[str]) -> dict[str, int]:
        """Tokens that are words or parts of them; letters without a token leave no gap."""
        letters = {letter for letter in set().union(*words) if self._index.get(letter) is not None}
        parts = set(words)
        for word in words:
            known = (
                word if letters.issuperset(word) else "".join(filter(letters.__contains__, word))
            )
            for start in range(len(known)):
                last = min(len(known), start + self._longest)
                parts.update(known[start:stop] for stop in range(start + 1, last + 1))
        numbers = ((part, self._index.get(part)) for part in parts)
        return {part: number for part, number in numbers if number is not None}

    def _merges(self, number: int) -> list[tuple[int, int]]:
        """Where a token is cut, and ranks."""
        if self._rank[number] == NEVER:
            return []
        others = self._others.get(number, {}) if self._others else {}
        return [(self._cut[number], self._rank[number]), *others.items()]


def _all(texts: TextTable) -> Mapping[str, int]:
    """All tokens; one that is no text cannot be a part of one."""
    found: dict[str, int] = {}
    for number, raw in enumerate(texts.raws()):
        piece = raw.decode("utf-8", "replace")
        if piece.encode() == raw:
            found[piece] = number
    return found
