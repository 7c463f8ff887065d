"""StableHLO from outside becomes a graph that computes what JAX computes."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import rlx
import rlx_xla
from rlx.errors import CompileError, FormatError, RlxError, TraceError
from rlx.sharding import Mesh, Sharding, meshes, sharding_of, shardings
from rlx_xla._jax_compat import mlir
from rlx_xla.tracing.stablehlo import source
from tests.rlx_xla.stablehlo_cases import ALLOWED, CASES, EXTERNAL, M, X


def run(graph: rlx.Graph, arguments: Any) -> list[np.ndarray]:
    leaves = [np.asarray(a) for a in jax.tree.leaves(arguments)]
    feeds = dict(zip([v.name for v in graph.inputs], leaves, strict=True))
    return rlx.Session("cpu").compile(graph).run(feeds)


def assert_close(found: list[np.ndarray], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for lhs, rhs in zip(found, map(np.asarray, wanted), strict=True):
        assert (lhs.dtype, lhs.shape) == (rhs.dtype, rhs.shape)
        if rhs.dtype.kind not in "fcV":
            np.testing.assert_array_equal(lhs, rhs)
            continue
        bound = 2e-2 if rhs.dtype.itemsize == 2 else 2e-5
        wide = "c16" if rhs.dtype.kind == "c" else "f8"
        np.testing.assert_allclose(lhs.astype(wide), rhs.astype(wide), rtol=bound, atol=bound)


def externals(graph: rlx.Graph) -> list[str]:
    nodes = [n for g in graph.all_graphs() for n in g.nodes()]
    return sorted(n.op.attributes()["name"] for n in nodes if n.op.op_name == "external")


def text_of(fn: Any, *arguments: Any) -> str:
    return jax.jit(fn, keep_unused=True).lower(*arguments).as_text()


def imported(body: str, **options: Any) -> rlx.Graph:
    return rlx_xla.from_stablehlo(f"module @m {{\n{body}\n}}", **options)


@pytest.mark.parametrize("name", CASES)
def test_import_computes_what_jax_computes(name: str) -> None:
    fn, arguments = CASES[name]
    jitted = jax.jit(fn, keep_unused=True)
    allowed = ALLOWED.get(name, frozenset())
    graph = rlx_xla.from_stablehlo(jitted.lower(*arguments).as_text(), allow_custom_calls=allowed)
    rlx.verify(graph)
    assert externals(graph) == EXTERNAL.get(name, [])
    wanted = jax.tree.leaves(jitted(*arguments))
    assert_close(run(graph, arguments), wanted)
    again = rlx_xla.from_stablehlo(rlx_xla.stablehlo(graph), allow_custom_calls=allowed)
    assert_close(run(again, arguments), wanted)


def test_every_kind_of_source() -> None:
    def fn(x: Any, m: Any) -> Any:
        return lax.erf(x @ m)

    lowered = jax.jit(fn).lower(X, M)
    module = mlir.parse_module(lowered.as_text())
    exported = export.export(jax.jit(fn))(X, M)
    wanted = [np.asarray(jax.jit(fn)(X, M))]
    sources = {
        "text": lowered.as_text(),
        "text as bytes": lowered.as_text().encode(),
        "bytecode": mlir.module_bytecode(module),
        "artifact": mlir.to_portable(module),
        "exported": exported,
        "export file": exported.serialize(),
    }
    for kind, found in sources.items():
        graph = rlx_xla.from_stablehlo(found)
        assert_close(run(graph, (X, M)), wanted)
        assert not externals(graph), kind
        if "export" in kind:
            assert [v.name for v in graph.inputs] == ["x", "m"]


def test_export_for_several_platforms_chooses_by_platform() -> None:
    def fn(x: Any) -> Any:
        return lax.platform_dependent(x, cpu=lambda a: a + 1, tpu=lambda a: a - 1)

    exported = export.export(jax.jit(fn), platforms=["tpu", "cpu"])(X)
    graph = rlx_xla.from_stablehlo(exported.serialize())
    assert [v.name for v in graph.inputs] == ["x"]
    assert_close(run(graph, (X,)), [X + 1])


def test_dynamic_shapes_need_types() -> None:
    (b,) = export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, 8), jnp.float32)
    exported = export.export(jax.jit(lambda x: jnp.concatenate([x, x]).reshape(-1) + 1))(spec)
    with pytest.raises(TraceError, match=r"must have static shapes; found 0: tensor<\?x8xf32>"):
        rlx_xla.from_stablehlo(exported)
    graph = rlx_xla.from_stablehlo(exported, shapes=["f32[4, 8]"])
    assert_close(run(graph, (X,)), [np.concatenate([X, X]).reshape(-1) + 1])
    with pytest.raises(TraceError, match="entry 0 is 'f32\\[b, 8\\]'"):
        rlx_xla.from_stablehlo(exported, shapes=["f32[b, 8]"])
    with pytest.raises(FormatError, match="Check that shapes"):
        rlx_xla.from_stablehlo(exported, shapes=["f32[4, 9]"])


def test_names_and_locations() -> None:
    def model(params: Any, x: Any) -> Any:
        with jax.named_scope("encoder"):
            return jnp.tanh(x @ params["w"])

    text = jax.jit(model).lower({"w": M}, X).as_text(debug_info=True)
    graph = rlx_xla.from_stablehlo(text)
    assert graph.name == "model"
    assert [v.name for v in graph.inputs] == ["params/w", "x"]
    where = graph.outputs[0].node.location
    assert where.label == "encoder"
    assert where.file.endswith("test_from_stablehlo.py")
    plain = rlx_xla.from_stablehlo(text_of(lambda a, b: a + b, X, X))
    assert len({v.name for v in plain.inputs}) == 2


def test_functions_stay_calls_and_are_shared() -> None:
    @jax.jit
    def block(x: Any) -> Any:
        return jnp.sin(x) * jnp.cos(x) + 1

    graph = rlx_xla.from_stablehlo(text_of(lambda x: block(block(x)), X))
    bodies = [n.op.attributes()["body"] for n in graph.nodes() if n.op.op_name == "call"]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]


def test_an_entry_by_name() -> None:
    body = (
        "func.func public @other(%a: tensor<3xf32>) -> tensor<3xf32> { return %a : tensor<3xf32> }"
    )
    assert imported(body, name="other").inputs[0].name == "arg0"
    with pytest.raises(FormatError, match="a function @main with a body; it has @other"):
        imported(body)


def test_everything_that_cannot_be_imported_is_listed_at_once() -> None:
    body = """
    func.func public @main(%a: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.custom_call @first(%a) : (tensor<3xf32>) -> tensor<3xf32>
      %1 = stablehlo.custom_call @first(%0) : (tensor<3xf32>) -> tensor<3xf32>
      %2 = stablehlo.custom_call @first(%a) : (tensor<3xf32>) -> tensor<3xf32>
      %3 = stablehlo.custom_call @second(%a) : (tensor<3xf32>) -> tensor<3xf32>
      return %1 : tensor<3xf32>
    }"""
    with pytest.raises(TraceError) as caught:
        imported(body)
    message = str(caught.value)
    assert "3 operations have none" in message
    assert "2 × stablehlo.custom_call: target 'first'" in message
    assert "allow_custom_calls={'second'}" in message
    assert externals(imported(body, allow_custom_calls={"first", "second"})) == ["first"] * 2


def test_callbacks_are_refused_even_when_they_are_allowed() -> None:
    text = text_of(lambda x: jax.pure_callback(np.sin, x, x), X)
    with pytest.raises(TraceError, match="calls a Python function by its number"):
        rlx_xla.from_stablehlo(text, allow_custom_calls={"xla_ffi_python_cpu_callback"})


def test_case_takes_the_last_branch_for_a_negative_index() -> None:
    body = """
    func.func public @main(%i: tensor<i32>) -> tensor<i32> {
      %0 = "stablehlo.case"(%i) ({
        %1 = stablehlo.constant dense<10> : tensor<i32>
        stablehlo.return %1 : tensor<i32>
      }, {
        %1 = stablehlo.constant dense<20> : tensor<i32>
        stablehlo.return %1 : tensor<i32>
      }, {
        %1 = stablehlo.constant dense<30> : tensor<i32>
        stablehlo.return %1 : tensor<i32>
      }) : (tensor<i32>) -> tensor<i32>
      return %0 : tensor<i32>
    }"""
    graph = imported(body)
    for index, wanted in ((-1, 30), (0, 10), (1, 20), (2, 30), (9, 30)):
        assert int(run(graph, (np.int32(index),))[0]) == wanted


def test_ops_without_a_form_in_rlx_still_run_and_are_saved(tmp_path: Any) -> None:
    body = """
    func.func public @main(%a: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>) {
      %two = stablehlo.constant dense<2.0> : tensor<f32>
      %0 = stablehlo.cholesky %a, lower = true : tensor<4x4xf32>
      %1 = "stablehlo.map"(%0) <{dimensions = array<i64: 0, 1>}> ({
      ^bb0(%x: tensor<f32>):
        %m = stablehlo.multiply %x, %two : tensor<f32>
        stablehlo.return %m : tensor<f32>
      }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %2 = stablehlo.constant dense<0> : tensor<4xi32>
      %3 = "stablehlo.torch_index_select"(%1, %2) <{batch_dims = 0 : i64, dim = 0 : i64}>
        : (tensor<4x4xf32>, tensor<4xi32>) -> tensor<4x4xf32>
      %4 = stablehlo.slice %3 [1:2, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
      %5 = stablehlo.reshape %4 : (tensor<1x4xf32>) -> tensor<4xf32>
      return %1, %5 : tensor<4x4xf32>, tensor<4xf32>
    }"""
    graph = imported(body)
    names = ["stablehlo.cholesky", "stablehlo.map", "stablehlo.torch_index_select"]
    assert externals(graph) == names
    matrix = X @ X.T + np.eye(4, dtype=np.float32)
    factor = 2 * np.linalg.cholesky(matrix)
    wanted = [factor, factor[0]]
    assert_close(run(graph, (matrix,)), wanted)
    assert_close(rlx.interpret(graph, {graph.inputs[0].name: matrix}), wanted)
    rlx.save(graph, tmp_path / "graph.rlx")
    assert_close(run(rlx.load(tmp_path / "graph.rlx"), (matrix,)), wanted)


SHARDED = """
    sdy.mesh @mesh = <["x"=4, "y"=2]>
    func.func public @main(
        %a: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
        %b: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>}
      ) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, tensor<8x6xf32>) {
      %0 = stablehlo.add %a, %b : tensor<8x6xf32>
      %1 = sdy.sharding_constraint %0 <@mesh, [{"x", "y"}, {?}]> : tensor<8x6xf32>
      %2 = stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{replicated}"}
        : (tensor<8x6xf32>) -> tensor<8x6xf32>
      return %1, %2 : tensor<8x6xf32>, tensor<8x6xf32>
    }"""


def test_shardings_of_shardy_are_kept() -> None:
    graph = imported(SHARDED)
    mesh = Mesh({"x": 4, "y": 2})
    assert shardings(graph) == {graph.inputs[0].name: Sharding(mesh, (("x",), ()))}
    first, second = graph.outputs
    assert sharding_of(first) == Sharding(mesh, ((), ("y",)))
    assert sharding_of(first.node.inputs[0]) == Sharding(mesh, (("x", "y"), ("?",)))
    assert sharding_of(second) == Sharding(mesh, ((), ()))
    # A module over a mesh says of every argument where it lives.
    again = rlx_xla.from_stablehlo(rlx_xla.stablehlo(graph))
    assert shardings(again)[graph.inputs[1].name] == Sharding(mesh, ((), ()))
    assert len(again.nodes()) == len(graph.nodes())
    assert rlx.same(rlx_xla.from_stablehlo(rlx_xla.stablehlo(again)), again)


def test_shardings_are_left_out_on_request() -> None:
    with pytest.warns(
        UserWarning, match="5 sharding annotations of @main were left out; the graph"
    ):
        graph = imported(SHARDED, shardings=False)
    assert not meshes(graph)
    assert graph.outputs[0] is graph.outputs[1]


NUMBERED = {
    "{devices=[4,1,2]<=[8] last_tile_dim_replicate}": (("axis_0",), ()),
    "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}": ((), ("axis_1",)),
    "{devices=[8,1]<=[8]}": (("axis_0", "axis_1"), ()),
    "{devices=[8,1]<=[4,2]T(1,0)}": (("axis_1", "axis_0"), ()),
    "{devices=[4,2]<=[8]}": (("axis_0",), ("axis_1",)),
    "{replicated}": ((), ()),
}


def _constrained(*wanted: str) -> str:
    lines = [
        f'%{i} = stablehlo.custom_call @Sharding(%a) {{mhlo.sharding = "{text}"}} '
        ": (tensor<16x8xf32>) -> tensor<16x8xf32>"
        for i, text in enumerate(wanted)
    ]
    types = ", ".join(["tensor<16x8xf32>"] * len(wanted))
    results = ", ".join(f"%{i}" for i in range(len(wanted)))
    return (
        f"func.func public @main(%a: tensor<16x8xf32>) -> ({types}) {{ "
        + "\n".join(lines)
        + f"\nreturn {results} : {types} }}"
    )


def test_shardings_of_hlo_get_a_mesh() -> None:
    graph = imported(_constrained(*NUMBERED))
    mesh = Mesh({"axis_0": 4, "axis_1": 2})
    found = [sharding_of(value) for value in graph.outputs]
    assert found == [Sharding(mesh, placement) for placement in NUMBERED.values()]


@pytest.mark.parametrize(
    "text",
    [
        "{devices=[2,1]1,0}",
        "{maximal device=0}",
        "{manual}",
        "{devices=[0,1]<=[0]}",
        "{devices=[2,2]<=[8]}",
        "{devices=[3,1]<=[3]}",  # no whole part of 16
    ],
)
def test_other_shardings_of_hlo_are_left_out(text: str) -> None:
    with pytest.warns(
        UserWarning, match="1 sharding annotations of @main were left out; the graph"
    ):
        graph = imported(_constrained(text))
    assert graph.outputs[0] is graph.inputs[0]


@pytest.mark.parametrize("dims", ['{"x":(1)2}, {}', '{"x"}p0, {}', '{"z"}, {}'])
def test_other_shardings_of_shardy_are_left_out(dims: str) -> None:
    body = f"""
    sdy.mesh @mesh = <["x"=4, "z"=3]>
    func.func public @main(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {{
      %0 = sdy.sharding_constraint %a <@mesh, [{dims}]> : tensor<8x6xf32>
      return %0 : tensor<8x6xf32>
    }}"""
    with pytest.warns(UserWarning, match="1 sharding annotations of @main were left out"):
        graph = imported(body)
    assert graph.outputs[0] is graph.inputs[0]


def test_a_splat_allocates_nothing() -> None:
    body = """
    func.func public @main() -> tensor<f32> {
      %0 = stablehlo.constant dense<1.0> : tensor<65536x65536xf32>
      %1 = stablehlo.slice %0 [0:1, 0:1] : (tensor<65536x65536xf32>) -> tensor<1x1xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x1xf32>) -> tensor<f32>
      return %2 : tensor<f32>
    }"""
    tracemalloc.start()
    graph = imported(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 26  # bytes; the constant would be 16 GiB
    assert graph.outputs[0].type == rlx.TensorType(rlx.DType.F32)


HOSTILE = {
    "sizes": "func.func @main(%a: tensor<4611686018427387904xf32>) { return }",
    "sizes over lines": "func.func @main(%a: tensor<\n4611686018427387904xf32>) { return }",
    "depth": "func.func @main(%a: " + "tuple<" * 500 + "i1" + ">" * 500 + ") { return }",
    "recursion": """
        func.func @main(%a: tensor<f32>) -> tensor<f32> {
          %0 = call @f(%a) : (tensor<f32>) -> tensor<f32>
          return %0 : tensor<f32>
        }
        func.func private @f(%a: tensor<f32>) -> tensor<f32> {
          %0 = call @f(%a) : (tensor<f32>) -> tensor<f32>
          return %0 : tensor<f32>
        }""",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused(name: str) -> None:
    with pytest.raises(FormatError):
        imported(HOSTILE[name])


def test_names_need_not_be_text() -> None:
    body = """
    func.func public @main(%a: tensor<f32> {jax.arg_info = "\\FFx"}) -> tensor<f32> {
      %0 = call @"f\\FF"(%a) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }
    func.func private @"f\\FF"(%a: tensor<f32>) -> tensor<f32> {
      return %a : tensor<f32>
    }"""
    graph = imported(body)
    assert graph.outputs[0] is graph.inputs[0]


@pytest.mark.parametrize("wrong", [b"\x00\x01\x02" * 40, b"\xff" * 100, 7, "no module", b"MLxR"])
def test_what_is_no_module_is_refused(wrong: Any) -> None:
    with pytest.raises((FormatError, CompileError)):
        rlx_xla.from_stablehlo(wrong)


def test_a_reader_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WALL_SECONDS", 0.001)
    with pytest.raises(FormatError, match="still busy"):
        rlx_xla.from_stablehlo(mlir.BYTECODE_MAGIC + b"\0" * 100)


NAMED = r"""
module {
  func.func public @main(%x: tensor<2xf32> {NAME}) -> tensor<2xf32> {
    %0 = stablehlo.custom_call @mine(%x) {backend_config = "\00\FF\FE"} :
      (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        (r'"jax.\FF"', True),
        (r'"jax.\C3" = 1 : i32', True),
        (r'b = 1 : i32, "\E2\82"', True),
        ('// an odd quote: "\n' + r'"\FF"', True),
        (r'"jax.\C3\A9"', False),
        (r'"jax.\\FF" = "\FF"', False),
        (r'jax.arg_info = "\FF"', False),
    ],
)
def test_names_of_attributes_that_are_no_utf8_are_refused(name: str, bad: bool) -> None:
    text = NAMED.replace("NAME", name)
    if not bad:
        graph = rlx_xla.from_stablehlo(text, allow_custom_calls={"mine"})
        assert [str(v.type) for v in graph.inputs] == ["f32[2]"]
        return
    with pytest.raises(
        FormatError,
        match=r'^from_stablehlo: names of attributes are required to be UTF-8; found ".*"\. '
        r"The file is damaged: export it again\.$",
    ):
        rlx_xla.from_stablehlo(text, allow_custom_calls={"mine"})


def mutants(data: bytes, count: int, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    found: list[bytes] = []
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 2, 3, 8))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        found.append(bytes(changed))
    return found


