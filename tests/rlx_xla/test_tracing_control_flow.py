"""Calls, choices and loops of JAX become ops, and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import rlx
import rlx_xla
from rlx.errors import ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import run
from rlx.ir.location import scope
from rlx.ops.control_flow import Scan
from rlx.ops.io import Input

X = jnp.arange(1.0, 4.0)
BIG = jnp.arange(3000.0)


def check(fn: Callable[..., Any], *args: Any, external: int = 0) -> rlx_xla.Traced:
    """Trace; NumPy's meaning and the compiled graph equal ``jax.jit``, with equal dtypes."""
    traced = rlx_xla.trace(fn, *args)
    assert traced.coverage().external == external
    wanted = jax.tree.leaves(jax.jit(fn)(*args))
    inputs = [
        np.asarray(a, v.type.dtype.numpy)
        for a, v in zip(jax.tree.leaves(args), traced.graph.inputs, strict=True)
    ]
    params = [np.asarray(traced.params[v.name]) for v in traced.graph.params]
    meaning = run(traced.graph, [*inputs, *params])
    compiled = jax.tree.leaves(rlx.Session("cpu").compile(traced)(*args))
    for want, *found in zip(wanted, meaning, compiled, strict=True):
        for got in map(np.asarray, found):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return traced


def op_names(graph: Graph) -> list[str]:
    return [n.op.op_name for g in graph.all_graphs() for n in g.nodes()]


def test_scan_without_inputs() -> None:
    """jax2onnx#37: a scan that has no xs."""

    def fn(c: jax.Array) -> Any:
        return lax.scan(lambda c, _: (c + 1, c * 2), c, None, length=10)

    traced = check(fn, jnp.int32(0))
    last, ys = run(traced.graph, [np.int32(0)])
    assert last == 10
    assert ys.dtype == np.int32
    assert ys.tolist() == list(range(0, 20, 2))


@pytest.mark.parametrize(
    "fn",
    [
        jax.nn.relu, jax.nn.gelu, jax.nn.softplus, jax.nn.logsumexp, jax.nn.silu, jnp.sinc,
        jax.nn.softmax, jax.nn.log_softmax, jax.nn.standardize,
    ],
)  # fmt: skip
def test_functions_with_their_own_derivative(fn: Callable[..., Any]) -> None:
    """jax2onnx#36: custom_jvp_call and the like import."""
    check(lambda x: fn(x - 2.0), X)


def test_silu_of_one() -> None:
    traced = rlx_xla.trace(jax.nn.silu, jnp.float32(1.0))
    assert run(traced.graph, [np.float32(1.0)])[0] == pytest.approx(0.7310586, abs=1e-6)


def test_scan_promotes_the_carry_as_jax_does() -> None:
    """jax#22045: an int carry meets floats."""
    check(lambda xs: lax.scan(lambda c, x: (c + x, c), 0, xs), X)


def test_a_carry_that_drifts_is_named_with_its_line() -> None:
    """jax#833: the message says what changes, where, and what to do."""
    c, x = (Input(name=n, dtype=rlx.DType.F32, shape=())() for n in "cx")
    with scope("grow"):
        grown = (c + x).reshape(1)
    body = Graph((c, x), (), (grown, c), name="body")
    start = Input(name="start", dtype=rlx.DType.F32, shape=())()
    xs = Input(name="xs", dtype=rlx.DType.F32, shape=(3,))()
    with pytest.raises(ShapeError) as caught:
        Scan(body=body, length=3, num_carry=1)(start, xs)
    text = str(caught.value)
    assert "carry[0] f32[] -> f32[1]" in text
    assert "because of" in text
    assert "grow" in text
    assert "x[0]" in text
    assert "zeros(1)" in text


@pytest.mark.parametrize("unroll", [1, 2, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(unroll: int, reverse: bool) -> None:
    def fn(c: jax.Array, xs: jax.Array) -> Any:
        def body(c: jax.Array, x: jax.Array) -> Any:
            return c * 0.5 + x, (c * x, x)

        return lax.scan(body, c, xs, reverse=reverse, unroll=unroll)

    check(fn, jnp.float32(1.0), X)


def test_loops() -> None:
    def count(n: jax.Array, x: jax.Array) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2 + x.sum()), (0, x))

    check(count, jnp.int32(5), X)
    check(lambda x: lax.fori_loop(0, 4, lambda i, s: s + i * x, x), X)
    check(lambda x: lax.map(lambda v: v * v + 1, x, batch_size=2), X)
    check(lambda x: lax.associative_scan(jnp.add, x), X)


