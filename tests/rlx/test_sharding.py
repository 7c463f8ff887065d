"""Meshes and shardings of graphs: stated, checked, printed, saved, and kept by passes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rlx
from rlx.errors import RunError, ShapeError, VerifyError
from rlx.ir.graph import Graph, Value
from rlx.ops.collective import AxisIndex, Psum, ShardingConstraint, ShardMap
from rlx.ops.control_flow import Cond
from rlx.ops.io import Input
from rlx.sharding import Mesh, P, Sharding, constrain, mesh_of, meshes, sharding_of, shardings

MESH = Mesh({"data": 4, "model": 2})


def product() -> Graph:
    b = rlx.GraphBuilder("product")
    x, w = b.input("x", "f32[8, 4]"), b.param("w", "f32[4, 6]")
    return b.build(x @ w)


def spread() -> Graph:
    specs = {"x": P("data"), "w": P(None, "model")}
    return product().with_shardings(specs, mesh=MESH, outputs=[P("data", "model")])


def test_shardings_are_stated_by_name() -> None:
    graph = spread()
    assert meshes(graph) == (MESH,)
    assert mesh_of(graph) == MESH
    assert rlx.Module.from_graph(graph).meshes == (MESH,)
    found = shardings(graph)
    assert found == {
        "x": Sharding(MESH, (("data",), ())),
        "w": Sharding(MESH, ((), ("model",))),
    }
    assert found["x"].shard_shape((8, 4)) == (2, 4)
    assert sharding_of(graph.outputs[0]) == Sharding(MESH, (("data",), ("model",)))
    assert mesh_of(product()) is None
    whole = graph.with_shardings({"x": None}, mesh=MESH)
    assert list(shardings(whole)) == ["w"]


def test_they_print_parse_save_and_load(tmp_path: Path) -> None:
    graph = spread()
    assert str(graph).splitlines()[1] == (
        '  input %x "x": f32[8, 4] {mesh = (("data", 4), ("model", 2)), sharding = (("data",), ())}'
    )
    assert rlx.same(rlx.parse(str(graph)), graph)
    rlx.save(graph, tmp_path / "spread.rlx")
    assert rlx.same(rlx.load(tmp_path / "spread.rlx"), graph)
    page = graph._repr_html_()
    assert "sharding" in page
    assert "data" in page
    assert not rlx.same(graph, product())


def test_values_do_not_depend_on_them() -> None:
    rng = np.random.default_rng()
    x = rng.standard_normal((8, 4)).astype(np.float32)
    w = rng.standard_normal((4, 6)).astype(np.float32)
    (wanted,) = rlx.interpret(product(), {"x": x}, {"w": w})
    (found,) = rlx.interpret(spread(), {"x": x}, {"w": w})
    np.testing.assert_array_equal(found, wanted)
    compiled = rlx.Session("interpret").compile(spread())
    compiled.set_param("w", w)
    np.testing.assert_allclose(compiled.run({"x": x})[0], wanted, rtol=1e-6)


def test_passes_keep_them() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[8, 4]")
    placed = constrain(x + 0.0 * 1.0, P("data"), MESH)
    again = constrain(constrain(placed, P("data"), MESH), P(None, "model"), MESH)
    graph = b.build(-again, constrain(rlx.constant(np.ones((4, 2), np.float32)), P(), MESH))
    graph = graph.with_shardings({"x": P("data", "model")}, mesh=MESH)
    session = rlx.Session("interpret")
    lowered = session.lower(graph, options=rlx.CompileOptions(validate=True)).graph
    kept = [n for n in lowered.nodes() if isinstance(n.op, ShardingConstraint)]
    assert len(kept) == 4
    assert shardings(lowered) == shardings(graph)


def test_symbolic_sizes_are_checked_when_they_are_bound() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[n, 4]")
    graph = b.build(x * 2.0).with_shardings({"x": P("data")}, mesh=MESH)
    bound = rlx.bind(graph, {"n": 12})
    assert sharding_of(bound.inputs[0]) == Sharding(MESH, (("data",), ()))
    message = (
        r"^input \[C4\]: axis 0 of 'x' is required to be divisible by 4, the size of 'data'; got "
        r"10\. Pad it to 12 \(devices hold equal parts, and the padding would be computed with\), "
        r"or leave the axis whole\."
    )
    with pytest.raises(ShapeError, match=message):
        rlx.bind(graph, {"n": 10})


@pytest.mark.parametrize(
    ("specs", "mesh", "message"),
    [
        ({"x": P("a")}, {"b": 2}, "the sharding of 'x' is required to name axes of the mesh (b), "
         "each at most once; axis 0 names 'a'. Correct P('a', None)."),
        ({"x": P(("b", "b"))}, {"b": 2}, "axis 0 names 'b' again. Correct P(('b', 'b'), None)."),
        ({"x": P("b", None, None)}, {"b": 2}, "with_shardings: 'x': a spec has at most an entry "
         "for each axis, here 2; got 3: P('b', None, None). Leave entries out."),
        ({"x": P(1)}, {"b": 2}, "with_shardings: 'x': an entry of a spec is required to be None, a "  # pyright: ignore[reportArgumentType]
         "name or several names; got 1. Name axes of the mesh."),
        ({"x": P((1,))}, {"b": 2}, "got (1,). Name axes of the mesh."),  # pyright: ignore[reportArgumentType]
        ({"x": "b"}, {"b": 2}, "with_shardings: 'x': a spec such as P('data', None) is required; "
         "got 'b'. Write P('b')."),
        ({"xs": P()}, {"b": 2}, "with_shardings: names of inputs and params are required ('x', "
         "'w'); got 'xs'. Did you mean 'x'?"),
        ({}, {"b": 0}, "Mesh: axes with names of their own and sizes ≥ 1 are required; got 'b'=0. "
         "Name each axis once, with letters, digits and _."),
        ({}, [("b", 2), ("b", 2)], "got 'b' twice. Name each axis once"),
        ({}, {}, "got none. Name each axis once"),
        ({}, {"b c": 2}, "got 'b c'. Name each axis once"),
        ({}, {3: 2}, "got 3. Name each axis once"),
        ({}, None, "Mesh: names and whole sizes of axes are required, such as {'data': 4, "
         "'model': 2}; got None. Name the axes."),
        ({}, {"b": 2.5}, "got {'b': 2.5}. Name the axes."),
        ({}, SimpleNamespace(shape={"b": 2}), "got SimpleNamespace. Pass {'b': 2}."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(specs: dict[str, object], mesh: object, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        product().with_shardings(specs, mesh=Mesh(mesh))  # pyright: ignore[reportArgumentType]
    assert message in str(caught.value)


def test_outputs_that_are_not_there_are_refused() -> None:
    with pytest.raises(ShapeError, match="a spec or None is required for each of 1 outputs; got 2"):
        product().with_shardings({}, mesh=MESH, outputs=[P(), P()])
    with pytest.raises(ShapeError, match="numbers of outputs below 1 are required; got 1"):
        product().with_shardings({}, mesh=MESH, outputs={1: P()})
    with pytest.raises(ShapeError, match="numbers of outputs below 1 are required; got '0'"):
        product().with_shardings({}, mesh=MESH, outputs={"0": P()})  # pyright: ignore[reportArgumentType]
    for wrong in (P("data"), "data", 3):
        with pytest.raises(ShapeError, match=r"in a list; got .*\. Write outputs=\[P\('data'\)\]"):
            product().with_shardings({}, mesh=MESH, outputs=wrong)  # pyright: ignore[reportArgumentType]


def test_meshes_of_two_sizes_do_not_meet() -> None:
    graph = product().with_shardings({"x": P("data")}, mesh=MESH)
    graph = graph.with_shardings({"w": P("m")}, mesh={"m": 2})
    with pytest.raises(ShapeError, match="meshes of one number of devices are required; got "):
        mesh_of(graph)
    with pytest.raises(VerifyError, match="got Mesh\\(data=4, model=2\\) and Mesh\\(m=2\\)"):
        rlx.verify(graph)


def test_meshes_and_specs_never_change() -> None:
    for thing in (MESH, P("data"), Sharding(MESH, ())):
        with pytest.raises(AttributeError, match="never changes"):
            thing.size = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert repr(MESH) == "Mesh(data=4, model=2)"
    assert repr(P("data", None, ("a", "b"))) == "P('data', None, ('a', 'b'))"
    assert repr(Sharding(MESH, (("data",), ()))) == "P('data', None) over Mesh(data=4, model=2)"
    assert len({MESH, Mesh({"data": 4, "model": 2}), Mesh({"model": 2, "data": 4})}) == 2
    assert len({P("data"), P("data"), P()}) == 2


def leaf(name: str, *shape: int) -> Value:
    made: Value = Input(name=name, dtype=rlx.DType.F32, shape=shape)()
    return made


def mapped(body: Graph) -> Graph:
    axes = (("data", 2),)
    x = leaf("x", 4)
    part = (("data",),)
    op = ShardMap(
        body=body, mesh=axes, manual=("data",), in_shardings=(part,), out_shardings=(part,)
    )
    return Graph([x], [], [op(x)])


def test_a_collective_that_one_shard_skips_is_an_error() -> None:
    axes = (("data", 2),)
    a, c, x = leaf("a", 2), leaf("c", 2), leaf("x", 2)
    meets = Graph([a], [], [Psum(mesh=axes, axes=("data",))(a)])
    skips = Graph([c], [], [c])
    where = AxisIndex(mesh=axes, axes=("data",))()
    body = Graph([x], [], [Cond(branches=(meets, skips))(where, x)])
    message = (
        "^shard_map: every shard is required to take part in each collective over 'data'; one "
        "ended without it. Let no shard skip a collective in a branch or a loop.$"
    )
    with pytest.raises(RunError, match=message):
        rlx.interpret(mapped(body), {"x": np.ones(4, np.float32)})


def test_a_collective_outside_of_a_shard_map_is_an_error() -> None:
    x = leaf("x", 2)
    graph = Graph([x], [], [Psum(mesh=(("data", 2),), axes=("data",))(x)])
    message = (
        "^psum: a place inside of a shard_map over 'data' is required, which has 2 shards. Put it "
        "into the body of a shard_map.$"
    )
    with pytest.raises(RunError, match=message):
        rlx.interpret(graph, {"x": np.ones(2, np.float32)})


def test_the_error_of_a_shard_is_the_error_of_the_whole() -> None:
    x = leaf("x", 2)
    y = Psum(mesh=(("data", 2),), axes=("data",))(x)
    body = Graph([x], [], [Psum(mesh=(("other", 2),), axes=("other",))(y)])
    with pytest.raises(RunError, match="a shard_map over 'other' is required"):
        rlx.interpret(mapped(body), {"x": np.ones(4, np.float32)})


def test_shards_compute_their_parts() -> None:
    x = leaf("x", 2)
    axes = (("data", 2),)
    number = AxisIndex(mesh=axes, axes=("data",))().convert(rlx.DType.F32)
    graph = mapped(Graph([x], [], [Psum(mesh=axes, axes=("data",))(x) * 10.0 + number]))
    data = np.random.default_rng().integers(0, 9, 4).astype(np.float32)
    (found,) = rlx.interpret(graph, {"x": data})
    both = 10 * (data[:2] + data[2:])
    np.testing.assert_array_equal(found, [*both, *(both + 1)])
    assert rlx.same(rlx.parse(str(graph)), graph)
