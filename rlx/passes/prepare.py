"""Splits a graph in two: what params alone decide, and what is computed on every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from rlx.hidden import PREPARED
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import splice, substitute
from rlx.ops.io import Constant, Param
from rlx.ops.shape import BroadcastInDim, Iota, Reshape
from rlx.passes.purity import Purity

_LEAVES = ("input", "param")
_CHEAP = (BroadcastInDim, Constant, Iota, Reshape)
"""Ops that XLA computes for nothing as part of their users: never worth a buffer of their own."""


@final
@dataclass(frozen=True)
class Split:
    """The two graphs.

    Attributes:
        prepare: params → prepared values; has no inputs.
        main: the inputs, the other params and the prepared values → the outputs.
        kept: lines on values that could be prepared and stay in ``main``, each with its reason.
    """

    prepare: Graph
    main: Graph
    kept: tuple[str, ...]

    @property
    def prepared(self) -> tuple[Value, ...]:
        """The params of ``main`` that ``prepare`` computes."""
        return self.main.params[len(self.main.params) - len(self.prepare.outputs) :]

    def joined(self) -> Graph:
        """Both as one graph again, which computes what the source does."""
        prepare, main = self.prepare, self.main
        handed = dict(zip(self.prepared, splice(prepare, prepare.params), strict=True))
        rest = [p for p in main.params if p not in handed]
        params = [*rest, *(p for p in prepare.params if p not in rest)]
        made = splice(main, [*main.inputs, *(handed.get(p, p) for p in main.params)])
        count = len(main.outputs)
        return Graph(main.inputs, params, made[:count], made[count:], name=main.name)

    def lines(self) -> list[str]:
        """The split, for a report."""
        made = sum(v.type.nbytes for v in self.prepare.outputs)
        read = sum(v.type.nbytes for v in self.prepare.params)
        types = ", ".join(str(v.type) for v in self.prepare.outputs)
        names = ", ".join(v.name for v in self.prepare.params)
        lines = [
            f"prepare: {_count(self.prepare)} nodes, once per binding of {names} "
            f"({read:,} bytes) → {types} ({made:,} bytes)",
            f"  {_ops(self.prepare)}",
            f"main: {_count(self.main)} nodes, on every run",
            f"  {_ops(self.main)}",
        ]
        return lines + [f"stays in main: {line}" for line in self.kept]


def split_param_invariant(
    graph: Graph,
    *,
    dynamic: Collection[str] = (),
    max_growth: float = 16.0,
    small_bytes: int = 1024,
) -> Split | None:
    """Split off what depends on params alone.

    The values handed over are those that the rest of the graph reads. Dynamic is whatever depends
    on an input, a drawn number, an effect or an opaque node. What no param feeds stays in main,
    since XLA computes it while compiling; so does a value that only repeats its source
    (broadcasts), whose source is prepared instead; and one that is large beside the params that it
    comes from: reading it on every run would cost more than it saves.

    Args:
        graph: a static graph, after the passes.
        dynamic: names of params that count as dynamic: the seed of a run.
        max_growth: largest ratio of a prepared value's bytes to those of the params behind it.
        small_bytes: values up to this size are prepared whatever the ratio.

    Returns:
        The two graphs, or None where nothing can be prepared.
    """
    facts = _Facts(graph, dynamic, max_growth, small_bytes)
    boundary = facts.boundary()
    if not boundary:
        return None
    named = {
        value: Param(name=f"{PREPARED}{index}", dtype=value.type.dtype, shape=value.type.shape)()
        for index, value in enumerate(boundary)
    }
    # The new params are listed first, so that the graph with users of theirs is one.
    listed = [*graph.params, *named.values()]
    rest = substitute(Graph(graph.inputs, listed, graph.outputs, graph.effects), named)
    used = _reachable([*rest.outputs, *rest.effects])
    params = [p for p in graph.params if p in used or not facts.feeds_prepare(p)]
    main = Graph(
        rest.inputs, [*params, *named.values()], rest.outputs, rest.effects, name=graph.name
    )
    needed = _reachable(boundary)
    prepare = Graph(
        (), [p for p in graph.params if p in needed], boundary, name=f"{graph.name}_prepare"
    )
    return Split(prepare, main, tuple(facts.kept))


@final
class _Facts:
    """What each node of a graph depends on."""

    def __init__(
        self, graph: Graph, dynamic: Collection[str], max_growth: float, small_bytes: int
    ) -> None:
        self._graph = graph
        self._max_growth = max_growth
        self._small_bytes = small_bytes
        self.kept: list[str] = []
        purity = Purity()
        self._invariant: set[Node] = set()
        self._sources: dict[Node, frozenset[Value]] = {}
        for node in graph.nodes():
            op = node.op.op_name
            if op == "param":
                fixed = node.results[0].name not in dynamic
                sources = frozenset(node.results) if fixed else frozenset[Value]()
            else:
                fixed = op != "input" and not purity.is_pinned(node)
                fixed = fixed and all(v.node in self._invariant for v in node.inputs)
                sources = frozenset[Value]().union(
                    *(self._sources.get(v.node, frozenset()) for v in node.inputs)
                )
            if fixed:
                self._invariant.add(node)
                self._sources[node] = sources
        self._prepared: set[Value] = set()

    def boundary(self) -> list[Value]:
        """The invariant values that the dynamic part reads and that are worth preparing."""
        wanted: dict[Value, None] = {}
        waiting = [*self._graph.outputs]
        for node in self._graph.nodes():
            if node not in self._invariant:
                waiting += [v for v in node.inputs if v.node in self._invariant]
        seen: set[Value] = set()
        while waiting:
            value = waiting.pop()
            if value in seen or value.node not in self._invariant:
                continue
            seen.add(value)
            if value.node.op.op_name in _LEAVES:
                continue
            reason = self._reason_to_keep(value)
            if not reason:
                wanted[value] = None
                continue
            if reason != "cheap":
                self.kept.append(f"{value.type} of {value.node.op.op_name}: {reason}")
            waiting += value.node.inputs
        place = {node: i for i, node in enumerate(self._graph.nodes())}
        found = sorted(wanted, key=lambda v: (place[v.node], v.index))
        self._prepared = {p for v in found for p in self._sources[v.node]}
        return found

    def feeds_prepare(self, param: Value) -> bool:
        """Whether a prepared value depends on a param."""
        return param in self._prepared

    def _reason_to_keep(self, value: Value) -> str:
        node = value.node
        sources = self._sources[node]
        if isinstance(node.op, _CHEAP) or not sources:
            return "cheap"
        size = value.type.nbytes
        read = sum(p.type.nbytes for p in sources)
        if size <= max(self._small_bytes, self._max_growth * read):
            return ""
        return (
            f"its {size:,} bytes are more than {self._max_growth:g} times those of the params "
            f"behind it ({read:,})"
        )


def _reachable(values: Collection[Value]) -> set[Value]:
    """Every value that some values depend on, themselves included."""
    found: set[Value] = set()
    nodes: set[Node] = set()
    stack = [v.node for v in values]
    while stack:
        node = stack.pop()
        if node in nodes:
            continue
        nodes.add(node)
        found.update(node.results)
        stack += [v.node for v in node.inputs]
    return found


def _ops(graph: Graph) -> str:
    """How often each op occurs."""
    counts = Counter(n.op.op_name for n in graph.nodes() if n.op.op_name not in _LEAVES)
    return ", ".join(f"{name} × {count}" for name, count in counts.most_common())


def _count(graph: Graph) -> int:
    return sum(node.op.op_name not in _LEAVES for node in graph.nodes())