@pytest.mark.parametrize("axes", [(0, 0), (0, None)])
def test_a_loop_over_a_batch_runs_until_the_last_member_stops(axes: Any) -> None:
    def count(n: jax.Array, x: jax.Array) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (0, x))

    check(jax.vmap(count, in_axes=axes), jnp.array([1, 4, 0]), X)


def test_choices() -> None:
    check(lambda p, x: lax.cond(p > 1, lambda x: x + 1, lambda x: x * 2, x), jnp.float32(2.0), X)
    branches = [lambda x: x + 1, lambda x: x * 2, lambda x: -x]
    for index in (-4, 0, 1, 2, 9):
        check(lambda i, x: lax.switch(i, branches, x), jnp.int32(index), X)


def test_captured_arrays_reach_the_bodies() -> None:
    def choose(p: jax.Array, x: jax.Array) -> jax.Array:
        return lax.cond(p > 1, lambda x: x + BIG, lambda x: x * BIG[1], jnp.zeros(3000) + x[0])

    check(choose, jnp.float32(2.0), X)
    check(choose, jnp.float32(0.0), X)
    check(lambda x: lax.scan(lambda c, v: (c + v * BIG, c.sum()), BIG, x), X)


def test_a_function_called_twice_is_one_graph() -> None:
    @jax.jit
    def layer(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * x + 1

    traced = check(lambda x: layer(layer(x)), X)
    calls = [n.op for n in traced.graph.nodes() if n.op.op_name == "call"]
    assert len(calls) == 2
    assert calls[0].body is calls[1].body  # type: ignore[attr-defined]
    assert str(traced.graph).count('"layer" {') == 1


def test_small_bodies_and_inline_functions_leave_no_call() -> None:
    traced = check(lambda x: jax.jit(jnp.sin)(x) + jax.jit(lambda y: y * y - y, inline=True)(x), X)
    assert "call" not in op_names(traced.graph)


def test_rematerialised_and_differentiated_functions() -> None:
    def inner(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.sin(x) * x)

    check(jax.grad(lambda x: jax.checkpoint(inner)(x).sum()), X)
    check(jax.grad(lambda x: lax.scan(lambda c, v: (c * jnp.sin(v) + v, c), 1.0, x)[0]), X)

    def named(x: jax.Array) -> jax.Array:
        return jnp.sin(checkpoint_name(jnp.cos(x) * x, "kept")) + checkpoint_name(x, "other")

    policy = jax.checkpoint_policies.save_only_these_names("kept")
    check(named, X)
    check(jax.grad(lambda x: jax.checkpoint(named, policy=policy)(x).sum()), X)

    @jax.custom_vjp
    def own(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * x

    own.defvjp(lambda x: (own(x), x), lambda x, g: (g * x,))
    traced = check(lambda x: own(x) + own(x * 2), X)
    kinds = {n.op.kind.value for n in traced.graph.nodes() if n.op.op_name == "call"}  # type: ignore[attr-defined]
    assert kinds == {"custom_vjp"}


def test_the_platform_picks_the_branch() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: jnp.sin(x))

    traced = check(fn, X)
    text = rlx_xla.stablehlo(traced.graph, platform="cpu")
    assert "sine" not in text
    assert "sine" in rlx_xla.stablehlo(traced.graph, platform="tpu")


def test_an_effect_inside_a_call_stays_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        jax.debug.print("second", ordered=True)
        return x * 2 + 1

    def fn(x: jax.Array) -> jax.Array:
        jax.debug.print("first", ordered=True)
        y = inner(x)
        jax.debug.print("third", ordered=True)
        return y

    traced = rlx_xla.trace(fn, X)
    assert traced.coverage().external == 3
    assert len(traced.graph.effects) == 1
