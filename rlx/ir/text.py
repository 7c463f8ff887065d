"""Graphs as text that people read and `parse` reads back, floats bit for bit.

```
graph @body "body" {
  input %x "x": f32[4]
  %0 = neg(%x): f32[4]
  return %0
}

graph "example" {
  where batch >= 2, batch <= 512
  input %x "x": f32[batch, 64]
  param %w "params/w": f32[64, 10]
  %0 = matmul(%x, %w): f32[batch, 10]
  %1:2 = top_k(%0) {k = 3, axis = 1}: (f32[batch, 3], i32[batch, 3])
  return %1#0, %1#1
}
```

Graphs inside attributes come first, each once, and are referred to as ``@name``. A node of another
version of its op than 1 is ``name.v2(…)``. ``where`` declares the bounds of symbols, which are ≥ 1
otherwise (``b >= -inf``: no bound); ``asked <batch-5>`` and ``keyed <batch>`` tell what a traced
function asked of sizes (`Graph`); ``effects %t`` names the last tokens. Attributes: ``true``,
``3``, ``1.5``, ``nan``, ``"text"``, ``x"00ff"`` or ``b64"…"`` (bytes), ``none``, ``Class.MEMBER``,
``f32`` (a dtype), ``<b*2>`` (a symbolic dim), ``f32[2] [1.0, 2.0]`` (an array), ``@graph``, and
tuples ``(1, (2,), ())``. Those equal to their default are left out, and so are live objects.
``#`` starts a comment. A first line ``format 1`` may give the version of this form.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, cast, final

from rlx.dims import DimExpr, Symbol
from rlx.dtypes import DType
from rlx.ir import attributes
from rlx.ir.attributes import Literal, Opaque
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.literals import data_text, float_text
from rlx.ir.location import Location
from rlx.ir.op import Op
from rlx.ir.scanner import quoted, quoted_bytes
from rlx.ir.text_parse import TEXT_VERSION as TEXT_VERSION
from rlx.ir.text_parse import parse as parse

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OP_NAME = re.compile(r"[^\W\d]\w*(?:\.\w+)*")


def print_graph(graph: Graph, *, locations: bool = False) -> str:
    """Return a graph as text that `parse` reads back to the same graph.

    Args:
        graph: any graph.
        locations: whether each node's line ends with the user's file and line.
    """
    graphs = graph.all_graphs()
    names: dict[int, str] = {}
    unique = _Names()
    for inner in graphs[:-1]:
        names[id(inner)] = unique.take(_stem(inner.name) or "graph")
    return "\n\n".join("\n".join(_lines(g, names, locations)) for g in graphs)


def clashing_symbols(nodes: Iterable[Node]) -> list[str]:
    """Return the names of symbols that nodes use with two declarations."""
    return _symbols(nodes)[1]


def _symbols(nodes: Iterable[Node]) -> tuple[dict[str, Symbol], list[str]]:
    """The declared symbols of types and attributes, and the names of those declared twice."""
    found: dict[str, Symbol] = {}
    clashes: list[str] = []
    for dim in _dims(nodes):
        for name, symbol in dim.polynomial.symbols.items():
            if found.setdefault(name, symbol) != symbol and name not in clashes:
                clashes.append(name)
    return found, clashes


@final
class _Names:
    """Names that are handed out once."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def take(self, stem: str) -> str:
        """Return the stem, or the stem with the next free number."""
        name = stem
        while name in self._counts:
            count = self._counts[stem] = self._counts[stem] + 1
            name = f"{stem}_{count}"
        self._counts[name] = 0
        return name


def _stem(name: str) -> str:
    """The last part of a name such as ``params/w`` if it is an identifier, else nothing."""
    last = re.split(r"[/.]", name[-200:])[-1]
    return last if _IDENTIFIER.fullmatch(last) and len(last) <= 40 else ""


def value_names(graph: Graph) -> dict[Value, str]:
    """What a graph's values are called: inputs and params by their names, others as printed."""
    shown = _node_names(graph)
    return {
        value: value.name if node.op.op_name in ("input", "param") else _value(value, shown)
        for node in graph.nodes()
        for value in node.results
    }


def _node_names(graph: Graph) -> dict[int, str]:
    """Names of nodes as printed, by the node's id."""
    values: dict[int, str] = {}
    unique = _Names()
    count = 0
    for node in graph.nodes():
        stem = ""
        if node.op.op_name in ("input", "param"):
            stem = _stem(str(node.op.attributes()["name"]))
        values[id(node)] = "%" + (unique.take(stem) if stem else f"{count}")
        count += not stem
    return values


