"""Equal blocks become one loop, exactly; what differs stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CompileError
from rlx.ir.graph import Graph, Value
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify
from rlx.ops.arithmetic import Sub
from rlx.passes import PassContext, RollBlocks

Block = Callable[[rlx.GraphBuilder, Value, int], Value]


def layer(b: rlx.GraphBuilder, x: Value, k: int) -> Value:
    w, v = b.param(f"w{k}", "f32[4, 8]"), b.param(f"v{k}", "f32[8, 4]")
    return x + ((x @ w).tanh() @ v) * 0.5


def stack(count: int, block: Block = layer) -> Graph:
    b = rlx.GraphBuilder("stack")
    x = b.input("x", "f32[3, 4]") * 2.0
    for k in range(count):
        x = block(b, x, k)
    return b.build(x.softmax(axis=-1))


def feeds(graph: Graph, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    def drawn(leaves: tuple[Value, ...]) -> dict[str, Any]:
        return {v.name: (rng.standard_normal(v.type.shape) / 2).astype(np.float32)  # type: ignore[arg-type]
                for v in leaves}  # fmt: skip

    return drawn(graph.inputs), drawn(graph.params)


def rolled(graph: Graph, blocks: int, rng: np.random.Generator) -> tuple[Graph, list[str]]:
    ctx = PassContext()
    made = RollBlocks(blocks=blocks).run(graph, ctx)
    verify(made)
    given = feeds(graph, rng)
    for got, want in zip(interpret(made, *given), interpret(graph, *given), strict=True):
        np.testing.assert_array_equal(got, want)
    return made, ctx.notes


def loops(graph: Graph) -> int:
    return sum(n.op.op_name == "scan" for n in graph.nodes())


@pytest.mark.parametrize("count", [4, 7])
def test_equal_blocks_become_a_scan(count: int, rng: np.random.Generator) -> None:
    graph = stack(count)
    made, notes = rolled(graph, 4, rng)
    assert loops(made) == 1
    (note,) = notes
    assert note.endswith("nodes are one loop")
    assert int(note.split()[0]) >= count - 1
    assert made.all_graphs()[0].node_count() < 20
    assert rlx.same(made, RollBlocks(blocks=4).run(graph, PassContext()))


def test_too_few_blocks_stay(rng: np.random.Generator) -> None:
    graph = stack(3)
    assert rolled(graph, 4, rng)[0] is graph


def test_a_shared_weight_is_a_constant_of_the_loop(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("shared")
    x, w = b.input("x", "f32[3, 4]"), b.param("w", "f32[4, 4]")
    for _ in range(6):
        x = (x @ w).tanh() * 0.9
    made, _ = rolled(b.build(x + 1.0), 4, rng)
    assert loops(made) == 1
    assert "concatenate" not in {n.op.op_name for n in made.nodes()}


def test_values_from_the_middle_are_stacked(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("taps")
    x = b.input("x", "f32[3, 4]")
    taps: list[Value] = []
    for k in range(6):
        x = layer(b, x, k)
        taps.append(x)
    made, _ = rolled(b.build(x, taps[2], Sub()(taps[1], taps[4])), 4, rng)
    assert loops(made) == 1


def test_two_carried_values(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("two")
    h, c = b.input("h", "f32[3, 4]"), b.input("c", "f32[3, 4]")
    for k in range(9):
        w = b.param(f"w{k}", "f32[4, 4]")
        c, h = c * 0.5 + (h @ w).tanh(), (c + h).tanh()
    made, _ = rolled(b.build(h, c), 4, rng)
    assert loops(made) == 1


def test_blocks_that_read_further_back_stay(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("far")
    first = b.input("x", "f32[3, 4]")
    history = [first, first.tanh()]
    for _ in range(6):
        history.append((history[-1] + history[-2]).tanh())
    graph = b.build(history[-1])
    rolled(graph, 4, rng)  # whatever is made of it computes the same


def test_blocks_of_other_sizes_stay(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("sizes")
    x = b.input("x", "f32[3, 4]")
    for k in range(6):
        w, v = b.param(f"w{k}", f"f32[4, {k + 2}]"), b.param(f"v{k}", f"f32[{k + 2}, 4]")
        x = (x @ w).tanh() @ v
    assert loops(rolled(b.build(x), 4, rng)[0]) == 0


def test_the_option_and_the_suggestion(rng: np.random.Generator) -> None:
    graph = stack(250)
    session = rlx.Session("interpret")
    plain = session.compile(graph)
    assert loops(plain.report().lir.graph) == 0
    notes = [n for r in plain.report().passes if r.name == "roll-blocks" for n in r.notes]
    (note,) = notes
    assert "equal blocks of" in note
    assert note.endswith("makes them one loop, which compiles faster")
    options = rlx.CompileOptions(roll_blocks=100, validate=True)
    compiled = session.compile(graph, options=options)
    assert loops(compiled.report().lir.graph) == 1
    inputs, params = feeds(graph, rng)
    compiled.set_params(params)
    np.testing.assert_allclose(
        compiled.run(inputs)[0], interpret(graph, inputs, params)[0], rtol=1e-5, atol=1e-6
    )
    for wrong in (-1, 1, True):
        with pytest.raises(CompileError) as caught:
            rlx.CompileOptions(roll_blocks=wrong)
        assert str(caught.value) == (
            f"CompileOptions.roll_blocks: required 0 or an int ≥ 2; got {wrong}."
        )
