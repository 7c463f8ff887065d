"""Sessions on XLA's CPU: locations, long graphs, donation, JAX around a compiled graph."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import CompileError, LoweringError, RunError, TraceError
from rlx.ir import op


def test_a_thousand_chained_ops_compile() -> None:
    b = rlx.GraphBuilder("chain")
    x = b.input("x", "f32[4]")
    y = x
    for _ in range(1000):
        y = y + x
    compiled = rlx.Session("cpu").compile(b.build(y))
    assert compiled.run({"x": [1, 2, 3, 4]})[0].tolist() == [1001, 2002, 3003, 4004]


def test_locations_reach_the_module() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[4]")
    with b.scope("layer_3/mlp"):
        y = x + x
    graph = b.build(y)
    text = rlx_xla.stablehlo(graph, locations=True)
    assert "layer_3/mlp" in text
    assert "test_session.py" in text


def test_unlowerable_ops_are_listed_together() -> None:
    @op.define_op("test_opaque_thing")
    class Thing(op.Op):
        """An op without a rule.

        Inputs:
            x: any type.

        Result:
            Same type as x.
        """

        def infer(self, x: rlx.TensorType) -> rlx.TensorType:
            return x

        def evaluate(self, x: np.ndarray) -> np.ndarray:
            return x

    b = rlx.GraphBuilder()
    x = b.input("x", "f32[4]")
    y = Thing()(x)
    z = Thing()(x + x)
    graph = b.build(y, z)
    with pytest.raises(LoweringError) as caught:
        rlx.Session("cpu").compile(graph)
    assert str(caught.value).count("no lowering for op 'test_opaque_thing' on 'cpu'") == 2
    assert "test_session.py" in str(caught.value)
    del op._OPS["test_opaque_thing"]


def test_donated_inputs_are_consumed() -> None:
    traced = rlx_xla.trace(lambda x: x + 1, jnp.ones(8), donate_argnums=0)
    compiled = rlx.Session("cpu").compile(traced)
    x = jnp.arange(8.0)
    chex.assert_trees_all_close(compiled(x), jnp.arange(8.0) + 1)
    assert x.is_deleted()
    with pytest.raises(RunError, match=r"deleted|donated"):
        compiled(x)


def test_a_compiled_graph_works_inside_jit() -> None:
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: jnp.tanh(x) * 2, jnp.ones(5)))
    x = jnp.linspace(-1, 1, 5)
    chex.assert_trees_all_close(jax.jit(lambda x: compiled(x) + 1)(x), jnp.tanh(x) * 2 + 1)


def test_derivatives_and_batches_are_traced_instead() -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: jnp.sin(x).sum(), "f32[6]"))
    for transformed in (jax.grad(compiled), jax.jit(jax.grad(compiled))):
        with pytest.raises(TraceError, match=r"rlx_xla\.trace\(jax\.grad\(fn\)"):
            transformed(x)
    with pytest.raises(TraceError, match=r"rlx_xla\.trace\(jax\.vmap\(fn\)"):
        jax.vmap(compiled)(x[None])


def test_the_precision_is_an_enum() -> None:
    with pytest.raises(CompileError, match=r"precision: required a Precision; got 'bf16'"):
        rlx.Session("cpu", precision="bf16")  # type: ignore[arg-type]


def test_params_that_are_not_set_are_named() -> None:
    traced = rlx_xla.trace(lambda w, x: w * x, "f32[2]", "f32[2]", params=0)
    with pytest.raises(RunError, match=r"'w' has none\. Set it with set_param"):
        rlx.Session("cpu").compile(traced)(np.ones(2, np.float32))


@pytest.mark.parametrize("device", ["cpu", "interpret"])
@pytest.mark.parametrize("spec", ["f32[3]", "f32[n]"])
def test_inputs_of_a_flat_call_are_positional(device: str, spec: str) -> None:
    compiled = rlx.Session(device).compile(rlx_xla.trace(lambda x: x + 1, spec))
    x = np.ones(3, np.float32)
    # A static graph on XLA is a plain Python function, whose own error says it.
    with pytest.raises((RunError, TypeError), match=r"keyword.* 'x'"):
        compiled(x=x)
    with pytest.raises((RunError, TypeError), match=r"keyword.* 'y'"):
        compiled(x, y=x)
    chex.assert_trees_all_equal(np.asarray(compiled(x)), x + 1)


def test_both_paths_agree(rng: np.random.Generator) -> None:
    compiled = rlx.Session("cpu").compile(
        rlx_xla.trace(lambda x: jnp.exp(x) @ x.T, jnp.ones((3, 4)))
    )
    x = rng.standard_normal((3, 4)).astype(np.float32)
    hot = compiled(x)
    with jax.debug_nans(True):
        composed = compiled(x)
    assert np.asarray(hot).tobytes() == np.asarray(composed).tobytes()


def test_wide_types_run_with_x64_off() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f64[3]")
    k = b.input("k", "i64[3]")
    compiled = rlx.Session("cpu").compile(b.build(x * x, k + k))
    square, double = compiled.run({"x": np.array([1.0, 2, 3]), "k": np.array([2**40, 0, -1])})
    assert square.dtype == np.float64
    assert double.tolist() == [2**41, 0, -2]


def test_keys_pass_through() -> None:
    key = jax.random.key(3)
    fn = lambda k: (jax.random.split(k)[0], jax.random.uniform(k, (4,)))  # noqa: E731
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(fn, key))
    found, wanted = compiled(key), jax.jit(fn)(key)
    assert found[0].dtype == wanted[0].dtype
    chex.assert_trees_all_equal(jax.random.key_data(found[0]), jax.random.key_data(wanted[0]))
    chex.assert_trees_all_equal(found[1], wanted[1])


def test_report_names_passes_and_implementations() -> None:
    compiled = rlx.Session("cpu").compile(
        rlx_xla.trace(lambda x: jax.nn.softmax(x), jnp.ones((4, 8)))
    )
    report = compiled.report()
    text = str(report)
    for part in ("phases:", "passes:", "implementations:", "memory:", "rule exp"):
        assert part in text
    assert compiled.memory()["argument"] == 4 * 8 * 4
    assert compiled.cost()["flops"] > 0
    assert "stablehlo.exponential" in compiled.stablehlo()


@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm", "tpu"])
def test_one_graph_lowers_for_every_platform(platform: str) -> None:
    traced = rlx_xla.trace(lambda x: jax.nn.gelu(x, approximate=False), jnp.ones((4, 8)))
    assert "func.func public @main" in rlx_xla.stablehlo(traced, platform)
    portable = rlx_xla.stablehlo(traced, platform, portable=True)
    assert "chlo." not in portable
    assert "custom_call" not in portable
