"""Graphs as HTML, Graphviz text, SVG and Model Explorer's JSON; plots and the data behind them."""

from __future__ import annotations

import html.parser
import importlib.util
import json
import re
import shutil
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.cost_model import BackendCostModel, count_work, work_by_op
from rlx.errors import RunError
from rlx.ir import location
from rlx.ir.memory_plan import estimate
from rlx.ops.control_flow import Scan
from rlx.show import graph_page, plots
from rlx.show.nodes import graph_names, rows_of

EVIL = '<script>alert("x")</script>\\'


def _mlp() -> rlx.Graph:
    b = rlx.GraphBuilder("mlp")
    x, w = b.input("x", "f32[8, 16]"), b.param("layer/w", "f32[16, 4]")
    with b.scope("head"):
        y = (x @ w).softmax(axis=-1)
    return b.build(y, y.sum(axis=0))


def _evil() -> rlx.Graph:
    b = rlx.GraphBuilder(EVIL)
    x = b.input(EVIL, "f32[2]")
    with location.at(location.Location(file=f"/dir/{EVIL}.py", line=3, label=EVIL)):
        y = -x
    return b.build(y)


def _nested() -> rlx.Graph:
    def body(name: str) -> rlx.Graph:
        b = rlx.GraphBuilder(name)
        carry, step = b.input("carry", "f32[3]"), b.input("step", "f32[3]")
        return b.build(carry + step, carry * step)

    b = rlx.GraphBuilder("outer")
    start, xs = b.input("start", "f32[3]"), b.input("xs", "f32[5, 3]")
    first = Scan(body=body("step"), length=5, num_carry=1)(start, xs)
    second = Scan(body=body("step"), length=5, num_carry=1)(first[0], xs)
    return b.build(*first, *second)


