"""Rewriting: rules on nodes, applied from inputs to outputs, with types checked.

A rule is ``(Node) -> Value | tuple[Value, ...] | None``; None means no match. The same Graph
object comes back when nothing matched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from rlx.errors import PassError
from rlx.ir import location as loc
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.op import Op

Rewritten: TypeAlias = "Value | tuple[Value, ...] | None"
Rule: TypeAlias = Callable[[Node], Rewritten]

_ROUNDS = 64
"""How often one place may be rewritten in a row; more means that rules undo each other."""

_TARGETS = "__rlx_rule_ops__"
AnyRule = TypeVar("AnyRule", bound=Rule)


def rule(*ops: type[Op]) -> Callable[[AnyRule], AnyRule]:
    """Say which ops a rule can match, so that it is tried on those only."""

    def mark(function: AnyRule) -> AnyRule:
        setattr(function, _TARGETS, ops)
        return function

    return mark


def rewrite(graph: Graph, *rules: Rule, nested: bool = True) -> Graph:
    """Apply rules everywhere until none matches; inner graphs too when ``nested``.

    New nodes take the location of the node that they replace.

    Raises:
        PassError: a rule changes a type, or rules undo each other.
    """
    table = _Dispatch(rules)
    done: dict[int, Graph] = {}
    graphs = graph.all_graphs() if nested else (graph,)
    for inner in graphs:
        done[id(inner)] = _rewrite_one(inner, table, done)
    return done[id(graph)]


def substitute(graph: Graph, replacements: Mapping[Value, Value]) -> Graph:
    """Return the graph with values replaced by others of the same type."""

    def replace(node: Node) -> Rewritten:
        if any(v in replacements for v in node.results):
            return tuple(replacements.get(v, v) for v in node.results)
        return None

    return rewrite(graph, replace, nested=False) if replacements else graph


class _Dispatch:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self.general = [r for r in rules if not getattr(r, _TARGETS, ())]
        self.rules = list(rules)
        self._by_op: dict[type[Op], list[Rule]] = {}

    def __getitem__(self, op: type[Op]) -> list[Rule]:
        found = self._by_op.get(op)
        if found is None:
            found = [r for r in self.rules if not getattr(r, _TARGETS, ()) or op in getattr(r, _TARGETS)]
            self._by_op[op] = found
        return found


def _rewrite_one(graph: Graph, table: _Dispatch, done: Mapping[int, Graph]) -> Graph:
    new: dict[Value, Value] = {}
    changed = False
    for node in graph.nodes():
        current = _rebuilt(node, new, done)
        results = _apply(current, table)
        if results is not node.results:
            changed = True
            new.update(zip(node.results, results, strict=True))
    if not changed:
        return graph
    return Graph(
        graph.inputs,
        graph.params,
        [new.get(v, v) for v in graph.outputs],
        [new.get(v, v) for v in graph.effects],
        name=graph.name,
    )


def _rebuilt(node: Node, new: Mapping[Value, Value], done: Mapping[int, Graph]) -> Node:
    """The node over rewritten inputs and inner graphs; itself when nothing changed."""
    op = node.op
    if done:
        inner = inner_graphs(op)
        if any(done.get(id(g), g) is not g for g in inner):
            op = with_inner_graphs(op, [done.get(id(g), g) for g in inner])
    for value in node.inputs:
        if value in new:
            inputs = tuple(new.get(v, v) for v in node.inputs)
            return Node(op, inputs, node.types, node.location)
    return node if op is node.op else Node(op, node.inputs, node.types, node.location)


def with_inner_graphs(op: Op, graphs: Sequence[Graph]) -> Op:
    """The op with its graph-valued attributes replaced, in order."""
    queue = list(graphs)
    changes: dict[str, object] = {}
    for name, value in op.attributes().items():
        if isinstance(value, Graph):
            changes[name] = queue.pop(0)
        elif isinstance(value, tuple) and any(isinstance(item, Graph) for item in value):  # pyright: ignore[reportUnknownVariableType]
            changes[name] = tuple(
                queue.pop(0) if isinstance(item, Graph) else item
                for item in value  # pyright: ignore[reportUnknownVariableType]
            )
    return op.replace(**changes)


def _apply(node: Node, table: _Dispatch) -> tuple[Value, ...]:
    for _ in range(_ROUNDS):
        for candidate in table[type(node.op)]:
            with loc.at(node.location):
                made = candidate(node)
            if made is not None:
                break
        else:
            return node.results
        results = made if isinstance(made, tuple) else (made,)
        _check(node, results, candidate)
        if len(results) != 1 or results[0].node.op.op_name in ("input", "param"):
            return results
        if results[0].node is node or results[0].index or len(results[0].node.results) != 1:
            return results
        node = results[0].node
    raise PassError(
        f"rewrite: rules are required to settle; after {_ROUNDS} rounds {node!r} still changes. "
        "Two rules undo each other.",
        pass_name="rewrite",
    )


def _check(node: Node, results: Sequence[Value], candidate: Rule) -> None:
    found = tuple(v.type for v in results)
    if found != node.types:
        name = getattr(candidate, "__name__", repr(candidate))
        raise PassError(
            f"rewrite: rule {name!r} is required to keep the types "
            f"({', '.join(map(str, node.types))}) of {node!r}; it gave "
            f"({', '.join(map(str, found))}).",
            pass_name=name,
        )
