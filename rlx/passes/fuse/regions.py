"""Chains of elementwise ops as one region, and apart again."""

from __future__ import annotations

from typing import final

from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.rewrite import rewrite, rule
from rlx.ops.fused import ElementwiseRegion
from rlx.ops.fused.regions import is_elementwise
from rlx.ops.io import Input
from rlx.passes.fuse.forms import Fused, Matcher, Uses


@final
class MarkRegions:
    """Maximal chains whose inner results are read once, of one shape, within limits."""

    def __init__(self, max_steps: int | None, max_inputs: int | None) -> None:
        """Take the limits; None for no limit."""
        self._max_steps = max_steps
        self._max_inputs = max_inputs

    def __call__(self, graph: Graph) -> Matcher:
        """The matcher of one graph."""
        uses = Uses(graph)
        regions: dict[Node, list[Node]] = {}
        taken: set[Node] = set()
        for tail in reversed(graph.nodes()):
            if tail in taken or not _may_join(tail):
                continue
            members = self._grown(tail, uses, taken)
            if len(members) > 1:
                regions[tail] = members
                taken.update(members)

        def match(uses: Uses, node: Node) -> Fused | None:
            del uses
            members = regions.get(node)
            return None if members is None else _region(node, members)

        return match

    def _grown(self, tail: Node, uses: Uses, taken: set[Node]) -> list[Node]:
        """The members of a region, the tail first."""
        members = [tail]
        inside = {tail}
        for member in members:  # grows on the way
            for value in member.inputs:
                producer = value.node
                joins = (
                    producer not in taken
                    and producer not in inside
                    and _may_join(producer)
                    and producer.types[0].shape == tail.types[0].shape
                    and uses.only(value)
                )
                if not joins or (self._max_steps and len(members) >= self._max_steps):
                    continue
                if self._max_inputs and self._too_wide(inside, members, producer):
                    continue
                members.append(producer)
                inside.add(producer)
        return members

    def _too_wide(self, inside: set[Node], members: list[Node], more: Node) -> bool:
        """Whether a region would read too many values with one more member."""
        return len(_inputs(inside | {more}, [*members, more])) > (self._max_inputs or 0)


def unfuse(graph: Graph) -> Graph:
    """Take every region apart."""

    @rule(ElementwiseRegion)
    def apart(node: Node) -> Value | tuple[Value, ...]:
        made: Value | tuple[Value, ...] = node.op.decompose(*node.inputs)
        return made

    return rewrite(graph, apart)


def _may_join(node: Node) -> bool:
    op = node.op
    return (
        is_elementwise(op)
        and len(node.types) == 1
        and bool(node.inputs)
        and all(v.shape in (node.types[0].shape, ()) for v in node.inputs)
    )


def _inputs(inside: set[Node], members: list[Node]) -> list[Value]:
    """What the members read from outside, each once."""
    return list(dict.fromkeys(v for n in members for v in n.inputs if v.node not in inside))


def _region(tail: Node, members: list[Node]) -> Fused:
    inside = set(members)
    ordered: list[Node] = []
    stack = [tail]
    done: set[Node] = set()
    while stack:
        node = stack[-1]
        waiting = [v.node for v in node.inputs if v.node in inside and v.node not in done]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if node not in done:
            done.add(node)
            ordered.append(node)
    outside = _inputs(inside, ordered)
    scalars: dict[Value, Value] = {
        v: Input(name=f"x{i}", dtype=v.dtype, shape=())() for i, v in enumerate(outside)
    }
    leaves = list(scalars.values())
    for node in ordered:
        made = make_node(node.op, [scalars[v] for v in node.inputs], node.location)
        scalars[node.results[0]] = made.results[0]
    body = Graph(leaves, (), [scalars[tail.results[0]]], name="region")
    return Fused(ElementwiseRegion(body=body), tuple(outside))
