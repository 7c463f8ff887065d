"""The tokenizer that a GGUF file carries: text to ids, ids to bytes, and its chat template."""

from __future__ import annotations

import codecs
import functools
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from rlx.errors import FormatError, RunError
from rlx.quant.texts import TextTable
from rlx_xla.models.piece_merges import merge_pieces
from rlx_xla.models.token_index import TokenIndex

if TYPE_CHECKING:
    from rlx_xla.models.byte_pairs import BytePairs

KEY = "tokenizer.ggml."
_MERGES = 256  # looked up at once: what that takes stays
_CONTROL, _USER, _UNKNOWN, _BYTE = 3, 4, 2, 6
_ENDS = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|endoftext|>", "<|end|>")
"""Control tokens that end a turn in the chat formats of the families."""

GUARD = "\ufdd0"
"""A code point that is no character; in a special text it keeps a control token from being read."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITS: Mapping[str, tuple[str, ...]] = {
    "default": (_GPT2,),
    "gpt-2": (_GPT2,),
    "llama-bpe": (_WORDS % r"\p{N}{1,3}",),
    "mistral-bpe": (_WORDS % r"\p{N}{1,3}",),
    "qwen2": (_WORDS % r"\p{N}",),
    "smollm": (r"\p{N}", _GPT2),
}
"""How a text is cut into words before merging, by ``tokenizer.ggml.pre``: published patterns."""


@final
class GgufTokenizer:
    """Turns text into ids and ids into text.

    Attributes:
        pieces: text of every token.
        start: id of the token that a text begins with, or None.
        first: id of the start token, whether or not texts begin with it, or None.
        last: id of the end token, or None.
        ends: ids that end a text or a turn.
        chat_template: the file's Jinja template, or None.
    """

    def __init__(self, metadata: Mapping[str, Any], *, vocabulary: int) -> None:
        """Read a file's metadata.

        Args:
            metadata: of the file.
            vocabulary: number of tokens that the model has.

        Raises:
            FormatError: the vocabulary is missing, of another size or kind, or damaged.
            RunError: the library tokenizers, which some kinds need, is missing.
        """
        self._metadata = metadata
        texts = self._strings("tokens")
        self.pieces: Sequence[str] = texts
        count = len(self.pieces)
        if not 0 < count <= vocabulary:
            self._fail("tokens", f"from 1 to {vocabulary} tokens, the model's rows", count)
        kinds = self._get("token_type")
        self._kinds = np.ones(count, np.int32) if kinds is None else np.asarray(kinds)
        if self._kinds.shape != (count,):
            self._fail("token_type", f"{count} numbers", self._kinds.shape)
        self._texts = texts
        self._index = TokenIndex(texts)
        self._patterns: dict[tuple[int, ...], re.Pattern[str] | None] = {}
        self._model = self._get("model")
        if self._model == "gpt2":
            self._base = self._byte_pairs()
        elif self._model == "llama":
            self._scores = self._piece_scores()
        else:
            self._fail("model", "'gpt2' or 'llama'", self._model)
        self._space = bool(metadata.get(f"{KEY}add_space_prefix", self._model == "llama"))
        first = self._token("bos_token_id")
        adds = metadata.get(f"{KEY}add_bos_token", self._model == "llama")
        self.start = first if adds else None
        self.first = first
        self.last = self._token("eos_token_id")
        listed = metadata.get(f"{KEY}end_token_ids", ())
        named = (self.last, self._token("eot_token_id"), *listed)
        known = (self._index.get(piece) for piece in _ENDS)
        self.ends = frozenset(i for i in (*named, *known) if i is not None)
        template = metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None
        # The merges are as large as the tokens; what is needed of them is in tables by now.
        tables = (list, TextTable, np.ndarray)
        self._metadata = {k: v for k, v in metadata.items() if not isinstance(v, tables)}

    @property
    def table_bytes(self) -> int:
        """Bytes of the tokens' texts and of the tables over them."""
        merges = self._base.nbytes if self._model == "gpt2" else self._scores.nbytes
        return self._texts.nbytes + self._index.nbytes + self._kinds.nbytes + merges

    def encode(self, text: str, *, special: bool = False, start: bool = True) -> list[int]:
        """Return the ids of a text.

        Args:
            text: valid Unicode.
            special: read control tokens such as ``<|im_start|>`` where the text spells them, but
                not those that ``guarded`` marked.
            start: put the start token first, where the file says that texts begin with one.

        Raises:
            RunError: the text holds a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RunError(
                "tokenizer [unicode]: the text must be valid Unicode; it holds a lone surrogate. "
                "Decode the bytes as UTF-8 first."
            ) from error
        found = [self.start] if start and self.start is not None else []
        pattern = self._special_pattern((_CONTROL, _USER, _UNKNOWN) if special else (_USER,))
        parts = [text] if pattern is None else pattern.split(text)
        fresh = True  # the prefix space belongs to the start of a text and after a control token
        for i, part in enumerate(parts):
            if i % 2:
                number = self._number(part)
                found.append(number)
                fresh = self._kinds[number] == _CONTROL
            elif part:
                found.extend(self._plain(part.replace(GUARD, "") if special else part, fresh))
                fresh = False
        return found

    def guarded(self, text: str) -> str:
        """Return a text as a part of a special one that spells no control token."""
        text = text.replace(GUARD, "")
        pattern = self._special_pattern((_CONTROL, _UNKNOWN))
        if pattern is None:
            return text
        return pattern.sub(lambda match: f"{match[0][0]}{GUARD}{match[0][1:]}", text)

    def bytes_of(self, token: int) -> bytes:
        """Return what a token stands for in the text; nothing for a control token."""
        kind = int(self._kinds[token]) if token < len(self.pieces) else _CONTROL
        if kind in (_CONTROL, _UNKNOWN):
            return b""
        piece = self.pieces[token]
        if self._model == "gpt2":
            if kind == _USER:
                return piece.encode("utf-8", "surrogateescape")
            back = _letter_bytes()
            return b"".join(
                bytes((back[c],)) if c in back else c.encode("utf-8", "surrogateescape")
                for c in piece
            )
        if kind == _BYTE:
            return bytes((int(piece[3:5], 16),))
        return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode("utf-8", "surrogateescape")

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 show as replacement characters."""
        return b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")

    def _plain(self, text: str, fresh: bool) -> list[int]:
        if self._model == "gpt2":
            return self._base.encode(text)
        text = (" " if self._space and fresh else "") + text
        text = text.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")
        found: list[int] = []
        for piece in merge_pieces(text, self._less):
            number = self._index.get(piece)
            found.extend([number] if number is not None else self._as_bytes(piece))
        return found

    def _less(self, first: str, second: str) -> float | None:
        """The rank of a merge of SentencePiece's: the highest score comes first."""
        number = self._index.get(first + second)
        return None if number is None else -float(self._scores[number])

    def _as_bytes(self, piece: str) -> list[int]:
        unknown = self._token("unknown_token_id") or 0
        numbers = (self._index.get(f"<0x{byte:02X}>") for byte in piece.encode())
        return [unknown if number is None else number for number in numbers]

    def _number(self, piece: str) -> int:
        """The number of a piece that is known to be one."""
        found = self._index.get(piece)
        assert found is not None
        return found

    def _special_pattern(self, kinds: tuple[int, ...]) -> re.Pattern[str] | None:
        if kinds not in self._patterns:
            chosen = np.flatnonzero(np.isin(self._kinds, kinds)).tolist()
            texts = (self.pieces[i] for i in chosen)
            words = sorted(filter(None, texts), key=len, reverse=True)
            joined = f"({'|'.join(map(re.escape, words))})"
            self._patterns[kinds] = re.compile(joined) if words else None
        return self._patterns[kinds]

    def _byte_pairs(self) -> BytePairs:
        if importlib.util.find_spec("tokenizers") is None:
            raise RunError(
                "tokenizer [library]: this file's vocabulary requires tokenizers, which is not "
                'installed. Run: pip install "rlx-xla[models]"'
            )
        from rlx_xla.models.byte_pairs import BytePairs

        pre = self._metadata.get(f"{KEY}pre", "default")
        if pre not in SPLITS:
            self._fail("pre", f"one of {', '.join(SPLITS)}", pre)
        whole = pre == "llama-bpe"
        base = BytePairs(self._texts, self._index, SPLITS[pre], whole_words=whole)
        merges = self._strings("merges")
        for start in range(0, len(merges), _MERGES):
            numbers = range(start, min(start + _MERGES, len(merges)))
            parts = [merges.raw(number).partition(b" ") for number in numbers]
            made, firsts, seconds = (
                self._index.find_all(raws)
                for raws in (
                    [first + second for first, _, second in parts],
                    [first for first, _, _ in parts],
                    [second for _, _, second in parts],
                )
            )
            for rank, (first, gap, _), *found in zip(
                numbers, parts, made, firsts, seconds, strict=True
            ):
                if not gap or min(found) < 0:
                    self._fail("merges", "pairs of known tokens", merges[rank])
                base.merge(found[0], len(first.decode("utf-8", "surrogateescape")), rank)
        return base

    def _piece_scores(self) -> np.ndarray[Any, Any]:
        scores = self._get("scores")
        if not isinstance(scores, np.ndarray) or scores.shape != (len(self.pieces),):
            self._fail("scores", f"{len(self.pieces)} numbers", np.shape(scores))
        wrong = [
            self.pieces[i]
            for i in np.flatnonzero(self._kinds == _BYTE).tolist()
            if re.fullmatch("<0x[0-9A-Fa-f]{2}>", self.pieces[i]) is None
        ]
        if wrong:
            self._fail("tokens", "bytes written as <0x00>", wrong[0])
        return np.array(scores, np.float32)

    def _token(self, key: str) -> int | None:
        value = self._metadata.get(KEY + key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.pieces):
            self._fail(key, f"a token from 0 to {len(self.pieces) - 1}", value)
        return value

    def _get(self, key: str) -> Any:
        return self._metadata.get(KEY + key)

    def _strings(self, key: str) -> TextTable:
        found = self._get(key)
        if isinstance(found, TextTable):
            return found
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            self._fail(key, "a list of strings", type(found).__name__)
        try:
            return TextTable.of(found)
        except UnicodeEncodeError as error:
            self._fail(key, "a list of strings of valid Unicode", error.object)

    def _fail(self, key: str, wanted: str, found: object) -> NoReturn:
        raise FormatError(
            f"gguf tokenizer [{key}]: {KEY}{key} is required to be {wanted}; got {found!r}. "
            "Use a whole file of a known family."
        )


@final
class TextStream:
    """Turns tokens into text as they come; a character shows when its last byte has come."""

    def __init__(self, tokenizer: GgufTokenizer) -> None:
        """Start with nothing."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that a token completes."""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def close(self) -> str:
        """Return what is left: replacement characters for an unfinished one."""
        return self._decoder.decode(b"", final=True)


@functools.cache
def _letter_bytes() -> dict[str, int]:
    """The byte for which each of GPT-2's printable letters stands."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if chr(byte) not in letters]
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}
