"""The way back to JAX: values, derivatives, and the same graph when traced again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import as_dtype
from rlx.errors import RunError, TraceError
from rlx.ir.graph import Graph, Value, make_node
from rlx.ir.op import all_ops
from rlx.ops.compare import Select, SelectN
from rlx.ops.control_flow import Call, CallKind
from rlx.options.compile import CompileOptions
from rlx.passes import Canonicalize, EliminateCommonSubexpressions
from rlx.passes.base import PassContext
from rlx_xla._jax_compat.jaxpr import enable_x64
from rlx_xla.tracing.jax_registry import jax_rule_for
from tests.conformance.runner import all_samples, compare, graph_of
from tests.samples.base import Sample

CONTEXT = PassContext(CompileOptions(), "cpu")

TABLE = all_samples(np.random.default_rng(11))


def named_alike(graph: Graph) -> Graph:
    """The graph with numbered leaves and one name for every graph and call inside."""
    done: dict[int, Graph] = {}

    def attribute(value: Any) -> Any:
        if isinstance(value, Graph):
            return done[id(value)]
        return tuple(map(attribute, value)) if isinstance(value, tuple) else value

    for inner in graph.all_graphs():
        new: dict[Value, Value] = {}
        for role in ("inputs", "params"):
            for i, leaf in enumerate(getattr(inner, role)):
                new[leaf] = make_node(leaf.node.op.replace(name=f"{role}{i}"), ()).results[0]
        for node in inner.nodes():
            if node.results and node.results[0] in new:
                continue
            op = node.op.replace(**{n: attribute(v) for n, v in node.op.attributes().items()})
            if (
                isinstance(op, SelectN)
                and len(node.inputs) == 3
                and node.inputs[0].type.dtype is (as_dtype("bool"))
            ):
                which, first, second = (new[v] for v in node.inputs)
                new[node.results[0]] = Select()(which, second, first)
                continue
            made = make_node(op, [new[v] for v in node.inputs])
            new.update(zip(node.results, made.results, strict=True))
        done[id(inner)] = Graph(
            *([new[v] for v in getattr(inner, r)] for r in ("inputs", "params", "outputs")),
            [new[v] for v in inner.effects],
            name="graph",
        )
    return done[id(graph)]


def canonical(graph: Graph) -> Graph:
    made = named_alike(graph)
    for _ in range(2):
        made = Canonicalize().run(made, CONTEXT)
        made = EliminateCommonSubexpressions().run(made, CONTEXT)
    return named_alike(made)


def assert_same(found: Graph, wanted: Graph) -> None:
    assert rlx.same(canonical(found), canonical(wanted)), f"{canonical(found)}\n{canonical(wanted)}"


def is_narrow(sample: Sample) -> bool:
    return any(as_dtype(x.dtype).bits < 8 and x.dtype != bool for x in sample.inputs)


def test_every_op_has_a_way_back() -> None:
    left_out = {"input", "param"}
    missing = [
        name
        for name, op in all_ops().items()
        if op.__module__.startswith("rlx.ops.")  # not what other tests register
        and jax_rule_for(op) is None
        and not op.has_decompose
        and name not in left_out
    ]
    assert not missing


@pytest.mark.parametrize("name", sorted(TABLE))
def test_samples_run_and_come_back(name: str) -> None:
    if all_ops()[name].__module__.startswith("rlx.ops.collective"):
        pytest.skip("needs a mesh around it: tests/rlx_xla/test_sharding.py")
    samples = [s for s in TABLE[name] if s.xla]
    chosen = np.random.default_rng(len(name)).permutation(len(samples))[:2]
    for index in chosen:
        sample = samples[index]
        graph, arrays = graph_of([sample])
        if max((v.type.nbytes for n in graph.nodes() for v in n.results), default=0) > 2**20:
            continue
        function = rlx_xla.to_jax(graph)
        with enable_x64():
            traced = rlx_xla.trace(function, *arrays)
        if len(traced.graph.params) == len(graph.params):
            assert_same(traced.graph, graph)
        if is_narrow(sample) or any(as_dtype(x.dtype).bits <= 8 for x in sample.inputs):
            continue  # XLA's own rounding of these differs, compiled one op at a time
        if name == "digamma" and jax.__version_info__ >= (0, 11):
            continue  # its pole at 0 became −inf, which RLX and older versions call NaN
        if name == "pow" and any(np.iscomplexobj(x) for x in sample.inputs):
            continue  # near a cancellation XLA keeps fewer digits than NumPy
        if type(sample.op).__module__.startswith("rlx.ops.solve") and any(
            x.size == 0 for x in sample.inputs
        ):
            continue  # the library that JAX calls divides by the size
        with enable_x64():
            found = jax.jit(function)(*arrays)
        wanted = sample.op.evaluate(*sample.inputs)
        compare(
            sample,
            found if isinstance(found, list) else [found],
            list(wanted) if isinstance(wanted, tuple) else [wanted],
        )


def block(x: Any, w: Any) -> Any:
    y = jax.nn.softmax(jax.nn.relu(x @ w), axis=-1)
    carry, ys = jax.lax.scan(lambda c, t: (c * 0.5 + t, jnp.sum(c)), jnp.zeros(y.shape[1]), y)
    z = jax.lax.cond(carry.sum() > 0, lambda a: a * 2, lambda a: a - 1, carry)
    return jax.checkpoint(lambda a: jnp.sin(a) * 2 + 1)(z), {"ys": ys}


def looped(x: Any, w: Any) -> Any:
    return jax.lax.while_loop(
        lambda s: (s[0] < 3) & (s[1].sum() < w.sum() + 1e3),
        lambda s: (s[0] + 1, jnp.tanh(s[1] @ w) @ w.T),
        (0, x),
    )


def switched(x: Any, w: Any) -> Any:
    index = jnp.argmax(x[0])
    return jax.lax.switch(index, [jnp.sin, jnp.cos, lambda a: a @ w @ w.T], x)


def indexed(x: Any, w: Any) -> Any:
    taken = jnp.asarray(x)[jnp.array([3, 0, 4, -1])]
    return taken.at[1:3].add(1.0), jnp.sort(x, axis=1), jnp.take(w, 7, mode="fill")


def drawn(x: Any, w: Any) -> Any:
    key = jax.random.key(3)
    kept = jax.random.bernoulli(jax.random.fold_in(key, 5), 0.5, x.shape)
    return jnp.where(kept, x, 0), jax.random.normal(key, (3,)), jax.random.split(key)


PROGRAMS = (block, looped, switched, indexed, drawn)


def operands(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((5, 7)), rng.standard_normal((7, 3))
    return x.astype(np.float32), w.astype(np.float32)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_a_traced_function_comes_back(fn: Callable[..., Any]) -> None:
    x, w = operands()
    traced = rlx_xla.trace(fn, x, w)
    back = rlx_xla.to_jax(traced)
    strip = lambda tree: [  # noqa: E731
        jax.random.key_data(v) if jnp.issubdtype(v.dtype, jax.dtypes.prng_key) else v
        for v in jax.tree.leaves(tree)
    ]
    chex.assert_trees_all_equal_structs(back(x, w), fn(x, w))
    chex.assert_trees_all_close(strip(back(x, w)), strip(fn(x, w)), rtol=1e-5, atol=1e-6)
    assert traced.coverage().external == 0
    assert_same(rlx_xla.trace(back, x, w).graph, traced.graph)


def test_derivatives_and_vmap() -> None:
    x, w = operands(1)
    back = rlx_xla.to_jax(rlx_xla.trace(block, x, w))

    def loss(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda a, b: sum(jnp.sum(v**2) for v in jax.tree.leaves(fn(a, b)))

    for transform in (jax.grad, jax.jacfwd, lambda f: jax.jit(jax.grad(f, argnums=1))):
        chex.assert_trees_all_close(
            transform(loss(back))(x, w), transform(loss(block))(x, w), rtol=1e-3, atol=1e-4
        )
    xs = np.stack([x, x * 0.5, -x])
    batched = jax.vmap(back, in_axes=(0, None))(xs, w)
    chex.assert_trees_all_close(batched, jax.vmap(block, in_axes=(0, None))(xs, w), rtol=1e-4)


def test_derivative_rules_are_kept() -> None:
    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * 2

    scaled.defvjp(lambda x: (x * 2, x), lambda kept, ct: (ct * 5 * kept,))
    fn = lambda x: jax.nn.relu(x) + scaled(x)  # noqa: E731
    traced = rlx_xla.trace(fn, 0.0)
    for at in (0.0, 0.5):
        assert jax.grad(rlx_xla.to_jax(traced))(at) == pytest.approx(jax.grad(fn)(at))
    assert rlx.same(rlx.parse(str(traced.graph)), traced.graph)
    assert rlx.same(rlx_xla.trace(fn, 0.0).graph, traced.graph)


def test_a_lost_derivative_rule_raises() -> None:
    graph = rlx.parse(str(rlx_xla.trace(jax.nn.relu, 0.5).graph))
    assert rlx_xla.to_jax(graph)(0.5) == 0.5
    with pytest.raises(TraceError, match="derivative rule, which is lost"):
        jax.grad(rlx_xla.to_jax(graph))(0.5)
    assert jax.grad(rlx_xla.to_jax(graph, lost_rules="differentiate"))(0.5) == 1.0
    with pytest.raises(TraceError, match="lost_rules is required to be one of"):
        rlx_xla.to_jax(graph, lost_rules="guess")


def composite_graph() -> Graph:
    b = rlx.GraphBuilder("block")
    x = b.input("x", "f32[5, 7]")
    w, gamma, beta = (
        b.param("w", "f32[7, 9]"),
        b.param("gamma", "f32[9]"),
        b.param("beta", "f32[9]"),
    )
    hidden = rlx.ops.LayerNorm(axis=1)(x @ w, gamma, beta)
    return b.build(rlx.ops.Softmax(axis=1)(rlx.ops.Gelu()(hidden)))


def test_composites_survive_and_take_params() -> None:
    graph = composite_graph()
    rng = np.random.default_rng(2)
    params = {v.name: rng.standard_normal(v.type.shape).astype(np.float32) for v in graph.params}
    x = rng.standard_normal((5, 7)).astype(np.float32)
    function = rlx_xla.to_jax(graph)
    wanted = rlx.interpret(graph, {"x": x}, params=params)[0]
    chex.assert_trees_all_close(function(params, x), wanted, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(rlx_xla.to_jax(graph, params)(x), wanted, rtol=1e-4, atol=1e-5)
    traced = rlx_xla.trace(function, params, x)
    ops = {node.op.op_name for node in traced.graph.nodes()}
    assert {"layer_norm", "softmax", "gelu", "matmul"} <= ops
    chex.assert_trees_all_equal_shapes(jax.grad(lambda p: function(p, x)[0, 0])(params), params)
    with pytest.raises(RunError, match="a dict of params is required first"):
        function(x)
    with pytest.raises(RunError, match="unknown param 'v'"):
        rlx_xla.to_jax(graph, {"v": x})
    with pytest.raises(RunError, match="every param is required; missing 'gamma'"):
        rlx_xla.to_jax(graph, {k: v for k, v in params.items() if k != "gamma"})


def test_a_transformed_composite_is_not_taken_for_the_op() -> None:
    b = rlx.GraphBuilder("softmax")
    x = b.input("x", "f32[4, 4]")
    function = rlx_xla.to_jax(b.build(rlx.ops.Softmax(axis=0)(x)))
    xs = np.random.default_rng(3).standard_normal((4, 4, 4)).astype(np.float32)
    traced = rlx_xla.trace(jax.vmap(function, in_axes=2, out_axes=2), xs)
    found = rlx.interpret(traced.graph, {traced.graph.inputs[0].name: xs})[0]
    chex.assert_trees_all_close(found, jax.nn.softmax(xs, axis=0), rtol=1e-5)
    gradient = rlx_xla.trace(jax.grad(lambda a: function(a)[0, 0]), xs[0])
    wanted = jax.grad(lambda a: jax.nn.softmax(a, axis=0)[0, 0])(xs[0])
    found = rlx.interpret(gradient.graph, {gradient.graph.inputs[0].name: xs[0]})[0]
    chex.assert_trees_all_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_symbolic_sizes() -> None:
    b = rlx.GraphBuilder("sized")
    x = b.input("x", "f32[batch, 6]")
    graph = b.build(rlx.ops.Softmax(axis=1)(x))
    function = rlx_xla.to_jax(graph)
    for count in (1, 5):
        data = np.random.default_rng(count).standard_normal((count, 6)).astype(np.float32)
        chex.assert_trees_all_close(function(data), jax.nn.softmax(data), rtol=1e-5)
    assert_same(rlx_xla.trace(function, "f32[batch, 6]").graph, graph)
    with pytest.raises(RunError, match="'x' is required to be"):
        function(np.zeros((3, 5), np.float32))


def test_effects_stay_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: Any) -> Any:
        jax.debug.print("first {}", x, ordered=True)
        jax.debug.print("second {}", x + 1, ordered=True)
        return x * 2

    traced = rlx_xla.trace(fn, 1.0)
    assert rlx_xla.to_jax(traced)(1.0) == 2.0
    jax.effects_barrier()
    printed = capfd.readouterr().out
    assert printed.index("first") < printed.index("second")


@pytest.mark.parametrize("index", [-7, 0, 1, 2, 9])
def test_an_index_outside_chooses_as_the_graph_does(index: int) -> None:
    def fn(i: Any, x: Any) -> Any:
        return jax.lax.switch(i, [lambda x: x, lambda x: 2 * x, lambda x: 3 * x], x)

    traced = rlx_xla.trace(fn, np.int32(0), 1.5)
    assert "clamp" not in str(traced.graph)  # cond clamps itself
    wanted = fn(np.int32(index), 1.5)
    assert rlx_xla.to_jax(traced)(np.int32(index), 1.5) == wanted
    assert rlx.Session("cpu").compile(traced)(np.int32(index), np.float32(1.5)) == wanted


def test_a_checkpoint_keeps_its_name() -> None:
    def layer(x: Any) -> Any:
        return jnp.sin(jnp.sin(x))

    traced = rlx_xla.trace(jax.checkpoint(layer), "f32[3]")
    assert 'name = "layer"' in str(traced.graph)
    again = rlx_xla.trace(rlx_xla.to_jax(rlx.parse(str(traced.graph))), "f32[3]")
    assert 'name = "layer"' in str(again.graph)


def test_gradients_of_64_bits_need_jax_to_keep_them() -> None:
    b = rlx.GraphBuilder("squares")
    x = b.input("x", "f64[3]")
    function = rlx_xla.to_jax(b.build((x * x).sum()))
    given = np.array([1.0, 2.0, 3.0])
    assert float(function(given)) == 14
    message = (
        "call: 'x' is required to be f64[3]; got float32[3]. Convert it, and set jax_enable_x64: "
        "without it JAX makes 32-bit numbers of 64-bit ones under grad, vmap and jit."
    )
    with pytest.raises(RunError, match=re.escape(message)):
        jax.grad(function)(given.astype(np.float32))  # what JAX makes of it without a warning
    with enable_x64():
        np.testing.assert_array_equal(jax.grad(function)(given), 2 * given)


def nested_calls(depth: int, kind: CallKind = CallKind.JIT) -> Graph:
    """x ↦ x + depth, by calls inside calls."""
    body: Graph | None = None
    for number in range(depth):
        x = rlx.ops.Input(name="x", dtype=as_dtype("f32"), shape=(3,))()
        y = x if body is None else Call(body=body, name=f"level_{number}", kind=kind)(x)
        body = Graph((x,), (), (y + 1.0,), name=f"level_{number}")
    assert body is not None
    return body


def test_calls_may_nest_at_any_depth() -> None:
    graph, x = nested_calls(400), np.zeros(3, np.float32)
    assert rlx_xla.to_jax(graph)(x).tolist() == [400] * 3
    assert rlx_xla.stablehlo(graph, platform="cpu").count("func.func") >= 1
    assert rlx.Session("cpu").compile(nested_calls(150))(x).tolist() == [150] * 3


def test_what_nests_too_deeply_is_told() -> None:
    message = (
        "to_jax: at most 25 graphs are required to lie inside each other, as JAX traces each by "
        "recursion; 'level_29' has 30, plain calls left out. Split it, or inline some of them "
        "(rlx.passes.InlineCalls())."
    )
    with pytest.raises(TraceError, match=re.escape(message)):
        rlx_xla.to_jax(nested_calls(30, CallKind.REMAT))


def test_elimination_is_linear_in_the_depth_of_calls() -> None:
    def seconds(depth: int) -> float:
        graph = nested_calls(depth)
        start = time.process_time()
        EliminateCommonSubexpressions().run(graph, CONTEXT)
        return time.process_time() - start

    seconds(50)
    # Ten times as deep took a hundred times as long.
    assert seconds(1000) < 40 * max(seconds(100), 0.005)


def test_what_is_no_graph_is_refused() -> None:
    wanted = (
        "to_jax: a Graph, or what rlx_xla.trace gave, is required; got function. Compile it with "
        "rlx.Session, or trace it first."
    )
    with pytest.raises(TraceError, match=f"^{re.escape(wanted)}$"):
        rlx_xla.to_jax(lambda x: x)  # type: ignore[arg-type]


def test_a_rule_for_batches_is_kept_and_a_lost_one_raises() -> None:
    @jax.custom_batching.custom_vmap
    def doubled(x: Any) -> Any:
        return jnp.sin(x) * 2

    @doubled.def_vmap
    def _(size: int, batched: Any, x: Any) -> Any:
        return jnp.cos(x), batched[0]

    fn = lambda x: doubled(x) + 1  # noqa: E731
    # where neither 2 sin(x) + 1 nor cos(x) + 1 is near zero, which has no digits to compare
    x = np.random.default_rng().uniform(0.1, 1.5, 3).astype(np.float32)
    traced = rlx_xla.trace(fn, x[0])
    assert traced.coverage().external == 0
    chex.assert_trees_all_close(rlx_xla.jit(fn)(x), fn(x), rtol=1e-6)
    back = rlx_xla.to_jax(traced)
    chex.assert_trees_all_close(jax.vmap(back)(x), np.cos(x) + 1, rtol=1e-6)
    chex.assert_trees_all_close(jax.jacfwd(back)(x[0]), jax.jacfwd(fn)(x[0]), rtol=1e-6)
    sloped = jax.vmap(jax.jacfwd(back))(x)
    chex.assert_trees_all_close(sloped, jax.vmap(jax.jacfwd(fn))(x), rtol=1e-6)
    chex.assert_trees_all_close(jax.vmap(rlx_xla.jit(fn))(x), np.cos(x) + 1, rtol=1e-6)
    graph = rlx.parse(str(traced.graph))
    assert rlx.same(graph, traced.graph)
    chex.assert_trees_all_close(rlx_xla.to_jax(graph)(x[0]), fn(x[0]), rtol=1e-6)
    with pytest.raises(
        TraceError,
        match=r"^to_jax: vmap of 'doubled' is required to use its own rule for batches, which "
        "is lost: the graph was saved, or its body changed since it was traced. Trace the batched "
        r"function, or accept the batched body: to_jax\(graph, lost_rules='differentiate'\)\.",
    ):
        jax.vmap(rlx_xla.to_jax(graph))(x)
    body = rlx_xla.to_jax(graph, lost_rules="differentiate")
    chex.assert_trees_all_close(jax.vmap(body)(x), np.sin(x) * 2 + 1, rtol=1e-6)
