"""LIR: schedule, manifest, fingerprint, and what the memory of a schedule comes to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlx
from rlx.errors import CompileError, UnboundDimError
from rlx.ir.graph import Graph
from rlx.ir.memory_plan import estimate, plan_arena
from rlx.ir.module import Module, Stage
from rlx.ir.plan import Implementation, Lir
from rlx.passes.legalize import legalize


def _lir(graph: Graph, platform: str = "numpy") -> Lir:
    return legalize(graph, lambda node: Implementation("rule", node.op.op_name), platform)


def _chain() -> Graph:
    """x → a → b → c; a and b can share no bytes, a and c can."""
    g = rlx.GraphBuilder("chain")
    x = g.input("x", "f32[10]")
    w = g.param("w", "f32[10]")
    a = x.exp()
    b = a + w
    c = b.tanh()
    return g.build(c.exp(), -x)


# Schedule, manifest and fingerprint.


def test_the_schedule_is_the_order_of_the_nodes() -> None:
    graph = _chain()
    lir = _lir(graph)
    assert lir.schedule == graph.nodes()
    done: set[int] = set()
    for node in lir.schedule:
        assert all(id(v.node) in done for v in node.inputs)
        done.add(id(node))


def test_the_manifest_names_what_crosses_the_boundary() -> None:
    lir = _lir(_chain())
    manifest = lir.manifest
    assert [(e.name, str(e.type)) for e in manifest.inputs] == [("x", "f32[10]")]
    assert [(e.name, str(e.type)) for e in manifest.params] == [("w", "f32[10]")]
    assert [e.name for e in manifest.outputs] == ["output_0", "output_1"]
    for entry, value in zip(manifest.outputs, lir.graph.outputs, strict=True):
        assert lir.schedule[entry.id] is value.node
    assert str(manifest) == (
        "inputs:\n  #0 x: f32[10]\nparams:\n  #1 w: f32[10]\n"
        "outputs:\n  #5 output_0: f32[10]\n  #6 output_1: f32[10]"
    )


def test_the_fingerprint_follows_graph_platform_and_kernels() -> None:
    graph = _chain()
    lir = _lir(graph)
    assert lir.fingerprint() == _lir(_chain()).fingerprint()
    assert lir.fingerprint() != _lir(graph, "cpu").fingerprint()

    def with_kernel(node: rlx.Node) -> Implementation:
        kernel = node.op.op_name == "tanh"
        return Implementation("kernel" if kernel else "rule", "tanh" if kernel else "rule")

    assert lir.fingerprint() != legalize(graph, with_kernel, "numpy").fingerprint()


def test_a_kernel_inside_a_loop_counts_for_the_fingerprint() -> None:
    b = rlx.GraphBuilder("step")
    body = b.build(b.input("c", "f32[3]").tanh())
    b = rlx.GraphBuilder("outer")
    graph = b.build(rlx.ops.Scan(body=body, length=2, num_carry=1)(b.input("c", "f32[3]")))

    def choose(kind: str) -> Lir:
        return legalize(
            graph,
            lambda node: Implementation(kind if node.op.op_name == "tanh" else "rule", "x"),
            "cpu",
        )

    assert choose("rule").fingerprint() != choose("kernel").fingerprint()


def test_symbolic_dims_are_told() -> None:
    g = rlx.GraphBuilder("g")
    x = g.input("x", "f32[n, m]")
    dynamic = _lir(g.build(x.exp()))
    assert dynamic.dynamic_symbols == ("m", "n")
    assert dynamic.has_dynamic_dims
    assert not dynamic.is_fully_static
    assert dynamic.memory({"n": 2, "m": 3}).peak == 2 * 2 * 3 * 4
    with pytest.raises(UnboundDimError):
        dynamic.memory()
    static = _lir(_chain())
    assert not static.has_dynamic_dims
    assert static.is_fully_static


# Memory.


def test_live_ranges_give_the_peak() -> None:
    memory = estimate(_chain())
    sizes = {b.name.partition(" ")[0]: (b.kind, b.nbytes) for b in memory.buffers}
    assert sizes == {
        "x": ("input", 40),
        "w": ("param", 40),
        "exp": ("temp", 40),
        "add": ("temp", 40),
        "tanh": ("temp", 40),
        "output_0": ("output", 40),
        "output_1": ("output", 40),
    }
    assert memory.by_kind == {"input": 40, "param": 40, "temp": 120, "output": 80}
    assert memory.total == 280
    assert memory.peak == 240  # two of the three temps at one time
    spans = {b.name.partition(" ")[0]: (b.first, b.last) for b in memory.buffers}
    assert spans["exp"] == (2, 3)
    assert spans["add"] == (3, 4)
    assert spans["x"] == (0, 7)
    assert str(memory) == (
        "peak 240 B of 280 B  (input 40 B  param 40 B  temp 120 B  output 80 B; 0 views)"
    )


def test_the_largest_buffers_carry_the_users_line() -> None:
    g = rlx.GraphBuilder("g")
    x = g.input("x", "f32[4]")
    wide = rlx.ops.Expand(shape=(4, 100))(x.reshape(4, 1))
    graph = g.build((wide + wide).sum(axis=(0, 1)))
    first, second = estimate(graph).largest(2)
    assert (first.nbytes, second.nbytes) == (1600, 1600)
    assert first.name.startswith("expand (test_plan.py:")
    assert second.name.startswith("add (test_plan.py:")


def test_views_own_nothing() -> None:
    g = rlx.GraphBuilder("g")
    x = g.input("x", "f32[6, 4]")
    made = x.exp()
    rows = rlx.ops.Narrow(axis=0, start=2, length=3)(made)
    flat = rows.reshape(12)
    same = rlx.ops.Convert(dtype=rlx.DType.F32)(flat)
    columns = rlx.ops.Narrow(axis=1, start=2, length=2)(made)
    sliced = rlx.ops.Slice(start_indices=(1, 0), limit_indices=(3, 4), strides=(1, 1))(rows)
    graph = g.build(-same, -columns, -sliced)
    memory = estimate(graph)
    nodes = graph.nodes()
    views = {nodes[i].op.op_name: place for i, place in memory.views.items()}
    root = nodes.index(made.node)
    assert views["narrow"] == (root, 2 * 4 * 4)
    assert views["reshape"] == (root, 2 * 4 * 4)
    assert views["slice"] == (root, (2 + 1) * 4 * 4)
    names = [b.name.partition(" ")[0] for b in memory.buffers]
    assert names.count("narrow") == 1  # the one of another axis
    (temp,) = [b for b in memory.buffers if b.name.startswith("exp")]
    assert temp.last == max(i for i, n in enumerate(nodes) if n.op.op_name == "neg")


def test_an_output_through_a_view_keeps_its_root() -> None:
    g = rlx.GraphBuilder("g")
    x = g.input("x", "f32[4]")
    memory = estimate(g.build(x.exp().reshape(2, 2)))
    assert [(b.kind, b.nbytes) for b in memory.buffers] == [("input", 16), ("output", 16)]


def test_a_loop_needs_what_its_body_needs_once() -> None:
    b = rlx.GraphBuilder("step")
    c = b.input("c", "f32[10]")
    body = b.build((c.exp() + c).tanh())
    b = rlx.GraphBuilder("outer")
    looped = rlx.ops.Scan(body=body, length=50, num_carry=1)(b.input("c", "f32[10]"))
    memory = estimate(b.build(looped))
    assert memory.nested == 80  # exp and add, at one time
    assert memory.peak == 40 + 40 + 80


def test_tokens_and_empty_arrays_need_nothing() -> None:
    g = rlx.GraphBuilder("g")
    x = g.input("x", "f32[0, 4]")
    assert estimate(g.build(x.exp())).total == 0


def _random_graph(rng: np.random.Generator) -> Graph:
    g = rlx.GraphBuilder("random")
    values = [g.input(f"x{i}", f"f32[{rng.integers(1, 40)}]") for i in range(3)]
    for _ in range(40):
        value = values[rng.integers(len(values))]
        other = values[rng.integers(len(values))]
        same = other.type == value.type
        values.append(value + other if same and rng.random() < 0.5 else value.exp())
    return g.build(*values[-8:])


@pytest.mark.parametrize("alignment", [1, 64, 256])
def test_no_two_live_buffers_overlap_in_the_arena(alignment: int, rng: np.random.Generator) -> None:
    saved = 0
    for _ in range(10):
        memory = estimate(_random_graph(rng))
        arena = plan_arena(memory, alignment)
        padded = [-(-b.nbytes // alignment) * alignment for b in memory.buffers]
        assert arena.bytes_saved == sum(padded) - arena.size
        saved += arena.bytes_saved
        assert memory.peak <= arena.size <= sum(padded)
        for (one, at), (two, there) in itertools.combinations(arena.offsets, 2):
            assert at % alignment == 0
            apart = at + one.nbytes <= there or there + two.nbytes <= at
            assert apart or one.last < two.first or two.last < one.first
    assert saved > 0


def test_the_arena_of_a_chain_reuses_the_first_temp() -> None:
    lir = _lir(_chain())
    arena = lir.arena(alignment=8)
    assert (arena.size, arena.bytes_saved) == (240, 40)
    assert lir.bytes_saved == 64  # of the default alignment


@pytest.mark.parametrize("alignment", [0, 3, -8])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    with pytest.raises(CompileError) as caught:
        _lir(_chain()).arena(alignment=alignment)
    assert str(caught.value) == (
        f"arena_alignment: a power of two is required, in bytes; got {alignment}. Use 64."
    )


def test_a_long_schedule_is_estimated_quickly() -> None:
    g = rlx.GraphBuilder("long")
    value = g.input("x", "f32[8]")
    for _ in range(20_000):
        value = value.exp()
    memory = estimate(g.build(value))
    assert memory.peak == 4 * 32  # input, output and two temps


# From a session and a module.


def test_a_session_lowers_graphs_and_modules() -> None:
    session = rlx.Session("interpret")
    graph = _chain()
    lir = session.lower(graph)
    assert session.lower(Module.from_graph(graph)).fingerprint() == lir.fingerprint()
    assert session.lower(Module.from_hir(graph)).fingerprint() == lir.fingerprint()
    module = Module.from_lir(lir)
    assert module.stage is Stage.LIR
    assert session.lower(module) is lir
    values = {"x": np.random.default_rng().normal(size=10).astype(np.float32)}
    weights = {"w": np.random.default_rng().normal(size=10).astype(np.float32)}
    compiled = session.compile(module)
    compiled.set_params(weights)
    for found, wanted in zip(
        compiled.run(values), rlx.interpret(graph, values, weights), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_lowering_needs_sizes_and_the_right_platform() -> None:
    session = rlx.Session("interpret")
    g = rlx.GraphBuilder("g")
    graph = g.build(g.input("x", "f32[n]").exp())
    with pytest.raises(CompileError) as caught:
        session.lower(graph)
    assert str(caught.value) == (
        "lower g: static shapes are required; n are symbolic. Bind them with "
        "CompileOptions(dim_binding={...})."
    )
    bound = session.lower(graph, options=rlx.CompileOptions(dim_binding={"n": 3}))
    assert bound.is_fully_static
    with pytest.raises(CompileError) as caught:
        session.lower(Module.from_lir(_lir(_chain(), "tpu")))
    assert str(caught.value) == (
        "compile: an LIR is for one platform; this one is for 'tpu' and the session's device is "
        "'interpret'. Compile its MIR instead."
    )