class _Page(html.parser.HTMLParser):
    """Collects tags; a page whose tags do not nest is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _page(graph: rlx.Graph) -> tuple[str, _Page]:
    text: Any = graph._repr_html_()
    page = _Page()
    page.feed(text)
    page.close()
    assert not page.open
    return text, page


def test_the_page_has_names_types_sources_and_scopes() -> None:
    text, page = _page(_mlp())
    for shown in ("layer/w", "f32[16, 4]", "matmul", "softmax", "head (2)", "test_pictures.py:"):
        assert shown in text
    rows = [attributes for tag, attributes in page.seen if attributes.get("class") == "rlx-node"]
    assert len(rows) == _mlp().node_count()
    colours = set(re.findall(r'<b style="color:(#\w+)"', text))
    assert len(colours) > 2


def test_the_page_loads_nothing_and_escapes_everything() -> None:
    for graph in (_evil(), _nested()):
        text, page = _page(graph)
        assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.seen}
        assert not re.search(r"(?:src|href)\s*=|https?:|url\(", text)
    assert "&lt;script&gt;" in _page(_evil())[0]


def test_the_search_looks_at_rows_and_folds() -> None:
    (field,) = [a for tag, a in _page(_mlp())[1].seen if tag == "input"]
    script = field["oninput"] or ""
    assert "tr.rlx-node" in script
    assert "details.rlx-scope" in script
    assert script.count("{") == script.count("}")
    assert script.count("(") == script.count(")")


def test_inner_graphs_are_listed_once_with_names_of_their_own() -> None:
    graph = _nested()
    assert sorted(graph_names(graph).values()) == ["outer", "step", "step_2"]
    text, page = _page(graph)
    rows = [a for _, a in page.seen if a.get("class") == "rlx-node"]
    assert len(rows) == graph.node_count(nested=True)
    assert "body = <i>step</i>" in text
    assert "body = <i>step_2</i>" in text


def test_a_large_graph_is_cut_and_says_so() -> None:
    b = rlx.GraphBuilder("long")
    x = b.input("x", "f32[2]")
    for _ in range(graph_page.MOST + 10):
        x = -x
    text, page = _page(b.build(x))
    rows = [a for _, a in page.seen if a.get("class") == "rlx-node"]
    assert len(rows) == graph_page.MOST
    assert "11 more nodes are not listed; print(graph) has all." in text


def test_large_constants_show_their_type_only() -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[64]")
    graph = b.build(x + b.constant(np.arange(64, dtype=np.float32)) + b.constant(np.float32(2.5)))
    shown = [row.attributes for row in rows_of(graph) if row.node.op.op_name == "constant"]
    assert (("value", "f32[64]"),) in shown
    assert any("2.5" in value for row in shown for _, value in row)


def test_dot_has_every_node_edge_and_cluster() -> None:
    graph = _nested()
    text = graph.to_dot()
    assert text.startswith('digraph "outer" {')
    assert text.count("subgraph cluster_") == 2
    nodes = re.findall(r"^ +(g\d+_\d+) \[label=", text, re.M)
    assert len(nodes) == len(set(nodes)) == graph.node_count(nested=True)
    edges = re.findall(r"(g\d+_\d+) -> (g\d+_\d+) \[label=", text)
    wanted = sum(len(n.inputs) for g in graph.all_graphs() for n in g.nodes())
    assert len(edges) == wanted
    assert "f32[5, 3]" in text


def test_dot_quotes_what_names_hold() -> None:
    text = _evil().to_dot()
    strings = re.findall(r'"(?:[^"\\]|\\.)*"', text)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert any("alert" in s for s in strings)
    assert "alert" not in outside
    assert '"' not in outside


def test_svg_without_graphviz_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RunError) as info:
        _mlp().to_svg()
    assert str(info.value) == (
        "to_svg: Graphviz's program 'dot' is required; it is not on the path. Install the "
        "system's package graphviz, or use to_dot()."
    )


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
@pytest.mark.parametrize("make", [_mlp, _nested, _evil])
def test_graphviz_draws_it(make: Any) -> None:
    assert "<svg" in make().to_svg()


def test_a_graph_that_graphviz_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho wrong >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    with pytest.raises(RunError) as info:
        _mlp().to_svg()
    assert str(info.value) == "to_svg: Graphviz is required to draw the graph; it says: wrong."


def test_model_explorer_has_edges_types_scopes_and_subgraphs() -> None:
    ((collection,), graph) = json.loads(_nested().to_model_explorer()), _nested()
    assert [g["id"] for g in collection["graphs"]] == ["outer", "step", "step_2"]
    for found in collection["graphs"]:
        known = {node["id"] for node in found["nodes"]}
        assert len(known) == len(found["nodes"])
        for node in found["nodes"]:
            assert all(edge["sourceNodeId"] in known for edge in node["incomingEdges"])
    scans = [n for n in collection["graphs"][0]["nodes"] if n["label"] == "scan"]
    assert [n["subgraphIds"] for n in scans] == [["step"], ["step_2"]]
    second = {e["targetNodeInputId"]: e for e in scans[1]["incomingEdges"]}
    assert second["0"]["sourceNodeId"] == scans[0]["id"]
    assert graph.name == collection["label"]
    ((mlp,),) = [json.loads(_mlp().to_model_explorer())]
    (softmax,) = [n for n in mlp["graphs"][0]["nodes"] if n["label"] == "softmax"]
    assert softmax["namespace"] == "head"
    assert softmax["outputsMetadata"][0]["attrs"][1] == {
        "key": "tensor_shape",
        "value": "f32[8, 4]",
    }
    json.loads(_evil().to_model_explorer())


def test_the_memory_curve_peaks_where_the_estimate_says() -> None:
    b = rlx.GraphBuilder("chain")
    x = b.input("x", "f32[32, 32]")
    y = x @ x
    wide = b.constant(np.ones((32, 640), np.float32))
    graph = b.build(((y @ wide).tanh()).sum() + y.sum())
    found = estimate(graph)
    curve = plots.memory_curve(found)
    total = [sum(column) for column in zip(*curve.values(), strict=True)]
    assert max(total) == found.peak
    assert total[found.peak_at] == found.peak
    assert min(min(column) for column in curve.values()) >= 0


def test_the_roofline_counts_each_op() -> None:
    graph = _mlp()
    speeds = BackendCostModel(matmul_gflops=1, memory_gb_per_s=1000, dispatch_us=0)
    points = {p.op: p for p in plots.roofline(graph, speeds)}
    dot = points["dot_general"]
    assert dot.flops == 2 * 8 * 16 * 4
    assert dot.nbytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert dot.intensity == dot.flops / dot.nbytes
    assert dot.bound == "compute"
    assert points["exp"].bound == "memory"
    assert sum(p.nbytes for p in points.values()) == count_work(graph).nbytes
    assert set(work_by_op(graph)) == set(points)


def test_plots_without_matplotlib_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    with pytest.raises(RunError) as info:
        plots.plot_memory(_mlp())
    assert str(info.value) == (
        "plot: matplotlib is required; it is not installed. Run: pip install 'rlx-xla[plots]'"
    )


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_plots_are_drawn(tmp_path: Any) -> None:
    memory = plots.plot_memory(_mlp())
    memory.figure.savefig(tmp_path / "memory.png")
    assert "peak" in memory.get_title()
    roof = plots.plot_roofline(_mlp(), "tpu")
    roof.figure.savefig(tmp_path / "roofline.png")
    assert any("dot_general" in t.get_text() for t in roof.get_legend().get_texts())
    again = plots.plot_roofline(_mlp(), axes=roof)
    assert again is roof
    b = rlx.GraphBuilder("sums")
    plots.plot_roofline(b.build(b.input("x", "f32[4]").sum())).figure.savefig(tmp_path / "s.png")
