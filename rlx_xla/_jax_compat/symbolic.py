"""JAX's symbolic dimensions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, final

from jax import export as _export

from rlx.errors import TraceError

_USABLE = re.compile(r">=|<=|==")
_REMAINDER = re.compile(r"(\w+) ?(%|//) ?(\d+)")


def _spelled(text: str) -> str:
    """A constraint with remainders and quotients as JAX writes them."""
    names = {"%": "mod", "//": "floordiv"}
    return _REMAINDER.sub(lambda m: f"{names[m[2]]}({m[1]}, {m[3]})", text)


@final
class SymbolScope:
    """One family of symbols: equal names in one trace mean one size."""

    def __init__(self, constraints: Sequence[str] = ()) -> None:
        """Start without symbols.

        Args:
            constraints: comparisons such as ``seq % 64 == 0``; those that JAX cannot use are left
                out.
        """
        known = [_spelled(text) for text in constraints if _USABLE.search(text)]
        self._scope = _export.SymbolicScope(known)

    def shape(self, sizes: Sequence[str]) -> tuple[Any, ...]:
        """JAX sizes, ints or symbolic, for sizes written as text.

        Raises:
            TraceError: JAX cannot read one of them.
        """
        try:
            return tuple(_export.symbolic_shape(", ".join(sizes), scope=self._scope))
        except ValueError as error:
            raise TraceError(
                f"trace: sizes are required to be ints, names or sums and products of them; got "
                f"[{', '.join(sizes)}]. JAX says: {error}"
            ) from error
