"""Reading dimension expressions from text, without evaluating it.

sum     = ["+" | "-"] product { ("+" | "-") product }
product = unary { ("*" | "//" | "%") unary }
unary   = { "+" | "-" } power
power   = primary [ ("**" | "^") integer ]
primary = integer | name | function "(" sum { "," sum } ")" | "(" sum ")"

Functions are ``floordiv`` and ``mod`` (two arguments), ``min`` and ``max`` (one or more).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Never, final

from rlx.dims.expr import Dim, DimExpr, floordiv_, max_, min_, mod_, symbol
from rlx.dims.polynomial import KINDS, MAX_BITS, MAX_DEGREE
from rlx.errors import DimError

MAX_LENGTH = 10_000  # characters
MAX_NESTING = 64  # parentheses
MAX_LITERAL = 2**63 - 1

_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d]\w*)|(//|\*\*|[-+*%^(),]))")


def parse(text: str, symbols: Mapping[str, DimExpr] | None = None) -> Dim:
    """Return the dim that a text describes, such as ``"b*s//2 + min(a, 4)"``.

    Args:
        text: an expression as `str` prints it; JAX's ``floordiv``, ``mod`` and ``^`` are read too.
        symbols: declared symbols by name; any other name is a symbol >= 1.

    Raises:
        DimError: the text is no expression (the message gives the 1-based column), or it passes a
            limit: length, nesting, exponent or size of a number.
    """
    if len(text) > MAX_LENGTH:
        raise DimError(
            f"dims.parse: an expression must have at most {MAX_LENGTH} characters; "
            f"got {len(text)}. Give parts of it symbols of their own."
        )
    parser = _Parser(text, {} if symbols is None else symbols)
    return parser.whole()


@final
class _Parser:
    """Recursive descent over one text; the next token is always at hand."""

    def __init__(self, text: str, symbols: Mapping[str, DimExpr]) -> None:
        self.text = text
        self.symbols = symbols
        self.nesting = 0
        self.end = 0
        self.advance()

    def advance(self) -> None:
        """Read the next token; an empty one stands for the end."""
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            rest = self.text[self.end :]
            self.column = self.end + len(rest) - len(rest.lstrip()) + 1
            self.token = ""
            if rest.strip():
                self.fail("a number, a name or an operator", f"character {rest.lstrip()[0]!r}")
            return
        self.end = match.end()
        self.token = match[1] or match[2] or match[3]
        self.column = match.end() - len(self.token) + 1

    def fail(self, required: str, found: str | None = None) -> Never:
        found = found or (f"{self.token[:40]!r}" if self.token else "the end")
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        raise DimError(
            f"dims.parse: {required} is required at column {self.column}; got {found} "
            f"in {shown!r}. Write an expression such as 'b*s//2 + min(a, 4)'."
        )

    def checked(self, value: Dim) -> Dim:
        """Refuse numbers that grow without end."""
        if type(value) is int and value.bit_length() > MAX_BITS:
            self.fail(f"a number of at most {MAX_BITS} bits", f"{value.bit_length()} bits")
        return value

    def expect(self, token: str) -> None:
        if self.token != token:
            self.fail(f"{token!r}")
        self.advance()

    def whole(self) -> Dim:
        value = self.sum()
        if self.token:
            self.fail("an operator or the end")
        return value

    def sum(self) -> Dim:
        value = self.product()
        while self.token in ("+", "-"):
            sign = self.token
            self.advance()
            right = self.product()
            value = self.checked(value + right if sign == "+" else value - right)
        return value

    def product(self) -> Dim:
        value = self.unary()
        while self.token in ("*", "//", "%"):
            operator = self.token
            self.advance()
            right = self.unary()
            if operator == "*":
                value = self.checked(value * right)
            else:
                value = floordiv_(value, right) if operator == "//" else mod_(value, right)
        return value

    def unary(self) -> Dim:
        negative = False
        while self.token in ("+", "-"):
            negative ^= self.token == "-"
            self.advance()
        value = self.power()
        return -value if negative else value

    def power(self) -> Dim:
        value = self.primary()
        if self.token not in ("**", "^"):
            return value
        self.advance()
        if not self.token.isdecimal():
            self.fail("an exponent that is an integer >= 0")
        exponent = self.literal()
        if exponent > MAX_DEGREE:
            self.fail(f"an exponent of at most {MAX_DEGREE}", str(exponent))
        self.advance()
        if self.token in ("**", "^"):
            self.fail("an operator other than a second power, or parentheses,")
        if isinstance(value, int) and value.bit_length() * exponent > MAX_BITS:
            self.fail(f"a number of at most {MAX_BITS} bits", f"{value}**{exponent}")
        return value**exponent

    def literal(self) -> int:
        # The length goes first: int() of very long text is slow or refused.
        if len(self.token) > 19 or int(self.token) > MAX_LITERAL:
            self.fail(f"an integer of at most {MAX_LITERAL}")
        return int(self.token)

    def primary(self) -> Dim:
        token = self.token
        if token.isdecimal():
            value = self.literal()
            self.advance()
            return value
        if token == "(":
            return self.arguments(1)[0]
        if token in KINDS:
            self.advance()
            if token == "floordiv":
                return floordiv_(*self.arguments(2))
            if token == "mod":
                return mod_(*self.arguments(2))
            return self.checked((min_ if token == "min" else max_)(*self.arguments(None)))
        if not token.isidentifier():
            self.fail("a number, a name or '('")
        known = self.symbols.get(token)
        self.advance()
        return symbol(token) if known is None else known

    def arguments(self, count: int | None) -> list[Dim]:
        """Read ``(sum, ...)`` with `count` entries, or at least one when it is None."""
        if self.nesting >= MAX_NESTING:
            self.fail(f"at most {MAX_NESTING} parentheses inside each other", "one more")
        self.expect("(")
        self.nesting += 1
        values = [self.sum()]
        while self.token == "," and (count is None or len(values) < count):
            self.advance()
            values.append(self.sum())
        if count is not None and len(values) < count:
            self.fail("','")
        self.expect(")")
        self.nesting -= 1
        return values
