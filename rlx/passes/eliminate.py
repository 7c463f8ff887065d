"""Computes each expression once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.rewrite import Rule, sweep, with_inner_graphs
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.purity import Purity


@final
@dataclass(frozen=True, kw_only=True)
class EliminateCommonSubexpressions(AbstractPass):
    """Merges nodes of one op on the same values; the first one stays, with its location.

    Inner graphs of one structure become one object, so that they are emitted once. Nodes with
    effects, opaque nodes, barriers and rematerialised calls are never merged. Operands are not
    swapped: a + b and b + a stay two.
    """

    name: ClassVar[str] = "eliminate-common-subexpressions"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        purity = Purity()
        shared: dict[str, Graph] = {}
        return sweep(graph, lambda: _visitor(purity, shared))


def _visitor(purity: Purity, shared: dict[str, Graph]) -> Rule:
    """A visitor for one graph: it remembers what it has seen there."""
    seen: dict[Hashable, Node] = {}

    def merge(node: Node) -> tuple[Value, ...] | None:
        kept = node
        if node.op.holds_graphs:
            node = _with_shared_graphs(node, shared)
        if node.op.op_name in ("input", "param") or purity.is_pinned(node):
            return None if node is kept else node.results
        first = seen.setdefault((node.op.identity(), node.inputs), node)
        return None if first is kept else first.results

    return merge


def _with_shared_graphs(node: Node, shared: dict[str, Graph]) -> Node:
    """The node over the first graphs that have the structure of its own inner graphs."""
    inner = inner_graphs(node.op)
    if not inner:
        return node
    first = [shared.setdefault(graph.fingerprint(), graph) for graph in inner]
    if all(a is b for a, b in zip(inner, first, strict=True)):
        return node
    return Node(with_inner_graphs(node.op, first), node.inputs, node.types, node.location)
