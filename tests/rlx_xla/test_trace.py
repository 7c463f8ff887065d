"""``rlx_xla.trace``: names, structure, captured arrays, symbolic dims; checked against jax.jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import RunError, TraceError


def check(fn: Callable[..., Any], *args: Any, params: Any = (), **kwargs: Any) -> rlx_xla.Traced:
    """Trace and compile; compare with jax.jit and with the NumPy meaning; require no externals."""
    traced = rlx_xla.trace(fn, *args, params=params, **kwargs)
    assert traced.coverage().external == 0, str(traced.coverage())
    wanted = jax.jit(fn)(*args, **kwargs)
    given = (params,) if isinstance(params, int) else params
    fed = [a for i, a in enumerate(args) if callable(given) or i not in given]
    compiled = rlx.Session("cpu").compile(traced)
    found = compiled(*fed, **kwargs)
    chex.assert_trees_all_equal_shapes_and_dtypes(found, wanted)
    chex.assert_trees_all_close(found, wanted, rtol=1e-5, atol=1e-6)
    return traced


def test_params_are_named_by_their_path(rng: np.random.Generator) -> None:
    model = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])
    x = jnp.asarray(rng.standard_normal((3, 5)), jnp.float32)
    variables = model.init(jax.random.key(0), x)
    traced = check(lambda variables, x: model.apply(variables, x), variables, x, params=0)
    names = [v.name for v in traced.graph.params]
    assert names == [
        "params/layers_0/bias",
        "params/layers_0/kernel",
        "params/layers_2/bias",
        "params/layers_2/kernel",
    ]
    inner = check(
        lambda params, x: model.apply({"params": params}, x), variables["params"], x, params=0
    )
    assert [v.name for v in inner.graph.params] == names


def test_params_by_predicate(rng: np.random.Generator) -> None:
    tree = {"w": rng.standard_normal(3).astype(np.float32), "x": np.ones(3, np.float32)}
    traced = rlx_xla.trace(lambda t: t["w"] * t["x"], tree, params=lambda path: path.endswith("w"))
    assert [v.name for v in traced.graph.params] == ["t/w"]
    assert [v.name for v in traced.graph.inputs] == ["t/x"]
    compiled = rlx.Session("cpu").compile(traced)
    chex.assert_trees_all_close(compiled(tree), tree["w"] * tree["x"])


class Pair(NamedTuple):
    left: Any
    right: Any


def test_pytrees_in_and_out(rng: np.random.Generator) -> None:
    def fn(pair: Pair, extra: dict[str, Any], *, scale: Any) -> dict[str, Any]:
        return {"sum": pair.left + extra["a"][0] * scale, "pair": Pair(pair.right, extra["a"])}

    x = rng.standard_normal(4).astype(np.float32)
    args = (Pair(x, x + 1), {"a": (x * 2, x * 3)})
    traced = rlx_xla.trace(fn, *args, scale=jnp.float32(2))
    assert [v.name for v in traced.graph.inputs] == [
        "pair/left", "pair/right", "extra/a/0", "extra/a/1", "scale",
    ]  # fmt: skip
    compiled = rlx.Session("cpu").compile(traced)
    found = compiled(*args, scale=jnp.float32(2))
    chex.assert_trees_all_close(found, jax.jit(fn)(*args, scale=jnp.float32(2)))
    assert isinstance(found["pair"], Pair)
    with pytest.raises(RunError, match="structure"):
        compiled(x, {"a": (x, x)}, scale=jnp.float32(2))


def test_captured_arrays_are_lifted_above_one_kibibyte(rng: np.random.Generator) -> None:
    small = jnp.asarray(rng.standard_normal(8), jnp.float32)
    large = jnp.asarray(rng.standard_normal((8, 65)), jnp.float32)

    def fn(x: Any) -> Any:
        return x @ large + small[0] + jax.jit(lambda y: y @ large)(x)

    traced = check(fn, jnp.ones((2, 8)))
    assert [v.name for v in traced.graph.params] == ["captured/0"]
    chex.assert_trees_all_close(traced.params["captured/0"], large)


def test_a_captured_index_is_a_param_and_compiles_fast() -> None:
    """Field case F1."""
    index = np.random.default_rng(0).integers(0, 1000, 2_000_000).astype(np.int32)
    x = np.ones(1000, np.float32)
    traced = rlx_xla.trace(lambda x: x[index].sum(), x)
    assert traced.graph.params[0].type.shape[0] == 2_000_000
    compiled = rlx.Session("cpu").compile(traced)
    assert float(compiled(x)) == 2_000_000.0


def test_nested_jit_prints_once() -> None:
    @jax.jit
    def block(x: Any) -> Any:
        return jnp.tanh(x) * 2 + x - jnp.exp(x)

    traced = check(lambda x: block(block(block(x))), jnp.ones(3))
    bodies = [g for g in traced.graph.all_graphs() if g is not traced.graph]
    assert len(bodies) == 1


def test_custom_derivatives_import(rng: np.random.Generator) -> None:
    """Field case C3."""
    x = jnp.asarray(rng.standard_normal(9), jnp.float32)
    functions = (
        jax.nn.relu, jax.nn.gelu, jax.nn.softplus, jax.nn.silu, jnp.sinc, jax.nn.log_softmax,
        jax.scipy.special.logsumexp, jax.nn.relu6, jax.nn.selu,
    )  # fmt: skip
    for fn in functions:
        check(fn, x)
    assert float(rlx.Session("cpu").compile(rlx_xla.trace(jax.nn.silu, 1.0))(1.0)) == (
        pytest.approx(0.7310586, abs=1e-6)
    )


def test_static_arguments() -> None:
    def fn(x: Any, n: int, *, mode: str) -> Any:
        return x * n if mode == "mul" else x + n

    x = jnp.arange(3.0)
    traced = rlx_xla.trace(fn, x, 3, static_argnums=1, static_argnames="mode", mode="mul")
    assert [v.name for v in traced.graph.inputs] == ["x"]
    chex.assert_trees_all_close(rlx.Session("cpu").compile(traced)(x), x * 3)
    with pytest.raises(TraceError, match=r"static_argnums or static_argnames"):
        rlx_xla.trace(fn, x, object(), mode="mul")


def test_a_text_that_is_no_spec_is_explained() -> None:
    with pytest.raises(TraceError, match=r"got 'relu'.*static_argnums"):
        rlx_xla.trace(lambda x, mode: x, "f32[2]", "relu")
    with pytest.raises(TraceError, match=r"Did you mean 'f32'"):
        rlx_xla.trace(lambda x: x, "float32[2]")


def test_weak_types_are_recorded() -> None:
    traced = rlx_xla.trace(lambda x, y: x * y, jnp.ones(3, jnp.bfloat16), 2.0)
    assert traced.signature.weak_types == {"y"}
    compiled = rlx.Session("cpu").compile(traced)
    assert compiled(jnp.ones(3, jnp.bfloat16), 3.0).dtype == jnp.bfloat16


def test_symbolic_dims() -> None:
    traced = rlx_xla.trace(lambda x, y: x @ y + x.shape[0], "f32[b, 4]", "f32[4, s]")
    assert traced.graph.symbols == ("b", "s")
    assert str(traced.graph.outputs[0].type) == "f32[b, s]"
    compiled = rlx.Session("cpu").compile(traced)
    for b, s in ((1, 1), (3, 5), (3, 2)):
        x, y = np.ones((b, 4), np.float32), np.ones((4, s), np.float32)
        chex.assert_trees_all_close(compiled(x, y), x @ y + b)
    with pytest.raises(rlx.errors.DimError):
        compiled(np.ones((2, 5), np.float32), np.ones((4, 2), np.float32))


def test_symbolic_batch_statistics() -> None:
    """Field case B8."""
    compiled = rlx.Session("cpu").compile(
        rlx_xla.trace(lambda x: (jnp.mean(x), x.var(0)), "f32[b, 8]")
    )
    mean, _ = compiled(np.ones((3, 8), np.float32))
    assert float(mean) == 1.0
    chex.assert_trees_all_close(compiled(np.ones((1, 8), np.float32))[1], np.zeros(8, np.float32))


def test_abstract_params_are_set_later(rng: np.random.Generator) -> None:
    shape = jax.ShapeDtypeStruct((4, 2), jnp.float32)
    traced = rlx_xla.trace(lambda w, x: x @ w, shape, "f32[3, 4]", params=0)
    assert traced.params == {"w": None}
    compiled = rlx.Session("cpu").compile(traced)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (4, 2)))
    with pytest.raises(RunError, match="'w'"):
        compiled(x)
    compiled.set_param("w", w)
    chex.assert_trees_all_close(compiled(x), x @ w, rtol=1e-5)


def test_the_same_array_twice_and_unused_arguments() -> None:
    """Field case H4."""
    x = jnp.arange(1000.0)
    check(lambda a, b: a, x, x)
    traced = check(lambda x, t: x * 2, x, jnp.ones(1001))
    assert [v.name for v in traced.graph.inputs] == ["x", "t"]


def test_dtype_mixing_follows_jax(rng: np.random.Generator) -> None:
    """Field case C6."""
    i, f = jnp.arange(3, dtype=jnp.int32), jnp.asarray(rng.standard_normal(3), jnp.float32)
    check(lambda a, b: jnp.concatenate([a, b]), i, f)
    check(lambda c, a, b: jnp.where(c, a, b), f > 0, f, i)
    with jax.enable_x64(True):
        wide = jnp.asarray(rng.standard_normal(3))
        traced = rlx_xla.trace(lambda a, k: a[k], wide, i)
        assert traced.graph.outputs[0].type.dtype is rlx.DType.F64
        found = rlx.Session("cpu").compile(traced)(wide, i)
        chex.assert_trees_all_close(found, wide[i])


def test_semantic_traps() -> None:
    """Field case C14."""
    half = jnp.array([0.5, 1.5, 2.5])
    check(lambda x: (jax.lax.round(x), jnp.round(x)), half)
    check(lambda a, b: (jax.lax.div(a, b), a // b), jnp.int32(-7), jnp.int32(2))
    check(lambda x: x.astype(jnp.int32), jnp.array([3e9, -3e9, jnp.nan]))
    check(lambda x: (x.max(), jnp.sort(x)), jnp.array([jnp.nan, 1.0]))
    a = jnp.full((1, 4096), 127, jnp.int8)
    check(lambda a: (jax.lax.dot(a, a.T), jax.lax.dot(a, a.T, preferred_element_type=jnp.int32)), a)


def test_what_jax_keeps_no_line_of_has_that_of_its_call() -> None:
    traced = rlx_xla.trace(lambda x: jnp.linalg.eigvals(x), "f32[3, 3]")
    (node,) = [n for n in traced.graph.nodes() if n.op.op_name == "eig"]
    assert node.location.file == __file__


def test_locations_and_scopes_reach_the_nodes() -> None:
    def fn(x: Any) -> Any:
        with jax.named_scope("outer"):
            return jnp.tanh(x)

    traced = rlx_xla.trace(fn, jnp.ones(3))
    node = next(n for n in traced.graph.nodes() if n.op.op_name == "tanh")
    assert node.location.file == __file__
    assert "outer" in node.location.label


def test_flax_module_paths_become_labels() -> None:
    model = nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(2)])
    variables = model.init(jax.random.key(0), jnp.ones((3, 5)))
    traced = rlx_xla.trace(model.apply, variables, jnp.ones((3, 5)), params=0)
    labels = {n.location.label for n in traced.graph.nodes() if n.op.op_name == "dot_general"}
    assert len(labels) == 2
    assert all("layers_" in label for label in labels), labels
    text = rlx.ir.text.print_graph(traced.graph, locations=True)
    assert all(label in text for label in labels)


def test_opaque_nodes_run_and_are_counted(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.standard_normal((4, 4)), jnp.float32)

    def fn(x: jax.Array) -> jax.Array:
        return jnp.abs(jax.lax.linalg.schur(x)[0]).sum()

    traced = rlx_xla.trace(fn, x)
    coverage = traced.coverage()
    assert coverage.external >= 1
    assert "external" in str(coverage)
    found = rlx.Session("cpu").compile(traced)(x)
    chex.assert_trees_all_close(found, fn(x), rtol=1e-4, atol=1e-5)
    meaning = rlx.interpret(traced.graph, {"x": np.asarray(x)})[0]
    chex.assert_trees_all_close(meaning, np.asarray(found), rtol=1e-4, atol=1e-5)


def test_callbacks_run_in_order() -> None:
    seen: list[str] = []

    def fn(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(f"a{v}"), x, ordered=True)
        jax.debug.callback(lambda v: seen.append(f"b{v}"), x + 1, ordered=True)
        return x * 2

    compiled = rlx.Session("cpu").compile(rlx_xla.trace(fn, jnp.float32(1)))
    assert float(compiled(jnp.float32(1))) == 2.0
    jax.effects_barrier()
    assert seen == ["a1.0", "b2.0"]


def test_rnn_cell_scanned(rng: np.random.Generator) -> None:
    model = nn.RNN(nn.LSTMCell(features=5))
    x = jnp.asarray(rng.standard_normal((2, 7, 3)), jnp.float32)
    variables = model.init(jax.random.key(1), x)
    traced = check(lambda v, x: model.apply(v, x), variables, x, params=0)
    assert any(n.op.op_name == "scan" for g in traced.graph.all_graphs() for n in g.nodes())


def test_convolutional_network(rng: np.random.Generator) -> None:
    model = nn.Sequential(
        [
            nn.Conv(4, (3, 3)), nn.relu, lambda x: nn.max_pool(x, (2, 2), (2, 2)),
            nn.Conv(6, (3, 3), strides=2), nn.silu, lambda x: nn.avg_pool(x, (2, 2)),
            lambda x: x.reshape(x.shape[0], -1), nn.Dense(3),
        ]
    )  # fmt: skip
    x = jnp.asarray(rng.standard_normal((2, 13, 13, 3)), jnp.float32)
    variables = model.init(jax.random.key(1), x)
    check(lambda v, x: model.apply(v, x), variables, x, params=0)


def test_transformer_block_with_gradient(rng: np.random.Generator) -> None:
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(
                y, y, mask=nn.make_causal_mask(x[..., 0])
            )
            return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))

    model = Block()
    x = jnp.asarray(rng.standard_normal((2, 5, 8)), jnp.float32)
    variables = model.init(jax.random.key(1), x)
    check(lambda v, x: model.apply(v, x), variables, x, params=0)
    traced = rlx_xla.trace(jax.grad(lambda v, x: model.apply(v, x).sum()), variables, x, params=0)
    assert traced.coverage().external == 0, str(traced.coverage())
    found = rlx.Session("cpu").compile(traced)(x)
    wanted = jax.jit(jax.grad(lambda v, x: model.apply(v, x).sum()))(variables, x)
    chex.assert_trees_all_close(found, wanted, rtol=2e-4, atol=1e-5)


class _Step:
    """A key of a path that has its name on itself and not on its class."""

    def __init__(self, name: str) -> None:
        self.key = name


@jax.tree_util.register_pytree_with_keys_class
class _Pair:
    """Two arrays under keys of such a class."""

    def __init__(self, first: Any, second: Any) -> None:
        self.parts = (first, second)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], None]:
        return list(zip(map(_Step, ("first", "second")), self.parts, strict=True)), None

    @classmethod
    def tree_unflatten(cls, structure: None, parts: list[Any]) -> _Pair:
        return cls(*parts)


def test_steps_are_named_by_attributes_of_their_keys() -> None:
    x = jnp.ones(3)
    traced = rlx_xla.trace(
        lambda pair, more: pair.parts[0] + more["deep"][0], _Pair(x, x), {"deep": [x]}
    )
    assert [v.name for v in traced.graph.inputs] == ["pair/first", "pair/second", "more/deep/0"]


def test_equations_of_a_loop_are_at_its_line_under_their_own_scopes() -> None:
    def steps(x: jax.Array) -> jax.Array:
        for number in range(3):
            with jax.named_scope(f"step_{number}"):
                x = jnp.sin(x)
        return jnp.cos(x)

    graph = rlx_xla.trace(steps, jnp.ones(3)).graph
    *sines, last = [n.location for n in graph.nodes() if n.op.op_name in ("sin", "cos")]
    assert [place.label for place in sines] == ["step_0", "step_1", "step_2"]
    assert len({place.line for place in sines}) == 1
    assert last.label == ""
    assert last.line == sines[0].line + 1
