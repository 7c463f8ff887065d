"""Nodes, values and graphs: immutable, compared by identity.

A graph is its outputs and last effect tokens; its nodes are what is reachable from them, in a
deterministic order. So there is no dead code, no use-list to maintain and no name table.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

from rlx.dims import DimExpr
from rlx.errors import FormatError, ShapeError, VerifyError
from rlx.ir import location as loc
from rlx.ir.attributes import Literal, Opaque
from rlx.ir.location import Location
from rlx.ir.op import Op
from rlx.ir.operators import ValueOperators
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.sharding import Mesh


@final
class Node:
    """One application of an op.

    Attributes:
        op: the op with its attributes.
        inputs: the values it reads.
        types: the types of its results.
        location: where the user wrote it.
        results: its values, one for each type.
    """

    __slots__ = ("inputs", "location", "op", "results", "types")

    op: Op
    inputs: tuple[Value, ...]
    types: tuple[TensorType, ...]
    location: Location
    results: tuple[Value, ...]

    def __init__(
        self,
        op: Op,
        inputs: tuple[Value, ...],
        types: tuple[TensorType, ...],
        location: Location = loc.UNKNOWN,
    ) -> None:
        """Make a node as given; ``make_node`` is what checks and infers."""
        _put_op(self, op)
        _put_inputs(self, inputs)
        _put_types(self, types)
        _put_location(self, location)
        single = len(types) == 1
        results = (Value(self, 0),) if single else tuple(Value(self, i) for i in range(len(types)))
        _put_results(self, results)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a node never changes; {name!r} cannot be set. Make a new node.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a node never changes; {name!r} cannot be deleted.")

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def __repr__(self) -> str:
        types = ", ".join(str(t) for t in self.types)
        where = f" at {self.location}" if self.location else ""
        return f"<{self.op.op_name}: {types}{where}>"


@final
class Value(ValueOperators):
    """One result of a node. Has operators and short methods; every other op is ``rlx.ops.X``."""

    __slots__ = ("index", "node")

    node: Node
    index: int

    def __init__(self, node: Node, index: int) -> None:
        """Refer to result ``index`` of ``node``; nodes make these themselves."""
        _put_node(self, node)
        _put_index(self, index)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a value never changes; {name!r} cannot be set.")

    @property
    def type(self) -> TensorType:
        """Dtype and shape."""
        return self.node.types[self.index]

    @property
    def name(self) -> str:
        """Name of an input or param; an empty string for any other value."""
        op: Any = self.node.op
        return str(op.name) if op.op_name in ("input", "param") else ""

    def __deepcopy__(self, memo: object) -> Value:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        raise FormatError(
            f"pickle: a whole graph is required; got {self!r}. Pickle the graph, or save it."
        )

    def __repr__(self) -> str:
        return f"<Value {self.type} of {self.node!r}>"


# Slots of what never changes, which only the classes' own initialisers write: passes make nodes by
# the thousand, and these take half the time of ``object.__setattr__``.
_put_op, _put_inputs, _put_types, _put_location, _put_results = (
    vars(Node)[name].__set__ for name in ("op", "inputs", "types", "location", "results")
)
_put_node, _put_index = (vars(Value)[name].__set__ for name in ("node", "index"))


_VALUES = frozenset({Value})


def make_node(op: Op, inputs: Sequence[Value], location: Location | None = None) -> Node:
    """Check the inputs, infer the result types and make a node.

    Raises:
        ShapeError, DTypeError: the op refuses the input types; the inputs are listed in a note.
    """
    if not _VALUES.issuperset(map(type, inputs)):
        position, value = next((i, v) for i, v in enumerate(inputs) if type(v) is not Value)
        raise ShapeError(
            f"{op.op_name}: inputs are values of a graph; input {position} is "
            f"{type(value).__name__}. Wrap an array with rlx.constant(...)."
        )
    where = loc.current() if location is None else location
    types = [v.node.types[v.index] for v in inputs]
    try:
        result = op.infer_types(types)
    except (ShapeError, TypeError, ValueError) as error:
        _note(error, op, types, where)
        raise
    return Node(op, tuple(inputs), result, where)


def _note(error: Exception, op: Op, types: Sequence[TensorType], where: Location) -> None:
    names = op.operand_names(len(types))
    names += [f"input {i}" for i in range(len(names), len(types))]
    listing = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    error.add_note(f"  {op!r} with {listing or 'no inputs'}" + (f" at {where}" if where else ""))


@final
class Graph:
    """An immutable DAG with named inputs and params.

    Attributes:
        name: a name for people.
        inputs: values fed on every run, in order.
        params: values bound once by name.
        outputs: results in order; duplicates are allowed.
        effects: the last token of each effect chain.
        asked: dims that the traced function was told are not 0 while symbols stood for sizes.
            Where one is, the function may do something else than the graph; whoever runs the graph
            refuses those sizes. Binding the sizes takes the graph as it is.
        keyed: dims that the function looked up in dicts or sets, where symbols are not found. All
            their sizes are refused.
    """

    __slots__ = (
        "_fingerprint", "_inner", "_nodes", "asked", "effects", "inputs", "keyed", "name",
        "outputs", "params",
    )  # fmt: skip

    name: str
    inputs: tuple[Value, ...]
    params: tuple[Value, ...]
    outputs: tuple[Value, ...]
    effects: tuple[Value, ...]
    asked: tuple[DimExpr, ...]
    keyed: tuple[DimExpr, ...]

    def __init__(
        self,
        inputs: Iterable[Value],
        params: Iterable[Value],
        outputs: Iterable[Value],
        effects: Iterable[Value] = (),
        *,
        name: str = "graph",
        asked: Iterable[DimExpr] = (),
        keyed: Iterable[DimExpr] = (),
    ) -> None:
        """Make a graph and check that it is one: acyclic, every leaf listed, names unique.

        Raises:
            VerifyError: all findings at once.
        """
        put = object.__setattr__
        put(self, "name", name)
        put(self, "inputs", tuple(inputs))
        put(self, "params", tuple(params))
        put(self, "outputs", tuple(outputs))
        put(self, "effects", tuple(effects))
        put(self, "asked", tuple(asked))
        put(self, "keyed", tuple(keyed))
        put(self, "_fingerprint", None)
        put(self, "_inner", None)
        findings: list[str] = []
        roots = (*self.inputs, *self.params, *self.outputs, *self.effects)
        put(self, "_nodes", _topological(roots, findings))
        findings += self._leaf_findings()
        if self.asked or self.keyed:
            findings += self._question_findings()
        if findings:
            raise VerifyError(findings)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a graph never changes; {name!r} cannot be set. Build a new graph.")

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: object) -> Graph:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles hold what a saved graph holds: its text."""
        from rlx.ir.serialize import portable_text
        from rlx.ir.text import parse

        return parse, (portable_text("pickle", self),)

    def nodes(self) -> tuple[Node, ...]:
        """Every node, inputs before users, in an order that depends on the structure alone."""
        nodes: tuple[Node, ...] = getattr(self, "_nodes")  # noqa: B009  slot set in __init__
        return nodes

    def node_count(self, *, nested: bool = False) -> int:
        """How many nodes there are; with ``nested``, those of every distinct inner graph too."""
        if not nested:
            return len(self.nodes())
        return sum(len(g.nodes()) for g in self.all_graphs())

    def all_graphs(self) -> tuple[Graph, ...]:
        """This graph and every distinct graph inside its ops' attributes, inner ones first."""
        inner: tuple[Graph, ...] | None = getattr(self, "_inner")  # noqa: B009  slot set in __init__
        if inner is None:  # asked for by every pass; without this graph, which would hold itself
            inner = inner_first(self, lambda graph: True)[:-1]
            object.__setattr__(self, "_inner", inner)
        return (*inner, self)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbolic dims of inputs and params, sorted."""
        leaves = (*self.inputs, *self.params)
        return tuple(sorted({s for leaf in leaves for s in leaf.type.symbols}))

    def fingerprint(self) -> str:
        """Hexadecimal digest of names, attributes, structure and questions, without locations."""
        known = _known_digest(self)
        if known is None:
            digests: dict[int, str] = {}
            # What is inside of a graph whose digest is known needs none: nesting stays linear.
            for graph in inner_first(self, lambda graph: _known_digest(graph) is None):
                done = _known_digest(graph)
                digests[id(graph)] = done or _digest(graph, digests)
                object.__setattr__(graph, "_fingerprint", digests[id(graph)])
            known = digests[id(self)]
        return known

    def __str__(self) -> str:
        from rlx.ir.text import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        ins = ", ".join(str(v.type) for v in self.inputs)
        outs = ", ".join(str(v.type) for v in self.outputs)
        count = len(self.nodes())
        return f"<Graph {self.name!r}: ({ins}) -> ({outs}), {count} nodes>"

    def with_questions(self, asked: Iterable[DimExpr], keyed: Iterable[DimExpr]) -> Graph:
        """Return the graph with other questions about sizes; itself where they are its own.

        Args:
            asked: see the attribute.
            keyed: see the attribute.

        Raises:
            VerifyError: a question is about a symbol that the graph does not have.
        """
        asked, keyed = tuple(asked), tuple(keyed)
        if (asked, keyed) == (self.asked, self.keyed):
            return self
        return Graph(
            self.inputs, self.params, self.outputs, self.effects, name=self.name, asked=asked,
            keyed=keyed,
        )  # fmt: skip

    def with_shardings(
        self,
        specs: Mapping[str, object],
        *,
        mesh: Mesh | Mapping[str, int],
        outputs: Mapping[int, object] | Sequence[object] | None = None,
    ) -> Graph:
        """The graph with inputs, params and outputs spread over a mesh.

        See `rlx.sharding.with_shardings`.
        """
        from rlx.sharding import with_shardings

        return with_shardings(self, specs, mesh=mesh, outputs=outputs)

    def summary(self) -> str:
        """A short table: inputs, outputs, params with their size, and how often each op occurs."""
        from rlx.show.summary import summarise

        return summarise(self)

    def _repr_html_(self) -> str:
        from rlx.show.graph_page import graph_html

        return graph_html(self)

    def to_dot(self) -> str:
        """The graph in Graphviz's language."""
        from rlx.show.dot import to_dot

        return to_dot(self)

    def to_svg(self) -> str:
        """The graph as SVG text, drawn by Graphviz.

        Raises:
            RunError: Graphviz is not installed.
        """
        from rlx.show.dot import to_svg

        return to_svg(self)

    def to_model_explorer(self) -> str:
        """The graph as JSON that Model Explorer opens."""
        from rlx.show.model_explorer import to_model_explorer

        return to_model_explorer(self)

    def _question_findings(self) -> list[str]:
        known = self.symbols
        return [
            f"question {dim}: symbols of inputs and params are required "
            f"({', '.join(known) or 'there are none'}); got {name!r}."
            for dim in (*self.asked, *self.keyed)
            for name in dim.polynomial.symbols
            if name not in known
        ]

    def _leaf_findings(self) -> list[str]:
        findings: list[str] = []
        listed: dict[int, str] = {}
        names: dict[str, str] = {}
        for role, leaves in (("input", self.inputs), ("param", self.params)):
            for leaf in leaves:
                if leaf.node.op.op_name != role:
                    findings.append(f"{role} list holds {leaf!r}, which is no {role}.")
                    continue
                listed[id(leaf.node)] = role
                if leaf.name in names:
                    findings.append(
                        f"{role} {leaf.name!r}: names are unique among inputs and params; "
                        f"an {names[leaf.name]} has this name already."
                    )
                names[leaf.name] = role
        for node in self.nodes():
            role = node.op.op_name
            if role in ("input", "param") and id(node) not in listed:
                findings.append(
                    f"{role} {node.results[0].name!r} is used but not listed among the graph's "
                    f"{role}s: {', '.join(sorted(names)) or 'none'}. Make all values of a graph "
                    "with one builder, or list it."
                )
        return findings


