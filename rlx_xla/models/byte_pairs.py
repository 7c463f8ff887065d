"""Byte pairs as GPT-2 and its successors have them: words of letters that stand for bytes, merged.

Merges are kept as two numbers a token, where it is cut and when it is made: a table of pairs would
take ten times the memory of the tokens.

Source: Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019 (bytes as letters).
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from typing import final

from rlx_xla.models.piece_merges import merge_pieces

NEVER = 0x7FFFFFFF
"""The rank of a token that no merge makes."""

MAX_WORDS = 16_384
"""Words whose tokens are kept; a text has its own often."""

_LONG = 64
"""Letters of a word that is not kept."""

# Patterns speak of letters, numbers and blanks of all scripts. They run on a shadow of the text,
# in which one character stands for all of its kind outside ASCII; ſ keeps its own: it is an s where
# case does not matter.
_LETTER, _NUMBER, _BLANK, _OTHER = "é²\xa0¡"
_KINDS = {"L": f"A-Za-zſ{_LETTER}", "N": f"0-9{_NUMBER}", "s": f"\t-\r {_BLANK}"}
_BLANKS = frozenset("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    chr(code) for code in range(0x2000, 0x200B)
)
_CLASS = re.compile(r"\\p\{([LN])\}|\\([sS])|(\\.)|(\[\^?)|(\])|(.)", re.DOTALL)


@final
class BytePairs:
    """Turns text into token ids by a vocabulary and its merges."""

    def __init__(
        self, ids: Mapping[str, int], patterns: Sequence[str], *, whole_words: bool
    ) -> None:
        """Hold a vocabulary; ``add`` takes its merges.

        Args:
            ids: token → number.
            patterns: what a text is cut by into words, one after another.
            whole_words: a word that is a token is not made of others.
        """
        self._ids = ids
        self._patterns = [compiled(pattern) for pattern in patterns]
        self._whole_words = whole_words
        count = 1 + max(ids.values(), default=-1)
        self._cut = array("i", [0]) * count
        self._rank = array("i", [NEVER]) * count
        self._others: dict[tuple[str, str], int] = {}
        self._known: dict[str, tuple[int, ...]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the tables of merges."""
        tables = (self._cut, self._rank)
        return sum(len(t) * t.itemsize for t in tables) + sys.getsizeof(self._others)

    def add(self, first: str, second: str, rank: int) -> bool:
        """Take a merge; tell whether its parts and what it makes are tokens."""
        made = self._ids.get(first + second)
        if made is None or first not in self._ids or second not in self._ids:
            return False
        if self._rank[made] == NEVER:
            self._rank[made], self._cut[made] = rank, len(first)
        elif self._cut[made] != len(first):  # another pair that makes the same token
            self._others.setdefault((first, second), rank)
        return True

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; what has no token is left out."""
        found: list[int] = []
        for word in self._words(text):
            tokens = self._known.get(word)
            if tokens is None:
                tokens = self._tokens(word)
                if len(word) <= _LONG:
                    if len(self._known) >= MAX_WORDS:
                        self._known.clear()
                    self._known[word] = tokens
            found += tokens
        return found

    def _words(self, text: str) -> list[str]:
        words, shadows = [text], [shadow(text)]
        for pattern in self._patterns:
            cut = [(w, s, _cuts(pattern, s)) for w, s in zip(words, shadows, strict=True)]
            words = [word[a:b] for word, _, places in cut for a, b in places]
            shadows = [shade[a:b] for _, shade, places in cut for a, b in places]
        return words

    def _tokens(self, word: str) -> tuple[int, ...]:
        letters = word.encode().decode("latin-1").translate(byte_letters())
        whole = self._ids.get(letters) if self._whole_words else None
        if whole is not None:
            return (whole,)
        known = [letter for letter in letters if letter in self._ids]
        return tuple(self._ids[piece] for piece in merge_pieces(known, self._merge))

    def _merge(self, first: str, second: str) -> int | None:
        made = self._ids.get(first + second)
        if made is None:
            return None
        if self._cut[made] == len(first):
            rank = self._rank[made]
            return None if rank == NEVER else rank
        return self._others.get((first, second)) if self._others else None


@functools.cache
def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in letters]
    letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return letters


def shadow(text: str) -> str:
    """The text with one character for all letters, numbers, blanks and others outside ASCII."""
    return text if text.isascii() else text.translate(_SHADOWS)


@functools.lru_cache(maxsize=32)
def compiled(pattern: str) -> re.Pattern[str]:
    r"""A published pattern, with ``\p{L}``, ``\p{N}`` and ``\s``, for shadows of texts."""
    parts: list[str] = []
    inside = False
    for match in _CLASS.finditer(pattern):
        kind, blank, _, opens, closes, _ = match.groups()
        if kind or blank:
            members = _KINDS[kind or "s"]
            sign = "^" if blank == "S" else ""
            parts.append(members if inside else f"[{sign}{members}]")
            continue
        inside = (inside or bool(opens)) and not closes
        parts.append(match[0])
    return re.compile("".join(parts))


def _cuts(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    """Where a text is cut: every match is a part, and what lies between two."""
    found: list[tuple[int, int]] = []
    end = 0
    for match in pattern.finditer(text):
        start, stop = match.span()
        if start > end:
            found.append((end, start))
        if stop > start:
            found.append((start, stop))
        end = max(end, stop)
    if end < len(text):
        found.append((end, len(text)))
    return found


@final
class _Shadows(dict[int, str]):
    """Character → what stands for its kind; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = unicodedata.category(character)[0]
        if code < 128 or character == "ſ":
            found = character
        elif character in _BLANKS:
            found = _BLANK
        else:
            found = {"L": _LETTER, "N": _NUMBER}.get(kind, _OTHER)
        self[code] = found
        return found


_SHADOWS = _Shadows()
