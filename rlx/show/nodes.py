"""What every picture of a graph shows of a node: names, attributes, family and colour."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast, final

from rlx.dtypes import DType
from rlx.ir.attributes import Literal, Opaque
from rlx.ir.graph import Graph, Node, inner_graphs
from rlx.ir.op import Op
from rlx.ir.text import value_names

_LONGEST = 120
"""Characters of one attribute's text."""

_COLOURS: dict[str, str] = {
    "io": "#57606a",
    "dot": "#0550ae",
    "convolution": "#0550ae",
    "attention": "#8250df",
    "normalization": "#116329",
    "activation": "#1a7f37",
    "reduction": "#953800",
    "sorting": "#953800",
    "indexing": "#9a6700",
    "shape": "#6e7781",
    "quantized": "#bf3989",
    "control_flow": "#cf222e",
    "external": "#cf222e",
    "collective": "#a40e26",
    "random": "#1b7c83",
}
_OTHER = "#24292f"


@final
@dataclass(frozen=True)
class Row:
    """One node as it is shown.

    Attributes:
        node: the node.
        results: names of its results, as in the printed graph.
        inputs: names of what it reads.
        attributes: name and short text of each attribute that is no graph.
        inner: graphs inside of the op, by the attribute's name.
    """

    node: Node
    results: tuple[str, ...]
    inputs: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    inner: tuple[tuple[str, Graph], ...]

    @property
    def family(self) -> str:
        """The family of the op."""
        return family_of(self.node.op)

    @property
    def colour(self) -> str:
        """A dark colour, for text on white."""
        return _COLOURS.get(self.family, _OTHER)

    @property
    def types(self) -> str:
        """Types of the results."""
        return ", ".join(str(t) for t in self.node.types)


def rows_of(graph: Graph) -> list[Row]:
    """The nodes of a graph in order, those of inner graphs left out."""
    names = value_names(graph)
    return [
        Row(
            node,
            tuple(names[v] for v in node.results),
            tuple(names[v] for v in node.inputs),
            tuple(_attributes(node.op)),
            _inner(node.op),
        )
        for node in graph.nodes()
    ]


def family_of(op: Op) -> str:
    """The family in which an op stands; the package's name for an op of another package."""
    parts = type(op).__module__.split(".")
    return parts[2] if parts[:2] == ["rlx", "ops"] and len(parts) > 2 else parts[0]


def graph_names(graph: Graph) -> dict[Graph, str]:
    """A name for a graph and each distinct graph inside of it, without repetition."""
    names: dict[Graph, str] = {}
    counts: dict[str, int] = {}
    taken: set[str] = set()
    for inner in (graph, *graph.all_graphs()[:-1]):  # the graph itself is the last of all
        name = inner.name
        while name in taken:
            counts[inner.name] = counts.get(inner.name, 1) + 1
            name = f"{inner.name}_{counts[inner.name]}"
        taken.add(name)
        names[inner] = name
    return names


def _inner(op: Op) -> tuple[tuple[str, Graph], ...]:
    if not inner_graphs(op):
        return ()
    found: list[tuple[str, Graph]] = []
    for name, value in op.attributes().items():
        if isinstance(value, Graph):
            found.append((name, value))
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            found += [(f"{name}[{i}]", g) for i, g in enumerate(items) if isinstance(g, Graph)]
    return tuple(found)


def _attributes(op: Op) -> list[tuple[str, str]]:
    skip = ("name", "dtype", "shape") if op.op_name in ("input", "param") else ()
    found: list[tuple[str, str]] = []
    for name, value in op.attributes().items():
        if name in skip or value is None or value == () or isinstance(value, Opaque | Graph):
            continue
        if isinstance(value, tuple) and any(
            isinstance(item, Graph) for item in cast("tuple[object, ...]", value)
        ):
            continue
        text = _text(cast("object", value))
        if len(text) > _LONGEST:
            text = text[: _LONGEST - 1] + "…"
        found.append((name, text))
    return found


def _text(value: object) -> str:
    if isinstance(value, Literal):
        if value.type.size == 1:
            return f"{value.type} {value.array.reshape(-1)[0]}"
        return str(value.type)
    if isinstance(value, enum.Enum) and not isinstance(value, DType):
        return value.name.lower()
    if isinstance(value, DType):
        return value.label
    if isinstance(value, tuple):
        # A long tuple is cut before its text is made.
        items = cast("tuple[object, ...]", value)[:_LONGEST]
        return f"({', '.join(_text(item) for item in items)})"
    return repr(value[: 2 * _LONGEST]) if isinstance(value, str | bytes) else str(value)
