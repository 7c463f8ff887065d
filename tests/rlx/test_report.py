"""A compile's report as text, HTML and JSON; what is foreign in it is escaped."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

import rlx
from rlx.compiled import CompiledGraph
from rlx.ir import location
from rlx.ir.location import Location
from rlx.passes.base import PassRecord
from rlx.report import CompileReport

EVIL = "<script>alert('x')</script>"


def _compiled(name: str = "mlp", **options: object) -> CompiledGraph:
    with location.at(Location("model.py", 3)):
        b = rlx.GraphBuilder(name)
        x = b.input("x", "f32[4, 64]")
        graph = b.build((x @ b.param("w", "f32[64, 10]")).softmax(axis=-1))
    chosen = rlx.CompileOptions.baseline().replace(**options)
    return rlx.Session("interpret").compile(graph, options=chosen)


def _report(**options: object) -> CompileReport:
    return _compiled(**options).report()


def test_the_text_has_every_section() -> None:
    text = str(_report())
    assert text.startswith("mlp on interpret\n  phases: ")
    for part in (
        "  params: 1, 2,560 bytes\n",
        "  estimate:\n    peak 3,904 B of 3,904 B  (input 1,024 B  param 2,560 B  temp 160 B  "
        "output 160 B; 0 views)\n",
        "             2,560 B  param    f32[64, 10] w\n",
        "               160 B  temp     f32[4, 10] matmul (model.py:3)\n",
        "  passes:\n",
        "  dispatch: prefer_native\n",
        "  implementations:\n",
        "         1 × softmax                  common      rule softmax",
    ):
        assert part in text
    assert "staging" not in text
    assert "without effect" not in text


def test_the_text_says_which_option_did_nothing() -> None:
    report = _report(arena_alignment=128)
    assert report.ineffective == [
        "arena_alignment=128 has no effect: XLA lays buffers out by itself."
    ]
    assert str(report).endswith(
        "\n  without effect: arena_alignment=128 has no effect: XLA lays buffers out by itself."
    )
    assert _report().ineffective == []


def test_the_text_shows_staging() -> None:
    report = dataclasses.replace(_report(), staging=["prepare: 3 nodes", "main: 2 nodes"])
    assert "  staging:\n    prepare: 3 nodes\n    main: 2 nodes" in str(report)
    assert "<summary>staging</summary>" in report._repr_html_()
    assert report.to_dict()["staging"] == ["prepare: 3 nodes", "main: 2 nodes"]


def test_a_cost_that_xla_does_not_know_is_left_out() -> None:
    report = dataclasses.replace(_report(), cost={"flops": 12.0, "bytes accessed": -1.0})
    assert "\n  cost: flops 12\n" in str(report)
    unknown = dataclasses.replace(report, cost={"flops": -1.0, "bytes accessed": -1.0})
    assert "cost:" not in str(unknown)


def test_json_holds_everything() -> None:
    report = _report(supported_ops={"softmax"} | {"dot_general"}, arena_alignment=128)
    found = json.loads(report.to_json())
    assert found == json.loads(json.dumps(report.to_dict()))
    assert (found["name"], found["device"]) == ("mlp", "interpret")
    assert found["params"] == {"count": 1, "bytes": 2560}
    assert found["estimate"]["largest"][0] == {
        "name": "w",
        "type": "f32[64, 10]",
        "bytes": 2560,
        "kind": "param",
    }
    assert found["dispatch"]["compile_ready"] is True
    assert found["dispatch"]["supported_claim_count"] == 2
    rows = {row["op"]: row for row in found["dispatch"]["summaries"]}
    assert rows["matmul"] == {
        "op": "matmul",
        "path": "rewritten",
        "kind": "decomposition",
        "implementation": "matmul",
        "count": 1,
        "refused": ["supported_ops: 'matmul' is not claimed"],
    }
    assert found["without_effect"] == report.ineffective
    assert len(found["fingerprint"]) == 64
    assert {p["name"] for p in found["passes"]} >= {"canonicalize"}
    assert "\n" not in report.to_json(indent=None)


def test_html_has_tables_and_no_text_from_outside_unescaped() -> None:
    page = _compiled(EVIL).report()._repr_html_()
    assert page.startswith('<div class="rlx-report">')
    assert page.count("<table>") == page.count("</table>") == 4
    assert page.count("<details") == page.count("</details>") == 3
    assert "matmul (model.py:3)" in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;" in page


def test_everything_in_the_html_is_escaped() -> None:
    report = _report()
    choice = dataclasses.replace(
        report.choices[0], op=EVIL, implementation=EVIL, refused=(EVIL,), kind=EVIL
    )
    record = PassRecord(EVIL, 0.0, 1, 2, True, (EVIL,))
    bad = dataclasses.replace(
        report,
        device=EVIL,
        phases={EVIL: 1.0},
        passes=[record],
        dispatch=dataclasses.replace(report.dispatch, summaries=(choice,)),
        memory={EVIL: 3},
        external={EVIL: 2},
        ineffective=[EVIL],
        staging=[EVIL],
    )
    page = bad._repr_html_()
    assert "<script" not in page
    tags = set(re.findall(r"</?([a-z]+)", page))
    assert tags == {
        "div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre",
        "span",
    }  # fmt: skip


def test_the_html_tells_the_paths_apart() -> None:
    page = _report(supported_ops={"softmax", "dot_general"})._repr_html_()
    assert '<span style="color:#9a6700">rewritten</span>' in page
    assert "supported_ops: &#x27;matmul&#x27; is not claimed" in page


@pytest.mark.parametrize("rows", [2, 5])
def test_the_report_of_a_symbolic_graph_is_of_its_last_sizes(rows: int) -> None:
    b = rlx.GraphBuilder("dyn")
    graph = b.build(b.input("x", "f32[n, 8]").exp())
    compiled = rlx.Session("interpret").compile(graph)
    compiled.run({"x": [[0.0] * 8] * rows})
    assert compiled.report().estimate.by_kind == {"input": rows * 32, "output": rows * 32}
