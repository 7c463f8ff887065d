"""A graph as JSON for Model Explorer: scopes are layers, inner graphs are subgraphs."""

from __future__ import annotations

import json
from typing import Any

from rlx.ir.graph import Graph
from rlx.show.nodes import Row, graph_names, rows_of


def to_model_explorer(graph: Graph, *, indent: int | None = None) -> str:
    """Return a graph as Model Explorer's JSON: one collection of this graph and its inner ones.

    Args:
        graph: any graph.
        indent: blanks per level, None for one line.
    """
    names = graph_names(graph)
    collection = {"label": graph.name, "graphs": [_graph(g, names) for g in names]}
    return json.dumps([collection], indent=indent, ensure_ascii=False)


def _graph(graph: Graph, names: dict[Graph, str]) -> dict[str, Any]:
    place = {id(node): str(i) for i, node in enumerate(graph.nodes())}
    nodes = [_node(row, place, names) for row in rows_of(graph)]
    for i, value in enumerate(graph.outputs):
        edge = _edge(place[id(value.node)], value.index, 0)
        nodes.append(
            {
                "id": f"output_{i}",
                "label": f"output {i}",
                "namespace": "",
                "attrs": [{"key": "type", "value": str(value.type)}],
                "incomingEdges": [edge],
            }
        )
    return {"id": names[graph], "nodes": nodes}


def _node(row: Row, place: dict[int, str], names: dict[Graph, str]) -> dict[str, Any]:
    node = row.node
    attributes = [*row.attributes, ("family", row.family)]
    if node.location.file:
        attributes.append(("source", f"{node.location.file}:{node.location.line}"))
    leaf = node.op.op_name in ("input", "param")
    return {
        "id": place[id(node)],
        "label": f"{node.op.op_name} {row.results[0]}" if leaf else node.op.op_name,
        "namespace": node.location.label,
        "attrs": [{"key": name, "value": value} for name, value in attributes],
        "incomingEdges": [_edge(place[id(v.node)], v.index, i) for i, v in enumerate(node.inputs)],
        "outputsMetadata": [
            {
                "id": str(i),
                "attrs": [
                    {"key": "tensor_name", "value": name},
                    {"key": "tensor_shape", "value": str(type_)},
                ],
            }
            for i, (name, type_) in enumerate(zip(row.results, node.types, strict=True))
        ],
        "subgraphIds": [names[inner] for _, inner in row.inner],
        "style": {"borderColor": row.colour},
    }


def _edge(source: str, output: int, target: int) -> dict[str, str]:
    return {
        "sourceNodeId": source,
        "sourceNodeOutputId": str(output),
        "targetNodeInputId": str(target),
    }
