"""Puts numbers (or other dims) in place of symbols, in types and in attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlx import dims
from rlx.dims import DimBinding, DimExpr
from rlx.errors import DimError, did_you_mean
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.questions import check_answers
from rlx.types import Dim, Shape


def bind(graph: Graph, binding: DimBinding | Mapping[str, Dim]) -> Graph:
    """Return the graph with symbols replaced; symbols that the binding lacks stay.

    Every attribute that is a dim or holds dims is bound, inner graphs included, and every type is
    inferred again.

    Raises:
        DimError: the binding names a symbol that the graph does not have, or a size below the
            symbol's lower bound.
        ShapeError: an op refuses the sizes.
    """
    if not isinstance(cast("object", binding), Mapping | DimBinding):
        raise DimError(
            "bind: a mapping (symbol → size) or a DimBinding is required; "
            f"got {type(binding).__name__}."
        )
    _check_graph("bind", graph)
    sizes: dict[str, Dim] = dict(binding.items())
    known = _all_symbols(graph)
    unknown = [name for name in sizes if name not in known]
    if unknown:
        raise DimError(
            f"bind: the graph's symbols are {', '.join(known) or 'none'}; got {unknown[0]!r}."
            f"{did_you_mean(unknown[0], known)}"
        )
    wrong = [n for n, d in sizes.items() if type(d) is int and d < 0]
    if wrong:
        raise DimError(f"bind: sizes are required to be ≥ 0; got {wrong[0]} = {sizes[wrong[0]]}.")
    if not known:
        return graph
    done: dict[int, Graph] = {}
    for inner in graph.all_graphs():
        done[id(inner)] = _bind_one(inner, sizes, done)
    return done[id(graph)]


def infer_bindings(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> DimBinding:
    """Sizes of the graph's symbols from actual shapes of its inputs and params, by name.

    Args:
        graph: a graph with symbolic dims.
        shapes: one shape per input (params may be left out).

    Raises:
        DimError: two inputs disagree (both are named), or a size fits no binding.
    """
    _check_graph("infer_bindings", graph)
    if not isinstance(cast("object", shapes), Mapping):
        raise DimError(
            "infer_bindings: a mapping (name of an input → shape) is required; got "
            f"{type(shapes).__name__}."
        )
    declared: list[tuple[str, Shape]] = [
        (v.name, v.type.shape) for v in (*graph.inputs, *graph.params) if v.name in shapes
    ]
    return dims.infer_bindings(declared, shapes)


def bind_shapes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph for actual shapes of its inputs and params, by name.

    Raises:
        SizesError: the shapes contradict each other, or the traced function may do something else
            for them than the graph (`Graph.asked`, `Graph.keyed`).
    """
    if not graph.symbols:
        return graph
    sizes = infer_bindings(graph, shapes)
    check_answers(graph, sizes)
    return bind(graph, sizes)


def _check_graph(where: str, graph: object) -> None:
    if not isinstance(graph, Graph):
        raise DimError(
            f"{where}: a Graph is required; got {type(graph).__name__}. For a traced function give "
            "traced.graph."
        )


def _all_symbols(graph: Graph) -> tuple[str, ...]:
    """Symbols of every type and attribute, inner graphs included."""
    found: set[str] = set()
    for inner in graph.all_graphs():
        for node in inner.nodes():
            for type_ in node.types:
                if not type_.is_static:
                    found.update(type_.symbols)
            for value in node.op.attributes().values():
                found.update(_symbols_in(value))
    return tuple(sorted(found))


def _symbols_in(value: Any) -> tuple[str, ...]:
    if isinstance(value, DimExpr):
        return dims.symbols(value)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        return tuple(name for item in items for name in _symbols_in(item))
    return ()


def _bind_one(graph: Graph, sizes: Mapping[str, Dim], done: Mapping[int, Graph]) -> Graph:
    new: dict[Value, Value] = {}
    for node in graph.nodes():
        attributes = node.op.attributes()
        changes = {
            name: bound
            for name, value in attributes.items()
            if (bound := _bind_attribute(value, sizes, done)) is not value
        }
        moved = any(v in new for v in node.inputs)
        if not changes and not moved:
            continue
        op = node.op.replace(**changes) if changes else node.op
        made: Node = make_node(op, [new.get(v, v) for v in node.inputs], node.location)
        new.update(zip(node.results, made.results, strict=True))
    if not new:
        return graph
    return Graph(
        [new.get(v, v) for v in graph.inputs],
        [new.get(v, v) for v in graph.params],
        [new.get(v, v) for v in graph.outputs],
        [new.get(v, v) for v in graph.effects],
        name=graph.name,
        asked=_left(graph.asked, sizes),
        keyed=_left(graph.keyed, sizes),
    )


def _left(questions: Sequence[DimExpr], sizes: Mapping[str, Dim]) -> list[DimExpr]:
    """Questions about symbols that stay; whoever binds the others takes the graph as it is."""
    bound = [dims.substitute(dim, sizes) for dim in questions]
    return [dim for dim in bound if isinstance(dim, DimExpr)]


def _bind_attribute(value: Any, sizes: Mapping[str, Dim], done: Mapping[int, Graph]) -> Any:
    if isinstance(value, DimExpr):
        return dims.substitute(value, sizes)
    if isinstance(value, Graph):
        return done.get(id(value), value)
    if isinstance(value, tuple):
        items: tuple[Any, ...] = tuple(_bind_attribute(v, sizes, done) for v in value)  # pyright: ignore[reportUnknownVariableType]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value
