"""Rewriting: rules on nodes, applied from inputs to outputs, with types checked.

A rule is ``(Node) -> Value | tuple[Value, ...] | None``; None means no match. The same Graph
object comes back when nothing matched. One sweep suffices: whatever a rule makes is offered to
the rules before its users are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast, final

from rlx.errors import PassError, RlxError
from rlx.ir import location as loc
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.location import Location
from rlx.ir.op import Op

Rewritten: TypeAlias = "Value | tuple[Value, ...] | None"
Rule: TypeAlias = Callable[[Node], Rewritten]

_DEPTH = 64
"""How often what a rule made may be rewritten in turn; more means that rules undo each other."""

_APPLICATIONS = 1_000_000
"""How many rewrites one node of the source graph may start; a decomposition takes thousands."""

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
        PassError: this is no graph, a rule changes a type, or rules undo each other.
    """
    if not isinstance(cast("object", graph), Graph):
        raise PassError(
            f"rewrite: a Graph is required; got {type(graph).__name__}. For a traced function give "
            "traced.graph.",
            pass_name="rewrite",
        )
    return _Rewriting(_Dispatch(rules), nested).graph(graph)


def sweep(graph: Graph, start: Callable[[], Rule], *, nested: bool = True) -> Graph:
    """Offer every node once to a visitor; each graph, inner ones first, has a visitor of its own.

    Without ``nested`` only the graph itself is offered. Unlike ``rewrite``, nothing is offered
    again: the visitor sees nodes whose inputs it has dealt with, and what it returns stands.
    """
    done: dict[Graph, Graph] = {}
    for inner in graph.all_graphs() if nested else (graph,):
        visit = start()
        new: dict[Value, Value] = {}
        for node in inner.nodes():
            current = _rebuilt(node, new, done)
            made = visit(current)
            if made is None:
                if current is not node:
                    _replace(new, node.results, current.results)
                continue
            results = _as_tuple(made)
            _check(current, results, visit)
            if results != node.results:
                _replace(new, node.results, results)
        done[inner] = _with_new(inner, new)
    return done[graph]


def substitute(graph: Graph, replacements: Mapping[Value, Value]) -> Graph:
    """Return the graph with values replaced by others of the same type.

    The replacements stand as they are given; users of the replaced values are made anew.

    Raises:
        PassError: a replacement has another type.
    """
    for old, made in replacements.items():
        if old.type != made.type:
            raise PassError(
                f"substitute: a replacement is required to have the type of {old!r}; "
                f"got {made!r}. Convert or reshape it.",
                pass_name="substitute",
            )
    new: dict[Value, Value] = {}
    for node in graph.nodes():
        current = _rebuilt(node, new, {})
        for old, made in zip(node.results, current.results, strict=True):
            target = replacements.get(old, made)
            if target is not old:
                new[old] = target
    return _with_new(graph, new)


def splice(graph: Graph, arguments: Sequence[Value]) -> tuple[Value, ...]:
    """Copy a graph's nodes with values in place of its inputs then params.

    Returns:
        The outputs, then the last tokens of its effects.
    """
    leaves = (*graph.inputs, *graph.params)
    new = dict(zip(leaves, arguments, strict=True))
    for node in graph.nodes():
        if node.results and node.results[0] in new:
            continue
        current = _rebuilt(node, new, {})
        if current is not node:
            new.update(zip(node.results, current.results, strict=True))
    return tuple(new.get(v, v) for v in (*graph.outputs, *graph.effects))


def with_graphs(graph: Graph, replacements: Mapping[Graph, Graph]) -> Graph:
    """The graph with the graphs inside its ops replaced by others of the same types."""
    new: dict[Value, Value] = {}
    for node in graph.nodes():
        current = _rebuilt(node, new, replacements)
        if current is not node:
            new.update(zip(node.results, current.results, strict=True))
    return _with_new(graph, new)


