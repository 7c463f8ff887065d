"""A short table of what a graph holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlx.ir.graph import Graph, Value

_SHOWN = 20
"""Most inputs or outputs that are listed one by one."""


def summarise(graph: Graph) -> str:
    """Return plain text: inputs, outputs, params with their size, and how often each op occurs.

    Nodes and ops of inner graphs count once for each distinct graph.
    """
    graphs = graph.all_graphs()
    lines = [f"graph {graph.name!r}"]
    unused = set(unused_leaves(graph))
    lines += _rows(
        "inputs",
        [f"{v.name}: {v.type}{'  (unused)' if v in unused else ''}" for v in graph.inputs],
    )
    lines += _rows("outputs", [str(value.type) for value in graph.outputs])
    lines.append(f"  params   {_params(graph.params)}")
    if graph.effects:
        lines.append(f"  effects  {len(graph.effects)} chain{_plural(len(graph.effects))}")
    if graph.symbols:
        lines.append(f"  symbols  {', '.join(graph.symbols)}")
    nested = len(graphs) - 1
    inner = f" (with {nested} inner graph{_plural(nested)})" if nested else ""
    counts = Counter(node.op.op_name for g in graphs for node in g.nodes())
    lines.append(f"  nodes    {counts.total():,}{inner}")
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    name_width = max((len(name) for name, _ in rows), default=0)
    count_width = max((len(f"{count:,}") for _, count in rows), default=0)
    lines += [f"    {name:<{name_width}}  {count:>{count_width},}" for name, count in rows]
    return "\n".join(lines)


def unused_leaves(graph: Graph) -> list[Value]:
    """Inputs and params that nothing reads and that are no outputs, in order."""
    read = {value for node in graph.nodes() for value in node.inputs}
    read.update(graph.outputs)
    return [leaf for leaf in (*graph.inputs, *graph.params) if leaf not in read]


def _rows(title: str, entries: Sequence[str]) -> list[str]:
    shown = list(entries[:_SHOWN])
    if len(entries) > _SHOWN:
        shown.append(f"… and {len(entries) - _SHOWN:,} more")
    first = f"  {title:<8} "
    blank = " " * len(first)
    return [(blank if i else first) + entry for i, entry in enumerate(shown)] or [first + "none"]


def _params(params: Sequence[Value]) -> str:
    if not params:
        return "none"
    static = [leaf.type for leaf in params if leaf.type.is_static]
    elements = sum(t.nbytes // t.dtype.itemsize for t in static)
    text = f"{len(params):,} with {elements:,} elements, {_size(sum(t.nbytes for t in static))}"
    symbolic = len(params) - len(static)
    return f"{text}, without {symbolic:,} of symbolic shape" if symbolic else text


def _size(count: int) -> str:
    """Bytes in the largest unit that leaves at least one, of 1024 each."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count:,} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"
