"""One node of another format, with its inputs as graph values, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from rlx.ir.graph import Value
from rlx.ir.operators import constant, normalise_axis

Array: TypeAlias = "np.ndarray[Any, Any]"
Results: TypeAlias = "Value | Sequence[Value | None]"


class NotMapped(Exception):  # noqa: N818  a message, not an error
    """No op of ours says this; the reason is what is counted."""


@dataclass
class Case:
    """A node: inputs as values, and as arrays for what must be known; None where left out.

    Attributes:
        kind: the node's op type.
        values: inputs as graph values.
        arrays: the same as arrays.
        attributes: by name.
        outputs: how many results are wanted.
    """

    kind: str
    values: list[Value | None]
    arrays: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1

    def value(self, index: int = 0) -> Value:
        """An input that must be there."""
        found: Value | None = self.optional(index)
        if found is None:
            raise NotMapped(f"without input {index}")
        return found

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.values) and self.values[index] is not None

    def optional(self, index: int, default: Any = None) -> Any:
        """An input, or the default."""
        return self.values[index] if self.has(index) else default

    def known(self, index: int) -> Array | None:
        """An input as an array, or None."""
        return self.arrays[index] if index < len(self.arrays) else None

    def numbers(self, name: str, index: int) -> list[int] | None:
        """Integers from an attribute, or from an input in newer versions; None where neither."""
        if name in self.attributes:
            found = self.attributes[name]
            return list(found) if isinstance(found, list | tuple) else [int(found)]
        array = self.known(index)
        return None if array is None else [int(n) for n in np.atleast_1d(array)]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute ``axis``, not negative."""
        return normalise_axis(self.get("axis", default), rank or self.value().rank)

    def only(self, **allowed: Any) -> None:
        """Take attributes only at these values, or left out."""
        for name, wanted in allowed.items():
            if self.get(name, wanted) != wanted:
                raise NotMapped(f"{name} = {self.get(name)}")


Rule: TypeAlias = "Callable[[Case], Results]"
RULES: dict[str, Rule] = {}


def maps(*kinds: str) -> Callable[[Rule], Rule]:
    """Register how nodes of some kinds are said in ours."""

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            assert kind not in RULES, kind
            RULES[kind] = rule
        return rule

    return register


def full(like: Value, number: float) -> Value:
    """A scalar of a value's dtype."""
    return constant(np.asarray(number).astype(like.dtype.numpy))
