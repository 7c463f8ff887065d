"""localize_nan names the first culprit, what it read, its line and the step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rlx
from rlx.debug import localize_nan
from rlx.dtypes import DType
from rlx.errors import RunError
from rlx.ir.graph import Graph, Value, make_node
from rlx.ops.compare import Select
from rlx.ops.control_flow import Cond, Scan, While
from rlx.ops.io import Input
from rlx.ops.transcendental import Sin
from rlx.options.precision import PrecisionPolicy
from rlx.signature import flat_signature


def compile_(graph: Graph, **options: Any) -> rlx.CompiledGraph:
    return rlx.Session("interpret").compile(graph, options=rlx.CompileOptions(**options))


def f32(name: str, *shape: int) -> Value:
    made: Value = Input(name=name, dtype=DType.F32, shape=shape)()
    return made


def test_h1_the_log_is_named_and_not_the_product() -> None:
    b = rlx.GraphBuilder("h1")
    x, y = b.input("x", "f32[]"), b.input("y", "f32[]")
    inner = Sin()(x) - y * y
    log = inner.log()  # the line that is named
    found = localize_nan(compile_(b.build(log * 2.0)), np.float32(-2.0), np.float32(5.0))
    assert found is not None
    assert found.node.op.op_name == "log"
    assert found.operands[0].value == pytest.approx(-25.909298, abs=1e-5)
    first, second = str(found).split("\n")
    line = log.node.location.line
    assert first == f"log at test_nan.py:{line} makes the first NaN: f32[] is nan"
    assert second.startswith("  x: f32[] is -25.9092")


def test_only_what_reaches_a_result_is_named() -> None:
    b = rlx.GraphBuilder("masked")
    x = b.input("x", "f32[3]")
    safe = Select()(x > 0.0, x.log(), x)
    compiled = compile_(b.build(safe / safe))
    feed = np.array([1.0, -1.0, 0.0], np.float32)
    found = localize_nan(compiled, feed)
    assert found is not None
    assert found.node.op.op_name == "div"
    assert found.element == (0,) or found.element == (2,)
    assert localize_nan(compiled, np.array([2.0, -3.0, 4.0], np.float32)) is None


def test_an_input_that_holds_the_nan() -> None:
    b = rlx.GraphBuilder("given")
    x, w = b.input("x", "f32[2]"), b.param("w", "f32[2]")
    compiled = compile_(b.build((x + 1.0) * w))
    compiled.set_param("w", np.array([1.0, np.nan], np.float32))
    found = localize_nan(compiled, np.zeros(2, np.float32))
    assert found is not None
    line = w.node.location.line
    assert (
        str(found) == f"param 'w' at test_nan.py:{line} holds the first NaN: f32[2] at [1] is nan"
    )


def scan_of(body: Graph, length: int, *, reverse: bool = False) -> Graph:
    b = rlx.GraphBuilder("loop")
    c, xs = b.input("c", "f32[]"), b.input("xs", f"f32[{length}]")
    scan = Scan(body=body, length=length, num_carry=1, reverse=reverse)
    return b.build(*make_node(scan, [c, xs]).results)


@pytest.mark.parametrize("reverse", [False, True])
def test_inside_scan_the_step_is_named(reverse: bool) -> None:
    c, x = f32("c"), f32("x")
    carry = c + x.sqrt()
    graph = scan_of(Graph([c, x], (), [carry, carry]), 6, reverse=reverse)
    xs = np.ones(6, np.float32)
    xs[4] = -2.0
    found = localize_nan(compile_(graph), np.float32(0), xs)
    assert found is not None
    assert found.node.op.op_name == "sqrt"
    assert len(found.path) == 1
    assert found.path[0].startswith("step 4 of 6 of scan at test_nan.py:")
    assert f"in {found.path[0]} makes the first NaN" in str(found)
    assert found.operands[0].value == -2.0


def test_inside_while_and_cond() -> None:
    n, v = f32("n"), f32("v")
    cond = Graph([n, v], (), [n > 0.0])
    bad, good = f32("v"), f32("v")
    branches = (Graph([good], (), [good * 2.0]), Graph([bad], (), [bad.log()]))
    n2, v2 = f32("n"), f32("v")
    chosen = make_node(Cond(branches=branches), [n2 < 2.0, v2]).results[0]
    body = Graph([n2, v2], (), [n2 - 1.0, chosen])
    b = rlx.GraphBuilder("while")
    results = make_node(While(cond=cond, body=body), [b.input("n", "f32[]"), b.input("v", "f32[]")])
    found = localize_nan(compile_(b.build(*results.results)), np.float32(4), np.float32(-1))
    assert found is not None
    assert found.node.op.op_name == "log"
    assert [p.partition(" at ")[0] for p in found.path] == ["step 3 of while", "branch 1 of cond"]
    assert found.operands[0].value == -8.0


def test_an_overflow_of_f16_is_named() -> None:
    b = rlx.GraphBuilder("sum")
    x = b.input("x", "f32[65536]")
    graph = b.build(x.sum())
    ones = np.ones(65536, np.float32)
    half = compile_(graph, policy=PrecisionPolicy.ALWAYS_F16)
    assert np.isinf(half.run({"x": ones})[0])
    found = localize_nan(half, ones, infinities=True)
    assert found is not None
    assert (
        str(found)
        .split("\n")[0]
        .endswith("makes the first infinity: f16[] is inf (overflow: the largest f16 is 65504)")
    )
    assert "65536" in str(found)
    assert localize_nan(half, ones) is None
    mixed = compile_(graph, policy=PrecisionPolicy.AUTO_MIXED)
    assert mixed.run({"x": ones})[0] == 65536.0
    assert localize_nan(mixed, ones, infinities=True) is None


def test_a_trace_is_not_compiled() -> None:
    b = rlx.GraphBuilder()
    graph = b.build(b.input("x", "f32[2]").log())
    traced = SimpleNamespace(graph=graph, signature=flat_signature(graph), params={})
    with pytest.raises(RunError) as caught:
        localize_nan(cast("Any", traced), np.ones(2, np.float32))
    assert str(caught.value) == (
        "localize_nan: a compiled graph is required, with the arguments of a call; got "
        "SimpleNamespace. Compile it with rlx.Session(...).compile(...)."
    )


def test_symbolic_sizes_and_wrong_arguments() -> None:
    b = rlx.GraphBuilder("sym")
    x, w = b.input("x", "f32[n, 2]"), b.param("w", "f32[2]")
    compiled = compile_(b.build((x * w).log()))
    with pytest.raises(RunError, match=r"a compiled graph is required, .*; got function. Compile"):
        localize_nan(compile_, np.zeros((3, 2), np.float32))  # pyright: ignore[reportArgumentType]
    with pytest.raises(RunError) as caught:
        localize_nan(compiled, np.zeros((3, 2), np.float32))
    assert str(caught.value) == (
        "localize_nan: every param is required to be set; missing w. Use set_params."
    )
    compiled.set_param("w", np.ones(2, np.float32))
    with pytest.raises(RunError) as caught:
        localize_nan(compiled)
    assert str(caught.value) == "localize_nan: every input is required (x: f32[n, 2]); got 0."
    found = localize_nan(compiled, np.array([[1.0, 2.0], [3.0, -4.0]], np.float32))
    assert found is not None
    assert found.element == (1, 1)


def test_a_wrong_shape_is_refused() -> None:
    b = rlx.GraphBuilder("static")
    compiled = compile_(b.build(b.input("x", "f32[2]").log()))
    with pytest.raises(RunError) as caught:
        localize_nan(compiled, np.zeros((2, 2), np.float32))
    assert str(caught.value) == (
        "localize_nan: 'x' is required to be f32[2]; got the shape [2, 2]. Reshape it."
    )


def test_both_are_reached_from_rlx() -> None:
    assert callable(rlx.debug.bisect)
    assert rlx.debug.localize_nan is localize_nan
    assert {"bisect", "localize_nan"} <= set(dir(rlx.debug))
    with pytest.raises(AttributeError, match=r"module 'rlx.debug' has no attribute 'x'"):
        rlx.debug.x  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
