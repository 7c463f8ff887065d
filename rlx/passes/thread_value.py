"""Hands a value down into the graphs inside ops, as one more operand."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.graph import Graph, Node, Value, inner_graphs, make_node
from rlx.ir.op import Op
from rlx.ops.control_flow import Call, Cond, Scan, While


def can_take(op: Op) -> bool:
    """Whether an op's inner graphs can be given one more value."""
    return isinstance(op, Call | Cond | Scan | While)


def with_operand(node: Node, value: Value, bodies: Sequence[Graph]) -> Node:
    """Return the node with a value as one more operand of its inner graphs.

    Args:
        node: of an op that ``can_take`` one.
        value: what the new operand is.
        bodies: for each inner graph the one that takes the value as its last input (before it,
            the old inputs in their order), or the old graph where it needs none.
    """
    op = node.op
    old = inner_graphs(op)
    inputs = list(node.inputs)
    if isinstance(op, Call | Cond):
        first = isinstance(op, Cond)
        place = len(inputs) - len(old[0].effects)
        made = [_taking(b, o, place - first, value) for b, o in zip(bodies, old, strict=True)]
        changed = op.replace(branches=tuple(made)) if first else op.replace(body=made[0], live=None)
        return make_node(changed, [*inputs[:place], value, *inputs[place:]], node.location)
    if isinstance(op, Scan):
        (body,) = bodies
        place = op.num_consts
        made_body = _taking(body, op.body, place, value)
        scan = op.replace(body=made_body, num_consts=place + 1)
        return make_node(scan, [*inputs[:place], value, *inputs[place:]], node.location)
    assert isinstance(op, While)
    cond, body = bodies
    places = (op.cond_consts, op.cond_consts + op.body_consts)
    changes: dict[str, object] = {}
    if body is not op.body:
        inputs.insert(places[1], value)
        changes.update(
            body=_taking(body, op.body, op.body_consts, value), body_consts=op.body_consts + 1
        )
    if cond is not op.cond:
        inputs.insert(places[0], value)
        changes.update(
            cond=_taking(cond, op.cond, op.cond_consts, value), cond_consts=op.cond_consts + 1
        )
    return make_node(op.replace(**changes), inputs, node.location)


def _taking(graph: Graph, old: Graph, place: int, value: Value) -> Graph:
    """The graph with its last input at a place; one that is unchanged gets an input of its own."""
    from rlx.ops.io import Input

    if graph is old:
        added = Input(name=value.name, dtype=value.type.dtype, shape=value.type.shape)()
        inputs = list(graph.inputs)
    else:
        *inputs, added = graph.inputs
    inputs.insert(place, added)
    return Graph(inputs, graph.params, graph.outputs, graph.effects, name=graph.name)
