"""Writes the bodies of calls in place where no code is repeated for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import rewrite, rule, splice, with_graphs
from rlx.ops.control_flow import Call, CallKind
from rlx.ops.io import Input
from rlx.passes.base import AbstractPass, PassContext


@final
@dataclass(frozen=True, kw_only=True)
class InlineCalls(AbstractPass):
    """Inlines a body that is called once, or that is tiny; a call hides it from other passes.

    Larger bodies that are called often stay functions, so that XLA sees their text once.
    Rematerialised calls stay, since they exist to be computed apart.

    Attributes:
        max_nodes: largest body, inputs not counted, that is inlined wherever it is called.
    """

    name: ClassVar[str] = "inline-calls"
    max_nodes: int = 4

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        bodies = [
            node.op.body
            for inner in graph.all_graphs()
            for node in inner.nodes()
            if isinstance(node.op, Call)
        ]
        if not bodies:
            return graph
        # Counted by structure: bodies that are equal are one function after elimination.
        uses = Counter(body.fingerprint() for body in bodies)
        called_once = {body for body in bodies if uses[body.fingerprint()] == 1}
        once: set[Graph] = set()

        @rule(Call)
        def inline(node: Node) -> tuple[Value, ...] | None:
            op = node.op
            if not isinstance(op, Call) or op.kind is CallKind.REMAT:
                return None
            small = op.body in once or _size(op.body) <= self.max_nodes
            return splice(op.body, node.inputs) if small else None

        done: dict[Graph, Graph] = {}
        for inner in graph.all_graphs():  # inner ones first: sizes are those after inlining
            made = rewrite(with_graphs(inner, done), inline, nested=False)
            done[inner] = made
            if inner in called_once:
                once.add(made)
        return done[graph]


def _size(body: Graph) -> int:
    return sum(not isinstance(node.op, Input) for node in body.nodes())