def inner_first(graph: Graph, enter: Callable[[Graph], bool]) -> tuple[Graph, ...]:
    """A graph and every distinct graph inside of it, inner ones first.

    Args:
        graph: the outermost one.
        enter: whether to look inside of a graph; what lies in one that is not entered is left out.
    """
    order: list[Graph] = []
    seen: set[int] = set()
    stack: list[tuple[Graph, bool]] = [(graph, False)]
    while stack:
        current, done = stack.pop()
        if done:
            order.append(current)
            continue
        if id(current) in seen:
            continue
        seen.add(id(current))
        stack.append((current, True))
        if enter(current):
            holders = [node.op for node in current.nodes() if node.op.holds_graphs]
            inner = [g for op in holders for g in inner_graphs(op)]
            stack.extend((g, False) for g in reversed(inner))
    return tuple(order)


def inner_graphs(op: Op) -> tuple[Graph, ...]:
    """The graphs among an op's attributes, in order."""
    if not op.holds_graphs:
        return ()
    found: list[Graph] = []
    for value in op.attributes().values():
        if isinstance(value, Graph):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(item for item in value if isinstance(item, Graph))  # pyright: ignore[reportUnknownVariableType]
    return tuple(found)


def _topological(roots: Iterable[Value], findings: list[str]) -> tuple[Node, ...]:
    """Order nodes with inputs before users (depth first, iterative); report cycles."""
    order: list[Node] = []
    visited: set[Node] = set()
    done: set[Node] = set()
    for root in roots:
        stack = [root.node]
        while stack:
            node = stack[-1]
            if node in visited:
                stack.pop()
                if node not in done:
                    done.add(node)
                    order.append(node)
                continue
            visited.add(node)
            waits = False
            for value in node.inputs[::-1]:
                inner = value.node
                if inner not in visited:
                    stack.append(inner)
                    waits = True
                elif inner not in done:
                    findings.append(f"{inner!r} depends on itself: the graph has a cycle.")
                    return tuple(order)
            if not waits:
                stack.pop()
                done.add(node)
                order.append(node)
    return tuple(order)


