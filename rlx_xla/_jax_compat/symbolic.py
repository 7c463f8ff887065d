"""JAX's symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from jax import export as _export

from rlx.errors import TraceError


@final
class SymbolScope:
    """One family of symbols: equal names in one trace mean one size."""

    def __init__(self) -> None:
        """Start without symbols."""
        self._scope = _export.SymbolicScope()

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