def check_mutants(count: int) -> None:
    fn, arguments = CASES["scan"]
    exported = export.export(jax.jit(fn))(*arguments)
    bytecode = mlir.module_bytecode(mlir.parse_module(text_of(fn, *arguments)))
    for data in (bytecode, exported.mlir_module_serialized, bytes(exported.serialize())):
        for mutant in mutants(data, count, len(data)):
            try:
                rlx_xla.from_stablehlo(mutant)
            except RlxError:
                continue


def test_damaged_bytes_do_not_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WALL_SECONDS", 10.0)
    check_mutants(8)


@pytest.mark.slow
def test_hundreds_of_damaged_files_do_not_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WALL_SECONDS", 10.0)
    check_mutants(120)


_DAMAGE = """
import random, sys
import rlx_xla
from rlx.errors import RlxError
from tests.rlx_xla.stablehlo_cases import CASES
import jax
chance = random.Random(0)
for name in ("scan", "sort", "gather", "conv", "cond", "argmax", "constants"):
    fn, arguments = CASES[name]
    text = jax.jit(fn).lower(*arguments).as_text()
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    for number in range(60):
        changed = list(text)
        for _ in range(chance.choice((1, 1, 2))):
            place = chance.choice(digits) if number % 2 else chance.randrange(len(text))
            changed[place] = chance.choice("0123456789" if number % 2 else "()<>{}%x-:,aZ@")
        try:
            rlx_xla.from_stablehlo("".join(changed))
        except RlxError:
            pass
print("alive")
"""


def test_damaged_text_does_not_crash() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DAMAGE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["alive"]), done.stderr[-2000:]


def test_a_file_for_more_devices_than_there_are_runs_on_one(rng: np.random.Generator) -> None:
    def double(x: jax.Array) -> jax.Array:
        return 2 * x

    devices = jax.sharding.AbstractMesh((4096,), ("x",))
    placed = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("x"))
    argument = jax.ShapeDtypeStruct((4096,), jnp.float32)
    data = export.export(jax.jit(double, in_shardings=placed), platforms=["cpu"])(argument)
    x = rng.standard_normal(4096).astype(np.float32)
    with pytest.warns(UserWarning, match="were left out; the graph is a program for one device"):
        compiled = rlx_xla.load_export(bytes(data.serialize()))
    np.testing.assert_array_equal(compiled(x), 2 * x)
