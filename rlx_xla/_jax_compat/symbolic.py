"""JAX's symbolic dimensions."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any, final

from jax import export as _export
from jax._src.export.shape_poly import _DimExpr  # pyright: ignore[reportPrivateUsage]

from rlx.errors import TraceError

_USABLE = re.compile(r">=|<=|==")
_CALLS: dict[type[ast.operator], str] = {ast.Mod: "mod", ast.FloorDiv: "floordiv"}


@final
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
@dataclass
class Questions:
    """What a traced function asked of sizes while symbols stood for them.

    Attributes:
        differences: each is said not to be 0; the answer is another one where it is.
        keys: sizes that were looked up among keys that are not known here.
    """

    differences: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])


_asked: ContextVar[Questions | None] = ContextVar("asked", default=None)
_OWN = frozenset({"jax", "jaxlib", "numpy", "rlx", "rlx_xla"})
"""Packages whose comparisons of dims are not the function's."""


@contextmanager
def questions() -> Generator[Questions]:
    """Collect what a traced function asks of sizes and JAX denies without knowing.

    JAX says that ``n == 5`` is false for a symbol ``n``, that ``n % 2`` is true, and that ``n`` is
    no key of ``{5: ...}``. What this yields is filled with the texts of such questions.
    """
    _listen()
    found = Questions()
    token = _asked.set(found)
    try:
        yield found
    finally:
        _asked.reset(token)


@cache
def _listen() -> None:
    """Let JAX's dims note questions; what they answer stays as it is."""
    plain, number = _DimExpr.__eq__, _DimExpr.__hash__

    def same(self: Any, other: Any) -> bool:
        found = plain(self, other)
        if found is False and _asked.get() is not None:
            _note(self, other, sys._getframe(1))
        return found

    def differs(self: Any, other: Any) -> bool:
        found = plain(self, other)
        if found is False and _asked.get() is not None:
            _note(self, other, sys._getframe(1))
        return not found

    def truth(self: Any) -> bool:
        if _asked.get() is not None:
            _note(self, 0, sys._getframe(1))
        return True

    def hashed(self: Any) -> int:
        asked = _asked.get()
        if asked is not None and not _is_own(sys._getframe(1)):
            asked.keys.append(str(self))
        return number(self)

    _DimExpr.__eq__, _DimExpr.__ne__, _DimExpr.__hash__ = same, differs, hashed
    # JAX has none, so that every dim is true.
    _DimExpr.__bool__ = truth  # pyright: ignore[reportAttributeAccessIssue]


def _note(dim: Any, other: Any, caller: FrameType) -> None:
    if _is_own(caller):
        return
    asked = _asked.get()
    if isinstance(other, _DimExpr):
        if other.scope is not dim.scope:
            return
    elif not hasattr(other, "__index__"):
        return
    difference = dim - other
    if asked is not None and isinstance(difference, _DimExpr):
        asked.differences.append(str(difference))


def _is_own(caller: FrameType) -> bool:
    return str(caller.f_globals.get("__name__")).partition(".")[0] in _OWN


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
