"""The summary's text."""

from __future__ import annotations

from rlx.ir.builder import GraphBuilder
from rlx.ir.text import parse
from rlx.session import Session


def test_summary() -> None:
    b = GraphBuilder("mlp")
    x = b.input("x", "f32[batch, 64]")
    w = b.param("w", "f32[64]")
    v = b.param("v", "bf16[1024, 1024]")
    graph = b.build(abs(-x), w, v)
    assert (
        graph.summary()
        == """graph 'mlp'
  inputs   x: f32[batch, 64]
  outputs  f32[batch, 64]
           f32[64]
           bf16[1024, 1024]
  params   2 with 1,048,640 elements, 2.0 MiB
  symbols  batch
  nodes    5
    param  2
    abs    1
    input  1
    neg    1"""
    )


def test_effects_and_inner_graphs() -> None:
    graph = parse(
        'graph @f "f" { input %x "x": f32[] %0 = neg(%x): f32[] return %0 }\n'
        'graph "g" { input %x "x": f32[] %t = create_token(): token\n'
        "%0 = call(%x) {body = @f}: f32[] return %0 effects %t }"
    )
    text = graph.summary()
    assert "effects  1 chain\n" in text
    assert "nodes    5 (with 1 inner graph)" in text
    assert "params   none" in text


def test_unused_inputs_are_marked_and_reported() -> None:
    """Field case H4."""
    b = GraphBuilder("g")
    x = b.input("x", "f32[10]")
    b.input("t", "f32[11]")
    graph = b.build(x)
    text = graph.summary()
    assert "x: f32[10]\n" in text
    assert "t: f32[11]  (unused)" in text
    report = Session("interpret").compile(graph).report()
    assert report.unused == ["t"]
    assert "  unused: t" in str(report)
    assert report.to_dict()["unused"] == ["t"]
