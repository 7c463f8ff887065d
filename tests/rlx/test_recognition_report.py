"""The report of recognition: counts, units that stay as ops, near misses; as text, HTML, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import rlx
from rlx import ops
from rlx.ir import location
from rlx.ir.graph import Value
from rlx.ir.location import Location
from rlx.ir.op import Op
from rlx.options.fusion import FusionOptions
from rlx.passes import PassContext, Recognize
from rlx.recognition_report import RecognitionReport

Built = tuple[Value, ...]


def _report(make: Callable[[rlx.GraphBuilder], Built], **options: object) -> RecognitionReport:
    with location.at(Location("model.py", 7, "<block>")):
        b = rlx.GraphBuilder("g")
        graph = b.build(*make(b))
    chosen = rlx.CompileOptions().replace(**options)
    return rlx.Session("numpy").compile(graph, options=chosen).report().recognition


def _everything(b: rlx.GraphBuilder) -> Built:
    x = b.input("x", "f32[4, 8]")
    good, bad = (x - x.max(1, keepdims=True)).exp(), x.exp()
    linear = (x @ b.param("w", "f32[8, 6]") + b.param("c", "f32[6]")).gelu()
    return good / good.sum(1, keepdims=True), bad / bad.sum(1, keepdims=True), linear


def test_the_text_counts_and_says_what_differed() -> None:
    report = _report(_everything)
    assert str(report) == (
        "softmax × 1\n"
        "linear (bias, gelu) × 1, left as ops\n"
        "near miss: softmax at <block> model.py:7: its exponentials are taken without subtracting "
        "a maximum, so they overflow"
    )
    (miss,) = report.misses
    assert (miss.pattern, miss.where) == ("softmax", "<block> model.py:7")
    assert report.of("linear") == report.of("linear (bias, gelu)") == report.of("softmax") == 1
    assert report.of("attention") == 0


def test_json() -> None:
    report = _report(_everything)
    found = json.loads(report.to_json())
    assert found == report.to_dict()
    assert found["counts"] == {"softmax": 1}
    assert found["units"] == {"linear (bias, gelu)": 1}
    assert found["misses"][0]["where"] == "<block> model.py:7"
    b = rlx.GraphBuilder("g")
    compiled = rlx.Session("numpy").compile(b.build(*_everything(b)))
    assert compiled.report().to_dict()["recognition"]["counts"] == {"softmax": 1}


def test_html_escapes_what_is_foreign() -> None:
    page = _report(_everything)._repr_html_()
    assert page.startswith('<table class="rlx-recognition">')
    assert "<td>softmax</td><td>1</td><td>one op</td>" in page
    assert "<td>linear (bias, gelu)</td><td>1</td><td>left as ops</td>" in page
    assert "&lt;block&gt; model.py:7" in page
    assert "<block>" not in page


def test_it_is_empty_where_nothing_was_looked_for() -> None:
    report = _report(_everything, fusion_opts=FusionOptions(skip_fusion=True))
    assert report == RecognitionReport()
    assert str(report) == "nothing was recognised"


def _halves(b: rlx.GraphBuilder) -> tuple[Value, Value]:
    x = b.input("x", "f32[4, 8]")
    return x.narrow(1, 0, 4), x.narrow(1, 4, 4)


def _projections(b: rlx.GraphBuilder, other: bool = False) -> tuple[Value, Value]:
    x = b.input("x", "f32[4, 8]")
    y = b.input("y", "f32[4, 8]") if other else x
    gate = x @ b.param("w", "f32[8, 6]") + b.param("c", "f32[6]")
    return gate, y @ b.param("v", "f32[8, 6]")


def _gated(
    activation: Op, parts: Callable[[rlx.GraphBuilder], tuple[Value, Value]]
) -> Callable[[rlx.GraphBuilder], Built]:
    def make(b: rlx.GraphBuilder) -> Built:
        gate, up = parts(b)
        curve = activation(gate)
        assert isinstance(curve, Value)
        return (up * curve,)

    return make


@pytest.mark.parametrize(
    ("make", "units"),
    [
        (_gated(ops.Silu(), _halves), {"swiglu": 1}),
        (_gated(ops.Gelu(), _halves), {"geglu": 1}),
        (_gated(ops.Relu(), _halves), {"reglu": 1}),
        (_gated(ops.Logistic(), _halves), {"glu": 1}),
        (_gated(ops.Silu(), _projections), {"linear (bias, silu)": 1, "swiglu": 1}),
        (_gated(ops.Exp(), _halves), {}),
    ],
)
def test_gated_units(make: Callable[[rlx.GraphBuilder], Built], units: dict[str, int]) -> None:
    assert _report(make).units == units


def test_gates_of_two_values_are_near_misses() -> None:
    report = _report(_gated(ops.Silu(), lambda b: _projections(b, other=True)))
    assert report.units == {"linear (bias, silu)": 1}
    (miss,) = report.misses
    assert str(miss) == (
        "near miss: swiglu at <block> model.py:7: gate and up are projections or parts of several "
        "values"
    )


def test_a_sum_that_is_used_elsewhere_is_a_near_miss() -> None:
    def make(b: rlx.GraphBuilder) -> Built:
        x = b.input("x", "f32[4, 8]")
        total = x @ b.param("w", "f32[8, 6]") + b.param("c", "f32[6]")
        return total.tanh(), total

    report = _report(make)
    assert report.units == {"linear (bias)": 1}
    assert [m.reason for m in report.misses] == [
        "its sum is used elsewhere, by a derivative or as a result"
    ]


def test_units_in_the_body_of_a_loop_count_once() -> None:
    b = rlx.GraphBuilder("body")
    x = b.input("x", "f32[4, 4]")
    body = b.build((x @ b.input("w", "f32[4, 4]") + b.input("c", "f32[4]")).relu())
    b = rlx.GraphBuilder("g")
    leaves = [b.input("x", "f32[4, 4]"), b.input("w", "f32[4, 4]"), b.input("c", "f32[4]")]
    call = ops.Call(body=body, name="layer")
    made = [v if isinstance(v, Value) else v[0] for v in (call(*leaves), call(*leaves))]
    ctx = PassContext()
    Recognize().run(b.build(*made), ctx)
    assert ctx.notes == ["linear (bias, relu) × 1, left as ops"]