def _lines(graph: Graph, names: dict[int, str], locations: bool) -> Iterator[str]:
    own = names.get(id(graph))
    yield f"graph {f'@{own} ' if own else ''}{quoted(graph.name)} {{"
    where = [
        part for s in sorted(_symbols(graph.nodes())[0].items()) for part in _declaration(s[1])
    ]
    if where:
        yield f"  where {', '.join(where)}"
    for word, dims in (("asked", graph.asked), ("keyed", graph.keyed)):
        if dims:
            yield f"  {word} {', '.join(f'<{dim}>' for dim in dims)}"
    values = _node_names(graph)
    for node in graph.nodes():
        place = _location(node.location) if locations else ""
        op = node.op
        if op.op_name in ("input", "param"):
            extra = _attributes(op, names, skip=("name", "dtype", "shape"))
            name = quoted(str(op.attributes()["name"]))
            yield f"  {op.op_name} {values[id(node)]} {name}: {node.types[0]}{extra}{place}"
            continue
        yield f"  {_node(node, values, names)}{place}"
    outputs = ", ".join(_value(v, values) for v in graph.outputs)
    yield f"  return {outputs}" if outputs else "  return"
    if graph.effects:
        yield f"  effects {', '.join(_value(v, values) for v in graph.effects)}"
    yield "}"


def _declaration(symbol: Symbol) -> Iterator[str]:
    if symbol.lower != 1:
        yield f"{symbol.name} >= {'-inf' if symbol.lower is None else symbol.lower}"
    if symbol.upper is not None:
        yield f"{symbol.name} <= {symbol.upper}"


def _location(location: Location) -> str:
    if not location:
        return ""
    place = f" {quoted(location.file)}:{location.line}" if location.file else ""
    return f" loc({quoted(location.label)}{place})"


def _node(node: Node, values: dict[int, str], names: dict[int, str]) -> str:
    op = node.op
    results = len(node.types)
    target = values[id(node)] + (f":{results}" if results != 1 else "")
    types = str(node.types[0]) if results == 1 else f"({', '.join(map(str, node.types))})"
    if op.op_name == "constant" and op.attribute_names == ("value",):
        return f"{target} = constant {data_text(op.attributes()['value'])}: {types}"
    name = op.op_name if _OP_NAME.fullmatch(op.op_name) else quoted(op.op_name)
    version = f".v{op.version}" if op.version != 1 else ""
    inputs = ", ".join([_value(v, values) for v in node.inputs])
    return f"{target} = {name}{version}({inputs}){_attributes(op, names)}: {types}"


def _value(value: Value, values: dict[int, str]) -> str:
    name = values[id(value.node)]
    return name if len(value.node.types) == 1 else f"{name}#{value.index}"


@lru_cache(maxsize=1024)
def _defaults(op: type[Op]) -> dict[str, Any]:
    fields = dataclasses.fields(op)  # pyright: ignore[reportArgumentType]
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def _attributes(op: Op, names: dict[int, str], skip: Iterable[str] = ()) -> str:
    if not op.attribute_names:
        return ""
    defaults = _defaults(type(op))
    shown: list[str] = []
    for name, value in op.attributes().items():
        if name in skip or isinstance(value, Opaque):
            continue
        if name in defaults and attributes.key(value) == attributes.key(
            attributes.normalise(name, defaults[name])
        ):
            continue
        shown.append(f"{name} = {_attribute(value, names)}")
    return f" {{{', '.join(shown)}}}" if shown else ""


def _attribute(value: Any, names: dict[int, str]) -> str:
    match value:
        case None | Opaque():
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return float_text(value)
        case str():
            return quoted(value)
        case bytes():
            return quoted_bytes(value)
        case DType():
            return value.label
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
        case DimExpr():
            return f"<{value}>"
        case Literal():
            return f"{value.type} {data_text(value)}"
        case Graph():
            return f"@{names[id(value)]}"
        case _:
            items = [_attribute(item, names) for item in cast("tuple[Any, ...]", value)]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


_WITHOUT_DIMS = frozenset({int, str, bool, float})


def _dims(nodes: Iterable[Node]) -> Iterator[DimExpr]:
    """Every distinct symbolic dim in types and attributes."""
    seen: set[DimExpr] = set()
    ops: set[int] = set()
    stack: list[Any] = []
    for node in nodes:
        for kind in node.types:
            if not _WITHOUT_DIMS.issuperset(map(type, kind.shape)):
                stack.extend(kind.shape)
        if node.op.attribute_names and id(node.op) not in ops:
            ops.add(id(node.op))
            for name in node.op.attribute_names:
                value = getattr(node.op, name, None)
                if type(value) is tuple:
                    if not _WITHOUT_DIMS.issuperset(map(type, cast("tuple[Any, ...]", value))):
                        stack.append(value)
                elif isinstance(value, DimExpr):
                    stack.append(value)
        while stack:
            item = stack.pop()
            if isinstance(item, tuple):
                stack.extend(cast("tuple[Any, ...]", item))
            elif isinstance(item, DimExpr) and item not in seen:
                seen.add(item)
                yield item
