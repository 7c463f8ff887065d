"""Opaque nodes: saved text is checked before it reaches XLA."""

from __future__ import annotations

from pathlib import Path

import chex
import jax
import jax.interpreters.mlir
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import rlx
import rlx_xla
from rlx.errors import FormatError, LoweringError, RlxError, TraceError
from rlx.ir.graph import make_node
from rlx.ops.external import External
from rlx_xla._jax_compat import jaxpr as jx

PURE = """
module {
  func.func public @main(%a: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %a, %a : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
"""
CALL = PURE.replace(
    "stablehlo.add %a, %a :",
    "stablehlo.custom_call @x(%a) {api_version = 4 : i32} : (tensor<3xf32>) ->",
)


def _graph(text: str, platform: str = "cpu") -> rlx.Graph:
    b = rlx.GraphBuilder("foreign")
    x = b.input("x", "f32[3]")
    op = External(
        name="double", dtypes=(rlx.DType.F32,), shapes=((3,),), stablehlo=((platform, text),)
    )
    return b.build(*make_node(op, (x,)).results)


def test_pure_text_runs() -> None:
    compiled = rlx.Session("cpu").compile(_graph(PURE))
    assert compiled.run({"x": [1, 2, 3]})[0].tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        PURE.replace("tensor<3xf32>", "tensor<4611686018427387904xf32>"),
        PURE.replace("tensor<3xf32>", "tensor<99999999x99999999x99999999xf32>"),
        "ML\xefR" + PURE,
        PURE + "\0",
        PURE.replace("stablehlo.add", "stablehlo.ad"),
        PURE[: len(PURE) // 2],
        PURE.replace("3xf32", "4xf32"),
        PURE.replace("@main", "@other"),
        "",
    ],
)
def test_dangerous_text_is_refused(text: str) -> None:
    with pytest.raises(RlxError):
        rlx.Session("cpu").compile(_graph(text))


def test_text_is_needed_for_the_platform() -> None:
    with pytest.raises(LoweringError, match=r"StableHLO for 'cpu'; it holds \['tpu'\]"):
        rlx.Session("cpu").compile(_graph(PURE, "tpu"))


def test_without_a_live_jaxpr_there_is_no_numpy_meaning() -> None:
    with pytest.raises(TraceError, match="no NumPy meaning"):
        rlx.interpret(_graph(PURE), {"x": np.ones(3, np.float32)})


def test_live_nodes_have_portable_text_unless_they_call_back() -> None:
    x = jnp.ones((3, 3))
    traced = rlx_xla.trace(lambda x: jax.lax.linalg.schur(x)[0], x)
    node = next(n for n in traced.graph.nodes() if n.op.op_name == "external")
    assert isinstance(node.op, External)
    assert node.op.live is not None
    assert node.op.live.portable is not None
    assert "cpu" in dict(node.op.live.portable())

    def back(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((3, 3), jnp.float32), x)

    calling = next(n for n in rlx_xla.trace(back, x).graph.nodes() if n.op.op_name == "external")
    assert isinstance(calling.op, External)
    assert calling.op.live is not None
    assert calling.op.live.portable is not None
    assert calling.op.live.portable() == ()


def _unknown_primitive() -> Primitive:
    """A primitive that RLX cannot know."""
    made = Primitive("test_double")
    made.def_impl(lambda x: x * 2)
    made.def_abstract_eval(lambda x: x)
    jax.interpreters.mlir.register_lowering(
        made, jax.interpreters.mlir.lower_fun(lambda x: x * 2, multiple_results=False)
    )
    return made


def test_saved_opaque_nodes_run_after_loading(tmp_path: Path) -> None:
    double = _unknown_primitive()

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        return double.bind(x + y) - y

    x, y = jnp.array([1.5, 2.5, -4.0]), jnp.array([1.0, 2.0, 3.0])
    traced = rlx_xla.trace(fn, x, y)
    assert traced.coverage().external == 1
    path = tmp_path / "double.rlx"
    rlx.save(traced.graph, path)
    loaded = rlx.Session("cpu").compile(rlx.load(path))
    chex.assert_trees_all_equal(loaded(x, y), fn(x, y))


def test_callbacks_are_not_saved(tmp_path: Path) -> None:
    traced = rlx_xla.trace(lambda x: jax.debug.print("{}", x), jnp.ones(3))
    with pytest.raises(FormatError, match="debug"):
        rlx.save(traced.graph, tmp_path / "print.rlx")


def test_a_huge_text_is_not_read() -> None:
    from rlx_xla._jax_compat import mlir
    from rlx_xla.lowering import foreign

    with pytest.raises(FormatError, match="at most"):
        foreign.parse(" " * (foreign.MAX_TEXT + 1), "test", mlir.new_context())


@pytest.mark.parametrize("wide", [False, True])
def test_opaque_nodes_make_the_numbers_that_they_made_when_traced(
    tmp_path: Path, wide: bool
) -> None:
    places = Primitive(f"test_places_{wide}")

    def meaning(x: jax.Array) -> jax.Array:
        return jnp.arange(x.shape[0]) // 2 + jnp.argsort(x)  # of JAX's default integers

    places.def_impl(meaning)
    places.def_abstract_eval(
        lambda x: jax.core.ShapedArray(x.shape, jax.dtypes.canonicalize_dtype(np.int64))
    )
    jax.interpreters.mlir.register_lowering(
        places, jax.interpreters.mlir.lower_fun(meaning, multiple_results=False)
    )

    def fn(x: jax.Array) -> jax.Array:
        return places.bind(x) * 3 - 1

    with jx.enable_x64(wide):
        x = jnp.asarray(np.random.default_rng().normal(size=5), jnp.float32)
        traced, wanted = rlx_xla.trace(fn, x), np.asarray(fn(x))
        path = tmp_path / "places.rlx"
        rlx.save(traced.graph, path)
    assert traced.graph.outputs[0].type.dtype.numpy == wanted.dtype
    feed = {"x": np.asarray(x)}
    for found in (
        rlx.Session("cpu").compile(traced).run(feed)[0],
        rlx.Session("cpu").compile(rlx.load(path)).run(feed)[0],
        rlx.interpret(traced.graph, feed)[0],
    ):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
