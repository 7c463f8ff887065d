"""JAX's symbolic dimensions."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any, final

from jax import export as _export

from rlx.errors import TraceError

_USABLE = re.compile(r">=|<=|==")
_CALLS: dict[type[ast.operator], str] = {ast.Mod: "mod", ast.FloorDiv: "floordiv"}


class _Spelling(ast.NodeTransformer):
    """Remainders and quotients as calls, with all of what stands left of them."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        name = _CALLS.get(type(node.op))
        if name is None:
            return ast.BinOp(left, node.op, right)
        return ast.Call(ast.Name(name), [left, right], [])


def _spelled(text: str) -> str:
    """A constraint or a size, in Python's syntax, as JAX writes it."""
    return ast.unparse(_Spelling().visit(ast.parse(text, mode="eval"))).replace("**", "^")


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
            return tuple(_export.symbolic_shape(", ".join(map(_spelled, sizes)), scope=self._scope))
        except ValueError as error:
            raise TraceError(
                f"trace: sizes are required to be ints, names or sums and products of them; got "
                f"[{', '.join(sizes)}]. JAX says: {error}"
            ) from error
