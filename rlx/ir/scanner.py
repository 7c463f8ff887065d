"""Tokens of graph text, with the place of each, and strings with their escapes."""

from __future__ import annotations

import base64
import re
from typing import Never, final

from rlx.dtypes import BY_LABEL
from rlx.errors import ParseError

_LABELS = "|".join(sorted(BY_LABEL, key=len, reverse=True))

# Possessive quantifiers: a token that does not end is refused in linear time.
_TOKEN = re.compile(
    rf"""(?:[ \t\r\n]|\#[^\n]*+)*+(?:
    (?P<value>%[\w.$-]++(?:\#\d++)?+)
  | (?P<type>(?:{_LABELS})\[[^\[\]\n]*+\])
  | (?P<bytes>(?:x|b64)"[^"\n]*+")
  | (?P<string>"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+")
  | (?P<number>[-+]?+(?:0x[0-9a-fA-F]++|\d++(?:\.\d*+)?+(?:[eE][-+]?+\d++)?+)|[-+](?:inf|nan)\b)
  | (?P<name>[^\W\d]\w*+(?:\.\w++)*+)
  | (?P<graph>@[\w.]++)
  | (?P<dim><[^<>=\n]*+>)
  | (?P<sign>[<>]=|[=(){{}}\[\],:])
  | (?P<end>\Z)
  )""",
    re.VERBOSE,
)

_ESCAPE = re.compile(
    r"\\(?:([\"\\nrt])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.|\Z))", re.DOTALL
)
_PLAIN = re.compile(r"[ !#-\[\]-~]*+")
_SHORT = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_SHORT_OF = {char: "\\" + letter for letter, char in _SHORT.items()}


@final
class Scanner:
    """A text and its current token.

    Attributes:
        kind: value, type, bytes, string, number, name, graph, dim, sign or end.
        token: the token's text.
        start: its offset in the text.
    """

    __slots__ = ("_end", "kind", "start", "text", "token")

    def __init__(self, text: str) -> None:
        """Stand at the first token."""
        self.text = text
        self.kind = ""
        self.token = ""
        self.start = 0
        self._end = 0
        self.advance()

    def advance(self) -> None:
        """Go to the next token."""
        match = _TOKEN.match(self.text, self._end)
        if match is None:
            self._refuse_character()
        self.kind = match.lastgroup or ""
        self.token = match[self.kind]
        self._end = match.end()
        self.start = self._end - len(self.token)

    def take(self, kind: str, required: str) -> str:
        """Return the token, which must be of a kind, and go on."""
        if self.kind != kind:
            self.expected(required)
        token = self.token
        self.advance()
        return token

    def sign(self, sign: str) -> None:
        """Pass over a sign, which must be there."""
        if self.token != sign or self.kind != "sign":
            self.expected(repr(sign))
        self.advance()

    def at(self, sign: str) -> bool:
        """Whether the current token is a sign."""
        return self.token == sign and self.kind == "sign"

    def word(self, name: str) -> bool:
        """Whether the current token is a name."""
        return self.token == name and self.kind == "name"

    def string(self, required: str) -> str:
        """Return a string without quotes and escapes, and go on."""
        start = self.start
        token = self.take("string", required)
        return self._unescaped(token[1:-1], start + 1) if "\\" in token else token[1:-1]

    def integer(self, required: str, most: int) -> int:
        """Return a plain integer in [0, most], and go on."""
        token, start = self.token, self.start
        if self.kind != "number" or not token.isdecimal():
            self.expected(required)
        # The length goes first: int() of very long text is slow or refused.
        if len(token) > 19 or int(token) > most:
            self.fail(f"{required} of at most {most} is required; got {shown(token)}.", start)
        self.advance()
        return int(token)

    def raw(self, required: str) -> bytes:
        """Return the bytes of ``x"…"`` (hexadecimal) or ``b64"…"``, and go on."""
        start = self.start
        token = self.take("bytes", required)
        coding, _, inner = token[:-1].partition('"')
        try:
            if coding == "x":
                return bytes.fromhex(inner)
            return base64.b64decode(inner, validate=True)
        except ValueError as error:
            coding = "hexadecimal digits" if coding == "x" else "base64"
            self.fail(f"{coding} are required in quotes; {error}.", start)

    def expected(self, required: str) -> Never:
        """Refuse the current token."""
        found = "the end of the text" if self.kind == "end" else shown(self.token)
        self.fail(f"{required} is required; got {found}.", self.start)

    def fail(self, message: str, at: int, cause: BaseException | None = None) -> Never:
        """Raise a ParseError that points at an offset."""
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise ParseError(message, line=line, column=column) from cause

    def line(self, at: int) -> int:
        """Return the 1-based line of an offset."""
        return self.text.count("\n", 0, at) + 1

    def _refuse_character(self) -> Never:
        at = self._end
        while True:  # past blanks and comments, to the character that starts no token
            while self.text[at] in " \t\r\n":
                at += 1
            if self.text[at] != "#":
                break
            at = self.text.index("\n", at)
        char = self.text[at]
        if char == '"' or self.text.startswith(('x"', 'b64"'), at):
            self.fail("a string is required to end on its line; no closing quote.", at)
        self.fail(f"a name, a number or a sign is required; got {shown(char)}.", at)

    def _unescaped(self, inner: str, start: int) -> str:
        def replace(match: re.Match[str]) -> str:
            short, code = match[1], match[2] or match[3] or match[4]
            if short:
                return _SHORT[short]
            if code is None or int(code, 16) > 0x10FFFF:
                self.fail(
                    f'an escape \\" \\\\ \\n \\r \\t \\xHH \\uHHHH or \\UHHHHHHHH is required; '
                    f"got {shown(match[0])}.",
                    start + match.start(),
                )
            return chr(int(code, 16))

        return _ESCAPE.sub(replace, inner)


def quoted(text: str) -> str:
    """Return text in double quotes, with escapes for what does not print."""
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    return '"' + "".join(map(_escaped, text)) + '"'


def quoted_bytes(data: bytes) -> str:
    """Return bytes as ``x"…"`` when they are few, else as ``b64"…"``."""
    if len(data) <= 32:
        return f'x"{data.hex()}"'
    return f'b64"{base64.b64encode(data).decode()}"'


def shown(token: str) -> str:
    """Return a token for a message: in quotes and not too long."""
    return repr(token if len(token) <= 40 else token[:37] + "...")


def _escaped(char: str) -> str:
    short = _SHORT_OF.get(char)
    if short is not None:
        return short
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
