"""A graph in Graphviz's language, and as SVG where its program ``dot`` is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from rlx.errors import RunError
from rlx.ir.graph import Graph, Value
from rlx.show.nodes import Row, graph_names, rows_of

_SECONDS = 120.0


def to_dot(graph: Graph) -> str:
    """Return a graph in Graphviz's language; graphs inside of ops are clusters."""
    names = graph_names(graph)
    numbers = {inner: i for i, inner in enumerate(names)}
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        '  node [shape=box, style=rounded, fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=8];',
    ]
    for inner, number in numbers.items():
        nested = inner is not graph
        if nested:
            lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(names[inner])};"]
        lines += [f"  {'  ' * nested}{line}" for line in _body(inner, number, numbers)]
        if nested:
            lines.append("  }")
    return "\n".join([*lines, "}", ""])


def to_svg(graph: Graph) -> str:
    """Return a graph as SVG text, drawn by Graphviz.

    Raises:
        RunError: Graphviz is not installed, or does not draw the graph.
    """
    program = shutil.which("dot")
    if program is None:
        raise RunError(
            "to_svg: Graphviz's program 'dot' is required; it is not on the path. Install the "
            "system's package graphviz, or use to_dot()."
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=to_dot(graph).encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"to_svg: Graphviz is required to draw {graph.node_count(nested=True):,} nodes within "
            f"{_SECONDS:.0f} s; it did not. Draw a part of the graph."
        ) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise RunError(f"to_svg: Graphviz is required to draw the graph; it says: {said}.")
    return done.stdout.decode()


def _body(graph: Graph, number: int, numbers: dict[Graph, int]) -> Iterator[str]:
    place = {id(node): f"g{number}_{i}" for i, node in enumerate(graph.nodes())}
    for row in rows_of(graph):
        ident = place[id(row.node)]
        yield f"{ident} [label={_label(row)}, color={_quoted(row.colour)}];"
        for value in row.node.inputs:
            yield f"{place[id(value.node)]} -> {ident} [label={_quoted(_edge(value))}];"
        for name, inner in row.inner:
            first = f"g{numbers[inner]}_0" if inner.nodes() else ""
            if first:
                yield f"{ident} -> {first} [style=dashed, label={_quoted(name)}];"
    for i, value in enumerate(graph.outputs):
        yield f"g{number}_out{i} [label={_quoted(f'output {i}')}, shape=ellipse];"
        yield f"{place[id(value.node)]} -> g{number}_out{i} [label={_quoted(_edge(value))}];"


def _edge(value: Value) -> str:
    return str(value.type)


def _label(row: Row) -> str:
    lines = [f"{', '.join(row.results)} = {row.node.op.op_name}"]
    lines += [f"{name} = {value}" for name, value in row.attributes[:6]]
    if row.node.location:
        lines.append(str(row.node.location))
    return _quoted("\n".join(lines))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
