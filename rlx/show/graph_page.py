"""A graph as HTML for notebooks: foldable by scope, searchable, coloured by family of ops.

Nothing is loaded from elsewhere, and every text of the graph is escaped.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from typing import final

from rlx.ir.graph import Graph
from rlx.show.nodes import Row, graph_names, rows_of
from rlx.show.summary import summarise

MOST = 2000
"""Nodes of all graphs together that a page lists; the rest are counted."""

_CELL = "padding:1px 12px 1px 0;text-align:left;vertical-align:top;white-space:pre-wrap"
_HEADS = ("result", "op", "inputs", "attributes", "type", "source")
_SEARCH = (
    "const q=this.value.toLowerCase(),page=this.closest('.rlx-graph');"
    "page.querySelectorAll('tr.rlx-node').forEach(r=>{"
    "r.style.display=r.textContent.toLowerCase().includes(q)?'':'none'});"
    "page.querySelectorAll('details.rlx-scope').forEach(d=>{"
    "const any=[...d.querySelectorAll('tr.rlx-node')].some(r=>r.style.display!=='none');"
    "d.style.display=any?'':'none';if(q&&any)d.open=true});"
)


def graph_html(graph: Graph) -> str:
    """Return the page of a graph, those inside of its ops included."""
    names = graph_names(graph)
    budget = _Budget(MOST)
    parts = [
        '<div class="rlx-graph" style="font-family:ui-monospace,monospace;font-size:12px">',
        f"<details><summary><b>{_text(graph.name)}</b>: {graph.node_count(nested=True):,} nodes"
        f"</summary><pre>{_text(summarise(graph))}</pre></details>",
        '<input type="search" placeholder="search: op, name, type, file" '
        f'style="margin:4px 0;width:24em" oninput="{html.escape(_SEARCH)}">',
    ]
    parts += [_one(inner, names[inner], inner is graph, names, budget) for inner in names]
    if budget.left_out:
        parts.append(f"<p>{budget.left_out:,} more nodes are not listed; print(graph) has all.</p>")
    parts.append("</div>")
    return "\n".join(parts)


@final
class _Budget:
    """How many nodes may still be listed."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.left_out = 0

    def take(self, rows: list[Row]) -> list[Row]:
        shown = rows[: self.left]
        self.left -= len(shown)
        self.left_out += len(rows) - len(shown)
        return shown


def _one(graph: Graph, name: str, outermost: bool, names: dict[Graph, str], budget: _Budget) -> str:
    if budget.left == 0:
        budget.left_out += graph.node_count()
        return ""
    rows = budget.take(rows_of(graph))
    scopes = itertools.groupby(rows, key=lambda row: row.node.location.label)
    body = "\n".join(_scope(label, list(group), names) for label, group in scopes)
    outputs = ", ".join(str(value.type) for value in graph.outputs)
    title = f"{_text(name)} → {_text(outputs or 'nothing')}"
    state = " open" if outermost else ""
    return f'<details class="rlx-scope"{state}><summary>{title}</summary>{body}</details>'


def _scope(label: str, rows: list[Row], names: dict[Graph, str]) -> str:
    table = (
        f"<table><thead><tr>{''.join(_head(h) for h in _HEADS)}</tr></thead><tbody>"
        f"{''.join(_row(row, names) for row in rows)}</tbody></table>"
    )
    if not label:
        return table
    return (
        f'<details class="rlx-scope" open style="margin-left:1em"><summary>{_text(label)} '
        f"({len(rows):,})</summary>{table}</details>"
    )


def _row(row: Row, names: dict[Graph, str]) -> str:
    place = row.node.location
    source = f"{place.file}:{place.line}" if place.file else ""
    short = re.split(r"[/\\\\]", source)[-1]
    name = _text(row.node.op.op_name)
    op = f'<b style="color:{row.colour}" title="{_text(row.family)}">{name}</b>'
    cells = [
        _text(", ".join(row.results)),
        op,
        _text(", ".join(row.inputs)),
        "<br>".join(_extra(row, names)),
        _text(row.types),
        f'<span title="{_text(source)}">{_text(short)}</span>',
    ]
    return (
        '<tr class="rlx-node">' + "".join(f'<td style="{_CELL}">{c}</td>' for c in cells) + "</tr>"
    )


def _extra(row: Row, names: dict[Graph, str]) -> Iterator[str]:
    for name, value in row.attributes:
        yield f"{_text(name)} = {_text(value)}"
    for name, inner in row.inner:
        yield f"{_text(name)} = <i>{_text(names[inner])}</i>"


def _head(name: str) -> str:
    return f'<th style="{_CELL}">{_text(name)}</th>'


def _text(value: object) -> str:
    return html.escape(str(value))
