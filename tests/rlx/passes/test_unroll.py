"""Loops: short scans written out, invariants computed before, long ones on GPUs noted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value, make_node
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify
from rlx.ops.control_flow import Scan, While
from rlx.ops.convert import OptimizationBarrier
from rlx.ops.dot import DotGeneral
from rlx.ops.io import Input
from rlx.ops.shape import BroadcastInDim
from rlx.passes import HoistInvariants, PassContext, UnrollScans


def leaf(name: str, *shape: int, dtype: DType = DType.F32) -> Value:
    made: Value = Input(name=name, dtype=dtype, shape=shape)()
    return made


def looped(length: int, *, reverse: bool = False) -> Graph:
    """h = tanh(w·h + x), stacked, with a result of the constant alone."""
    w, h, x = leaf("w", 4, 4), leaf("h", 4), leaf("x", 4)
    new = (w @ h + x).tanh()
    body = Graph([w, h, x], (), [new, new * 2.0, w.sum(axis=0)])
    b = rlx.GraphBuilder("rnn")
    given = [b.input("w", "f32[4, 4]"), b.input("h", "f32[4]"), b.input("xs", f"f32[{length}, 4]")]
    scan = Scan(body=body, length=length, num_consts=1, num_carry=1, reverse=reverse)
    return b.build(*make_node(scan, given).results)


def feeds(graph: Graph, rng: np.random.Generator) -> dict[str, Any]:
    return {v.name: (rng.standard_normal(v.type.shape) / 2).astype(v.dtype.numpy)  # type: ignore[arg-type]
            for v in graph.inputs}  # fmt: skip


def same_results(found: Graph, wanted: Graph, rng: np.random.Generator) -> None:
    given = feeds(wanted, rng)
    for got, want in zip(interpret(found, given), interpret(wanted, given), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_short_scan_is_written_out(reverse: bool, rng: np.random.Generator) -> None:
    graph = looped(5, reverse=reverse)
    ctx = PassContext()
    made = UnrollScans(max_length=5).run(graph, ctx)
    verify(made)
    assert len(made.all_graphs()) == 1
    assert ctx.notes == ["1 scans written out, 5 steps"]
    same_results(made, graph, rng)


def test_what_is_too_long_or_too_large_stays() -> None:
    graph = looped(6)
    assert UnrollScans(max_length=5).run(graph, PassContext()) is graph
    assert UnrollScans().run(graph, PassContext()) is graph
    long = looped(1000)
    assert UnrollScans(max_length=2000).run(long, PassContext()) is long
    symbolic = rlx.GraphBuilder("n")
    x = leaf("x")
    scan = Scan(body=Graph([x], (), [x]), length=rlx.dims.symbol("n"))
    built = symbolic.build(scan(symbolic.input("xs", "f32[n]")))
    assert UnrollScans(max_length=9).run(built, PassContext()) is built


def test_the_option(rng: np.random.Generator) -> None:
    graph = looped(4)
    session = rlx.Session("interpret")
    for longest, loops in ((0, 1), (3, 1), (4, 0)):
        options = rlx.CompileOptions(scan_unroll_max_length=longest)
        compiled = session.compile(graph, options=options)
        assert len(compiled.report().lir.graph.all_graphs()) - 1 == loops
        assert not compiled.report().ineffective
        given = feeds(graph, rng)
        for got, want in zip(compiled.run(given), interpret(graph, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_j3_many_tiny_steps_on_a_gpu_are_noted() -> None:
    c, x = leaf("c"), leaf("x")
    new = c * 0.5 + x
    b = rlx.GraphBuilder("j3")
    scan = Scan(body=Graph([c, x], (), [new]), length=10_000_000, num_carry=1)
    graph = b.build(scan(b.input("c", "f32[]"), b.input("xs", "f32[10000000]")))
    for platform, count in (("cuda", 1), ("rocm", 1), ("cpu", 0)):
        ctx = PassContext(platform=platform)
        assert UnrollScans().run(graph, ctx) is graph
        assert len(ctx.notes) == count
    ctx = PassContext(platform="cuda")
    UnrollScans().run(graph, ctx)
    assert ctx.notes[0].startswith(
        "scan of 10,000,000 steps with 2 flops per step at test_unroll.py:"
    )
    assert ctx.notes[0].endswith("each step starts kernels on a GPU; run it on the CPU?")


def hoisted(graph: Graph) -> tuple[Graph, list[str]]:
    ctx = PassContext()
    made = HoistInvariants().run(graph, ctx)
    verify(made)
    assert HoistInvariants().run(made, PassContext()) is made
    return made, ctx.notes


def inner_names(graph: Graph) -> set[str]:
    return {n.op.op_name for g in graph.all_graphs()[:-1] for n in g.nodes()}


def test_invariants_leave_a_scan(rng: np.random.Generator) -> None:
    w, v, h = leaf("w", 4, 4), leaf("v", 4, 4), leaf("h", 4)
    body = Graph([w, v, h], (), [((w @ v).exp() @ h).tanh(), (w @ v).sum(axis=0)])
    b = rlx.GraphBuilder("scan")
    given = [b.input("w", "f32[4, 4]"), b.input("v", "f32[4, 4]"), b.input("h", "f32[4]")]
    scan = Scan(body=body, length=3, num_consts=2, num_carry=1)
    graph = b.build(*make_node(scan, given).results)
    made, notes = hoisted(graph)
    assert notes == ["2 values are computed once instead of in every turn of a loop"]
    assert "exp" not in inner_names(made)
    assert {"exp", "matmul"} <= {n.op.op_name for n in made.nodes()}
    same_results(made, graph, rng)


def test_invariants_leave_a_while(rng: np.random.Generator) -> None:
    limit, n, h = leaf("limit"), leaf("n"), leaf("h", 4)
    cond = Graph([limit, n, h], (), [n < limit.exp()])
    w, n2, h2 = leaf("w", 4, 4), leaf("n"), leaf("h", 4)
    body = Graph([w, n2, h2], (), [n2 + 1.0, (w.tanh() @ h2).tanh()])
    b = rlx.GraphBuilder("while")
    given = [b.input("limit", "f32[]"), b.input("w", "f32[4, 4]"), b.input("n", "f32[]"),
             b.input("h", "f32[4]")]  # fmt: skip
    loop = While(cond=cond, body=body, cond_consts=1, body_consts=1)
    graph = b.build(*make_node(loop, given).results)
    made, notes = hoisted(graph)
    assert notes == ["2 values are computed once instead of in every turn of a loop"]
    assert "exp" not in inner_names(made)
    same_results(made, graph, rng)


def test_invariants_leave_nested_loops(rng: np.random.Generator) -> None:
    w, h = leaf("w", 4, 4), leaf("h", 4)
    inner = Graph([w, h], (), [(w.tanh() @ h).tanh()])
    w2, h2 = leaf("w", 4, 4), leaf("h", 4)
    again = Scan(body=inner, length=2, num_consts=1, num_carry=1)
    outer = Graph([w2, h2], (), [make_node(again, [w2, h2]).results[0]])
    b = rlx.GraphBuilder("nested")
    given = [b.input("w", "f32[4, 4]"), b.input("h", "f32[4]")]
    scan = Scan(body=outer, length=3, num_consts=1, num_carry=1)
    graph = b.build(*make_node(scan, given).results)
    made, _ = hoisted(graph)
    assert [n.op.op_name for n in made.nodes()].count("tanh") == 1
    same_results(made, graph, rng)


def test_what_is_cheap_large_or_pinned_stays() -> None:
    def loop(make: Any) -> Graph:
        w, h = leaf("w", 400), leaf("h", 400)
        body = Graph([w, h], (), [h + make(w)])
        b = rlx.GraphBuilder("stay")
        scan = Scan(body=body, length=3, num_consts=1, num_carry=1)
        return b.build(scan(b.input("w", "f32[400]"), b.input("h", "f32[400]")))

    def outer_product(w: Value) -> Value:
        wide = BroadcastInDim(shape=(400, 400), broadcast_dimensions=(0,))(w)
        made: Value = wide.tanh().sum(axis=1)
        return made

    for make in (lambda w: w.reshape(20, 20).reshape(400), lambda w: w,
                 lambda w: OptimizationBarrier()(w.tanh()) * 1.0):  # fmt: skip
        graph = loop(make)
        found = hoisted(graph)[0]
        if make(leaf("w", 400)).node.op.op_name == "mul":
            assert "optimization_barrier" in inner_names(found)
        else:
            assert found is graph
    made, _ = hoisted(loop(outer_product))
    assert "reduce_sum" in {n.op.op_name for n in made.nodes()}  # small again: worth it


def test_a_pipeline_keeps_loops_right(rng: np.random.Generator) -> None:
    graph = looped(7)
    options = rlx.CompileOptions(validate=True)
    compiled = rlx.Session("interpret").compile(graph, options=options)
    given = feeds(graph, rng)
    for got, want in zip(compiled.run(given), interpret(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    notes = [n for r in compiled.report().passes if r.name == "hoist-invariants" for n in r.notes]
    assert notes == ["1 values are computed once instead of in every turn of a loop"]


@pytest.mark.parametrize(
    ("rows", "dtype", "platform", "widened"),
    [
        (4, DType.BF16, "cpu", True),
        (1, DType.BF16, "cpu", False),
        (5, DType.BF16, "cpu", False),
        (4, DType.F16, "cpu", False),
        (4, DType.BF16, "cuda", False),
    ],
)
def test_few_rows_of_bf16_are_multiplied_in_f32_by_a_loop(
    rows: int, dtype: DType, platform: str, widened: bool, rng: np.random.Generator
) -> None:
    w, h = leaf("w", 8, 8, dtype=dtype), leaf("h", rows, 8, dtype=dtype)
    product = DotGeneral(lhs_contracting=(1,), rhs_contracting=(0,))(h, w)
    body = Graph([w, h], (), [product.tanh()])
    b = rlx.GraphBuilder("scan")
    given = [b.input("w", f"{dtype}[8, 8]"), b.input("h", f"{dtype}[{rows}, 8]")]
    scan = Scan(body=body, length=3, num_consts=1, num_carry=1)
    graph = b.build(*make_node(scan, given).results)
    made = HoistInvariants().run(graph, PassContext(platform=platform))
    verify(made)
    assert (made is not graph) == widened
    assert ("convert" in {n.op.op_name for n in made.nodes()}) == widened
    same_results(made, graph, rng)
    by_kernel = PassContext(platform=platform, has_kernel=lambda node: True)
    assert HoistInvariants().run(graph, by_kernel) is graph
