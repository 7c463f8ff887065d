"""What callers promise about sizes: ``seq % 64 == 0``, ``batch >= 2``, ``past + seq <= 4096``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from rlx.dims.expr import Dim, DimExpr, evaluate, symbols
from rlx.dims.parse import parse
from rlx.errors import DimError, SizesError, did_you_mean

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "!=": operator.ne,
}
_SIGN = re.compile(r"(>=|<=|==|!=|≥|≤|≠|<|>)")
_SPELLED = {"≥": ">=", "≤": "<=", "≠": "!="}


@final
@dataclass(frozen=True)
class Constraint:
    """A comparison of two dims that holds at every call.

    Attributes:
        left: a dim.
        sign: ``>=``, ``<=``, ``==``, ``<``, ``>`` or ``!=``.
        right: a dim.
    """

    left: Dim
    sign: str
    right: Dim

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names it speaks of."""
        return symbols((self.left, self.right))

    def holds(self, binding: Mapping[str, int]) -> bool:
        """Whether it holds for sizes."""
        left, right = evaluate(self.left, binding), evaluate(self.right, binding)
        return _COMPARED[self.sign](left, right)

    def bound(self) -> tuple[str, int | None, int | None] | None:
        """(symbol, least, greatest) when it bounds one bare symbol by a number."""
        left, right, sign = self.left, self.right, self.sign
        if isinstance(right, DimExpr) and isinstance(left, int):
            left, right = right, left
            sign = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, sign)
        if not isinstance(left, DimExpr) or left.name is None or not isinstance(right, int):
            return None
        least = {">=": right, ">": right + 1}.get(sign)
        most = {"<=": right, "<": right - 1}.get(sign)
        return None if least is None and most is None else (left.name, least, most)


def constraint(text: str) -> Constraint:
    """Read a constraint such as ``"seq % 64 == 0"``.

    Raises:
        DimError: the text is no comparison of two dims.
    """
    parts = _SIGN.split(text)
    if len(parts) != 3:
        raise DimError(
            f"constraint: a comparison of two dims, such as 'seq % 64 == 0', is required; "
            f"got {text!r}. Use one of {', '.join(_COMPARED)}."
        )
    # Symbols may be 0 here: a call with 0 is to be told what it breaks.
    left, sign, right = parts
    return Constraint(parse(left.strip()), _SPELLED.get(sign, sign), parse(right.strip()))


def constraints_of(texts: Iterable[str], known: Iterable[str]) -> tuple[Constraint, ...]:
    """Read constraints on the symbols of a graph.

    Raises:
        DimError: a text is no constraint, or names a symbol that the graph does not have.
    """
    names = list(known)
    each = (texts,) if isinstance(texts, str) else texts  # a text is one, not its letters
    found = tuple(constraint(text) for text in each)
    for one in found:
        strangers = [name for name in one.symbols if name not in names]
        if strangers:
            raise DimError(
                f"constraint {one}: symbols of the graph are required "
                f"({', '.join(names) or 'it has none'}); got {strangers[0]!r}."
                f"{did_you_mean(strangers[0], names)}"
            )
    return found


def check_constraints(constraints: Iterable[Constraint], binding: Mapping[str, int]) -> None:
    """Check sizes.

    Raises:
        DimError: some do not hold; all are listed.
    """
    broken: list[str] = []
    for one in constraints:
        positive = all(binding[name] >= 1 for name in one.symbols)
        if not (positive and one.holds(binding)):
            sizes = ", ".join(f"{name} = {binding[name]}" for name in one.symbols)
            broken.append(f"{one} with {sizes}")
    if broken:
        raise SizesError(
            f"constraint: sizes are required to keep what was promised; got {'; '.join(broken)}. "
            "Pad or cut the input, or leave the constraint out."
        )
