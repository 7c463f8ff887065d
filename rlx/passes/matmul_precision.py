"""Raises the precision of matmuls and convolutions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.rewrite import rewrite
from rlx.ops.dot.general import DotPrecision
from rlx.passes.base import AbstractPass, PassContext

_ORDER = (DotPrecision.DEFAULT, DotPrecision.HIGH, DotPrecision.HIGHEST)


@final
@dataclass(frozen=True, kw_only=True)
class RaiseMatmulPrecision(AbstractPass):
    """Asks the device for at least a precision wherever an op has the attribute ``precision``.

    A dot with a preset algorithm keeps it. A composite op that multiplies inside is written out,
    since it has no such attribute; kernels that attach to it are then not taken.

    Attributes:
        precision: ``default``, ``high`` or ``highest``.
    """

    name: ClassVar[str] = "raise-matmul-precision"
    precision: str = "highest"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        raising = _Raising(DotPrecision(self.precision))
        result = rewrite(graph, raising.lift)
        if raising.count:
            ctx.note(f"{raising.count} ops raised to {self.precision}")
        return result


@final
class _Raising:
    """One run of the pass."""

    def __init__(self, least: DotPrecision) -> None:
        self._least = least
        self._multiplies: dict[Hashable, bool] = {}
        self.count = 0

    def lift(self, node: Node) -> Value | tuple[Value, ...] | None:
        wanted = self._wanted(node)
        if wanted is not None:
            self.count += 1
            made = node.op.replace(precision=wanted)
            return Node(made, node.inputs, node.types, node.location).results
        if not node.op.has_decompose or not self._multiplies_inside(node):
            return None
        parts: Value | tuple[Value, ...] = node.op.decompose(*node.inputs)
        return parts

    def _wanted(self, node: Node) -> tuple[DotPrecision, ...] | None:
        """The precision that a node is to have instead of its own, if any."""
        attributes = node.op.attributes()
        found = attributes.get("precision")
        if not isinstance(found, tuple) or attributes.get("algorithm") is not None:
            return None
        wanted = tuple(max(p, self._least, key=_ORDER.index) for p in found)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return None if wanted == found else wanted

    def _multiplies_inside(self, node: Node) -> bool:
        """Whether a composite is made of something that would be raised."""
        key = (node.op, tuple(v.type for v in node.inputs))
        known = self._multiplies.get(key)
        if known is None:
            made: Value | tuple[Value, ...] = node.op.decompose(*node.inputs)
            results: tuple[Value, ...] = (made,) if isinstance(made, Value) else made
            known = self._multiplies[key] = self._any_raised(node, results)
        return known

    def _any_raised(self, node: Node, results: tuple[Value, ...]) -> bool:
        stop = set(node.inputs)
        seen: set[Node] = set()
        stack = [v.node for v in results if v not in stop]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            nested = (
                n for g in inner_graphs(current.op) for h in g.all_graphs() for n in h.nodes()
            )
            for found in (current, *nested):
                if self._wanted(found) is not None:
                    return True
                if found.op.has_decompose and self._multiplies_inside(found):
                    return True
            stack += [v.node for v in current.inputs if v not in stop]
        return False