def with_inner_graphs(op: Op, graphs: Sequence[Graph]) -> Op:
    """The op with its graph-valued attributes replaced, in order."""
    queue = iter(graphs)
    changes: dict[str, object] = {}
    for name, value in op.attributes().items():
        if isinstance(value, Graph):
            changes[name] = next(queue)
        elif isinstance(value, tuple) and any(isinstance(item, Graph) for item in value):  # pyright: ignore[reportUnknownVariableType]
            items = cast("tuple[object, ...]", value)
            changes[name] = tuple(next(queue) if isinstance(i, Graph) else i for i in items)
    return op.replace(**changes)


@final
class _Dispatch(dict[type[Op], list[Rule]]):
    """Rules by op class, found at the first use of one."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__()
        self._rules = [(r, getattr(r, _TARGETS, ())) for r in rules]

    def __missing__(self, op: type[Op]) -> list[Rule]:
        found = self[op] = [r for r, ops in self._rules if not ops or op in ops]
        return found


@final
@dataclass(slots=True)
class _Frame:
    """A node on the way: first its inputs, then itself, then what a rule made of it.

    Attributes:
        node: as it was met.
        depth: how many rewrites led to it.
        made: what the last rule returned, once one has matched.
    """

    node: Node
    depth: int
    made: tuple[Value, ...] | None = None
    opened: bool = False


@final
class _Rewriting:
    """One call of ``rewrite``: what has been done so far, over all graphs."""

    def __init__(self, table: _Dispatch, nested: bool) -> None:
        self._table = table
        self._nested = nested
        self._done: dict[Graph, Graph] = {}

    def graph(self, graph: Graph) -> Graph:
        for inner in graph.all_graphs() if self._nested else (graph,):
            if inner not in self._done:
                made = self._one(inner)
                self._done[inner] = made
                self._done[made] = made
        return self._done[graph]

    def _one(self, graph: Graph) -> Graph:
        new: dict[Value, Value] = {}
        settled: set[Node] = set()
        table, nested = self._table, self._nested
        with loc.moving() as move:
            for node in graph.nodes():
                if node in settled or (new and node.results and node.results[0] in new):
                    continue
                op = node.op
                current = self._rebuilt(node, new) if nested and op.holds_graphs else node
                if new and current is node and not new.keys().isdisjoint(node.inputs):
                    current = Node(op, _renewed(node, new), node.types, node.location)
                settled.add(current)
                made = self._apply(current, move) if table[type(op)] else None
                if made is not None:
                    self._settle(node, made, new, settled, move)
                elif current is not node:
                    _replace(new, node.results, current.results)
        return _with_new(graph, new)

    def _settle(
        self,
        root: Node,
        result: tuple[Value, ...],
        new: dict[Value, Value],
        settled: set[Node],
        move: Callable[[Location], object],
    ) -> None:
        """Rewrite what a rule made of a node to the end."""
        stack = [_Frame(root, 0, result)]
        self._push(stack, result, 1, new, settled)
        applications = 1
        while stack:
            frame = stack[-1]
            node = frame.node
            if frame.made is not None:
                stack.pop()
                new.update(
                    (old, new.get(v, v)) for old, v in zip(node.results, frame.made, strict=True)
                )
                continue
            if node in settled or (node.results and node.results[0] in new):
                stack.pop()
                continue
            if not frame.opened:
                frame.opened = True
                if self._push(stack, node.inputs, frame.depth, new, settled):
                    continue
            current = self._rebuilt(node, new)
            settled.add(current)
            made = self._apply(current, move)
            if made is None:
                stack.pop()
                if current is not node:
                    _replace(new, node.results, current.results)
                continue
            applications += 1
            if frame.depth >= _DEPTH or applications > _APPLICATIONS:
                raise PassError(
                    "rewrite: rules are required to settle; after "
                    f"{max(frame.depth, applications)} rewrites of {root!r} its replacement "
                    f"{current!r} still changes. Two rules undo each other.",
                    pass_name="rewrite",
                )
            frame.made = made
            self._push(stack, made, frame.depth + 1, new, settled)

    @staticmethod
    def _push(
        stack: list[_Frame],
        values: Iterable[Value],
        depth: int,
        new: Mapping[Value, Value],
        settled: set[Node],
    ) -> bool:
        nodes = {v.node: None for v in values if v.node not in settled and v not in new}
        stack.extend(_Frame(node, depth) for node in reversed(nodes))
        return bool(nodes)

    def _rebuilt(self, node: Node, new: Mapping[Value, Value]) -> Node:
        if self._nested and node.op.holds_graphs:
            for inner in inner_graphs(node.op):
                if inner not in self._done:  # a rule made it
                    self.graph(inner)
        return _rebuilt(node, new, self._done)

    def _apply(self, node: Node, move: Callable[[Location], object]) -> tuple[Value, ...] | None:
        move(node.location)
        for candidate in self._table[type(node.op)]:
            try:
                made = candidate(node)
            except RlxError as error:
                error.add_note(f"  in rule {_name(candidate)!r} on {node!r}")
                raise
            if made is None:
                continue
            results = _as_tuple(made)
            _check(node, results, candidate)
            if results != node.results:
                return results
        return None


def _as_tuple(made: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return made if isinstance(made, tuple) else (made,)


def _with_new(graph: Graph, new: Mapping[Value, Value]) -> Graph:
    """The graph over replaced values; itself when none is used."""
    outputs = [new.get(v, v) for v in graph.outputs]
    effects = [new.get(v, v) for v in graph.effects]
    if tuple(outputs) == graph.outputs and tuple(effects) == graph.effects:
        return graph
    return Graph(
        graph.inputs, graph.params, outputs, effects, name=graph.name, asked=graph.asked,
        keyed=graph.keyed,
    )  # fmt: skip


def _rebuilt(node: Node, new: Mapping[Value, Value], done: Mapping[Graph, Graph]) -> Node:
    """The node over rewritten inputs and inner graphs; itself when nothing changed."""
    op = node.op
    if done and op.holds_graphs:
        inner = inner_graphs(op)
        if any(done.get(g, g) is not g for g in inner):
            op = with_inner_graphs(op, [done.get(g, g) for g in inner])
    if new and not new.keys().isdisjoint(node.inputs):
        return Node(op, _renewed(node, new), node.types, node.location)
    return node if op is node.op else Node(op, node.inputs, node.types, node.location)


def _renewed(node: Node, new: Mapping[Value, Value]) -> tuple[Value, ...]:
    """The inputs of a node, those that are replaced as they are now."""
    return tuple([new.get(v, v) for v in node.inputs])


def _replace(new: dict[Value, Value], old: tuple[Value, ...], made: tuple[Value, ...]) -> None:
    """Note what stands for the results of a node."""
    if len(old) == len(made) == 1:
        new[old[0]] = made[0]
    else:
        new.update(zip(old, made, strict=True))


def _check(node: Node, results: Sequence[Value], candidate: Rule) -> None:
    wrong = [v for v in cast("Sequence[object]", results) if not isinstance(v, Value)]
    if not wrong and len(results) == len(node.types) == 1:
        first = results[0]
        if first.node.types[first.index] is node.types[0]:
            return
    if wrong:
        name = _name(candidate)
        raise PassError(
            f"rewrite: rule {name!r} is required to give a Value, a tuple of Values or None for "
            f"{node!r}; it gave {type(wrong[0]).__name__}.",
            pass_name=name,
        )
    found = tuple(v.type for v in results)
    if found != node.types:
        name = _name(candidate)
        raise PassError(
            f"rewrite: rule {name!r} is required to keep the types "
            f"({', '.join(map(str, node.types))}) of {node!r}; it gave "
            f"({', '.join(map(str, found))}).",
            pass_name=name,
        )


def _name(candidate: Rule) -> str:
    return getattr(candidate, "__name__", repr(candidate))
