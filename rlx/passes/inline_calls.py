"""Writes the bodies of calls in place where no code is repeated for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.rewrite import splice, with_inner_graphs
from rlx.ops.control_flow import Call, CallKind
from rlx.ops.io import Input
from rlx.passes.base import AbstractPass, PassContext


@final
@dataclass(frozen=True, kw_only=True)
class InlineCalls(AbstractPass):
    """Inlines a body that is called once, or that is small; a call hides it from other passes.

    Small are the functions of ``jnp`` that are jitted by themselves: half of a layer norm is
    ``jnp.var``, and a causal mask is ``jnp.tril``. Larger bodies that are called often stay
    functions, so that XLA sees their text once. Rematerialised calls stay, since they exist to be
    computed apart. A body that is called once is written straight into the graph that stays,
    however deeply it is nested, so that each node is copied once.

    Attributes:
        max_nodes: largest body, inputs not counted, that is inlined wherever it is called.
        max_growth: most nodes that one body may become, over all of its calls.
    """

    name: ClassVar[str] = "inline-calls"
    max_nodes: int = 32
    max_growth: int = 1 << 14

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        everything = graph.all_graphs()
        nodes = [node for inner in everything for node in inner.nodes() if node.op.holds_graphs]
        holders = [node for node in nodes if inner_graphs(node.op)]
        bodies = [node.op.body for node in holders if isinstance(node.op, Call)]
        if not bodies:
            return graph
        # Counted by structure: bodies that are equal are one function after elimination.
        uses = Counter(body.fingerprint() for body in bodies)
        held = Counter(inner for node in holders for inner in inner_graphs(node.op))
        once = {
            node.op.body
            for node in holders
            if isinstance(node.op, Call)
            and node.op.kind is not CallKind.REMAT
            and held[node.op.body] == uses[node.op.body.fingerprint()] == 1
        }
        done: dict[Graph, Graph] = {}
        small: set[Graph] = set()
        called = set(bodies)
        for inner in everything:  # inner ones first: sizes are those after inlining
            if inner in once:
                continue
            made = done[inner] = self._expanded(inner, once, small, done)
            size = _size(made) if inner in called else self.max_nodes + 1
            grown = size * uses[inner.fingerprint()] if size <= self.max_nodes else 0
            if size <= self.max_nodes and grown <= self.max_growth:
                small.add(inner)
        return done[graph]

    def _expanded(
        self, graph: Graph, once: set[Graph], small: set[Graph], done: Mapping[Graph, Graph]
    ) -> Graph:
        """The graph with bodies in place of their calls, and with what was made of the others."""
        new: dict[Value, Value] = {}
        pending: list[tuple[Iterator[Node], Node | None]] = [(iter(graph.nodes()), None)]
        while pending:
            nodes, call = pending[-1]
            node = next(nodes, None)
            if node is None:
                pending.pop()
                if call is not None:
                    body = _body(call)
                    made = [new.get(v, v) for v in (*body.outputs, *body.effects)]
                    new.update(zip(call.results, made, strict=True))
                continue
            if node.results and node.results[0] in new:  # an input of a body
                continue
            given = node.inputs
            if new and not new.keys().isdisjoint(given):
                given = tuple([new.get(v, v) for v in given])
            elif not node.op.holds_graphs:
                continue
            if isinstance(node.op, Call) and node.op.kind is not CallKind.REMAT:
                body = _body(node)
                if body in once:
                    new.update(zip((*body.inputs, *body.params), given, strict=True))
                    pending.append((iter(body.nodes()), node))
                    continue
                if body in small:
                    new.update(zip(node.results, splice(done[body], given), strict=True))
                    continue
            op = node.op
            if op.holds_graphs:
                inner = inner_graphs(op)
                made_inner = [done[g] for g in inner]
                op = op if made_inner == list(inner) else with_inner_graphs(op, made_inner)
            if op is not node.op or given != node.inputs:
                made_node = Node(op, given, node.types, node.location)
                new.update(zip(node.results, made_node.results, strict=True))
        outputs = [new.get(v, v) for v in graph.outputs]
        effects = [new.get(v, v) for v in graph.effects]
        if tuple(outputs) == graph.outputs and tuple(effects) == graph.effects:
            return graph
        return Graph(graph.inputs, graph.params, outputs, effects, name=graph.name)


def _body(call: Node) -> Graph:
    assert isinstance(call.op, Call)
    return call.op.body


def _size(body: Graph) -> int:
    return sum(not isinstance(node.op, Input) for node in body.nodes())
