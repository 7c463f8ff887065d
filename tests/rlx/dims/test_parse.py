"""Reading dims from text: both spellings, columns of faults, hostile input."""

from __future__ import annotations

import time

import pytest

from rlx import dims
from rlx.errors import DimError

b, s, a = dims.symbol("b"), dims.symbol("s"), dims.symbol("a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12),
        (" b * s // 2 + min( a,4 ) ", b * s // 2 + dims.min_(a, 4)),
        ("floordiv(s, 2) + mod(s, 2)", s // 2 + s % 2),
        ("s^2", s * s),
        ("2^3*b", 8 * b),
        ("-b**2", -(b * b)),
        ("--b", b),
        ("b - s - a", b - s - a),
        ("8 // 4 // 2", 1),
        ("max(b)", b),
        ("(b + s)*a", (b + s) * a),
        ("longer_name2", dims.symbol("longer_name2")),
    ],
)
def test_parse(text: str, expected: dims.Dim) -> None:
    assert dims.parse(text) == expected


def test_declared_symbols_are_used() -> None:
    wide = dims.symbol("b", 0, 7)
    assert dims.parse("b + s", {"b": wide}) == wide + s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a number, a name or '\\(' is required at column 1; got the end"),
        ("b +", "at column 4; got the end"),
        ("b $ s", "at column 3; got character '\\$'"),
        ("b s", "an operator or the end is required at column 3; got 's'"),
        ("(b", "'\\)' is required at column 3; got the end"),
        ("min()", "at column 5; got '\\)'"),
        ("mod(b)", "',' is required at column 6"),
        ("mod(b, 2, 3)", "'\\)' is required at column 9; got ','"),
        ("floordiv", "'\\(' is required at column 9"),
        ("b**s", "an exponent that is an integer >= 0 is required at column 4; got 's'"),
        ("b**-1", "at column 4; got '-'"),
        ("b**2**2", "at column 5"),
        ("b//0", "a divisor must not be 0"),
        ("b*1.5", "at column 4; got character '.'"),
    ],
)
def test_faults_have_a_column(text: str, message: str) -> None:
    with pytest.raises(DimError, match=message):
        dims.parse(text)


def test_wide_text_is_read_at_once() -> None:
    start = time.process_time()
    wide = dims.parse(f"min({', '.join(f'x{i}' for i in range(900))})")
    assert len(dims.symbols(wide)) == 900
    assert dims.bounds(wide) == (1, None)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + "b" + ")" * 100_000,
        "(" * 4000 + "b" + ")" * 4000,
        "b**1000000000",
        "b**" + "9" * 9000,
        "9" * 9000,
        "(((2**63)**63)**63)**63",
        "((b**60)**60)**60",
        "(a + b + c + d + e + f + g + h)**60",
        "*".join(["9223372036854775807"] * 400),
        "min(" * 200 + "b",
        "-" * 9000 + "(",
        "\0",
        "²",
    ],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(DimError):
        dims.parse(text)
    assert time.process_time() - start < 5