def same(lhs: Graph, rhs: Graph) -> bool:
    """Whether two graphs have the same structure, names, attributes and questions about sizes.

    Locations do not count, nor does the order of questions.

    Raises:
        VerifyError: one is no graph.
    """
    for given in (lhs, rhs):
        if not isinstance(cast("object", given), Graph):
            raise VerifyError([f"same: a Graph is required; got {type(given).__name__}."])
    return lhs is rhs or lhs.fingerprint() == rhs.fingerprint()


def _known_digest(graph: Graph) -> str | None:
    return getattr(graph, "_fingerprint")  # noqa: B009  slot set in __init__


def _digest(graph: Graph, digests: Mapping[int, str]) -> str:
    number: dict[int, int] = {}
    hasher = hashlib.sha256()

    def write(*parts: object) -> None:
        hasher.update(repr(parts).encode())

    write("graph", graph.name)
    for node in graph.nodes():
        number[id(node)] = len(number)
        write(
            node.op.op_name,
            [_encode(v, digests) for v in node.op.attributes().values()],
            [(number[id(v.node)], v.index) for v in node.inputs],
            [str(t) for t in node.types],
        )
    for values in (graph.inputs, graph.params, graph.outputs, graph.effects):
        write([(number[id(v.node)], v.index) for v in values])
    if graph.asked or graph.keyed:
        write("questions", *(sorted({str(dim) for dim in q}) for q in (graph.asked, graph.keyed)))
    return hasher.hexdigest()


def _encode(value: Any, digests: Mapping[int, str]) -> object:
    if isinstance(value, Graph):
        return ("graph", digests[id(value)])
    if isinstance(value, Literal):
        return ("literal", str(value.type), hashlib.sha256(value.tobytes()).hexdigest())
    if isinstance(value, tuple):
        return tuple(_encode(item, digests) for item in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float):
        return ("float", struct.pack("<d", value).hex())
    if isinstance(value, DimExpr):
        return ("dim", str(value))
    if isinstance(value, Opaque):
        return ("opaque", id(value)) if value.counts else None
    return value
