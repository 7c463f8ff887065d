"""Functions with derivatives of their own: which rule is used when, and that rules are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.ir.graph import Graph, Value
from rlx.ops.custom import CustomFn
from rlx.passes import Canonicalize, EliminateCommonSubexpressions
from tests.samples.control_flow import graph as body

X = "f32[3]"
VJP = body((X, X, X), lambda x, y, d: (d * 5.0,))
JVP = body((X, X), lambda x, t: (t * 7.0,))


def square(**rules: Graph) -> CustomFn:
    return CustomFn(fwd=body((X,), lambda x: x * x), name="square", **rules)


def around(op: CustomFn, types: tuple[str, ...] = (X,)) -> Graph:
    """The function between two other nodes."""
    b = rlx.GraphBuilder("around")
    values = [b.input(f"x{i}", t) for i, t in enumerate(types)]
    made = op(*values)
    first: Value = made[0] if isinstance(made, tuple) else made
    return b.build(first + 1.0)


@pytest.fixture
def x() -> Any:
    return jnp.asarray([1.0, 2.0, 3.0])


def grad(function: Callable[..., Any], x: Any) -> Any:
    return np.asarray(jax.grad(lambda x: function(x).sum())(x))


def tangent(function: Callable[..., Any], x: Any) -> Any:
    return np.asarray(jax.jvp(function, (x,), (jnp.ones_like(x),))[1])


def test_without_rules_the_body_is_differentiated(x: Any) -> None:
    function = rlx_xla.to_jax(around(square()))
    np.testing.assert_allclose(function(x), x * x + 1)
    np.testing.assert_allclose(grad(function, x), 2 * x)
    np.testing.assert_allclose(tangent(function, x), 2 * x)


def test_a_vjp_is_used_in_reverse_mode(x: Any) -> None:
    function = rlx_xla.to_jax(around(square(vjp=VJP)))
    np.testing.assert_allclose(function(x), x * x + 1)
    np.testing.assert_allclose(grad(function, x), [5.0] * 3)
    np.testing.assert_allclose(
        jax.vmap(function)(jnp.stack([x, 2 * x])), [x * x + 1, 4 * x * x + 1]
    )
    batch = jax.vmap(lambda x: grad_inside(function, x))(jnp.stack([x, x]))
    np.testing.assert_allclose(batch, np.full((2, 3), 5.0))
    with pytest.raises(TypeError, match="forward-mode"):
        tangent(function, x)


def grad_inside(function: Callable[..., Any], x: Any) -> Any:
    return jax.grad(lambda x: function(x).sum())(x)


def test_a_jvp_is_used_in_both_modes(x: Any) -> None:
    function = rlx_xla.to_jax(around(square(jvp=JVP)))
    np.testing.assert_allclose(grad(function, x), [7.0] * 3)
    np.testing.assert_allclose(tangent(function, x), [7.0] * 3)


def test_with_both_each_mode_has_its_own(x: Any) -> None:
    function = rlx_xla.to_jax(around(square(vjp=VJP, jvp=JVP)))
    np.testing.assert_allclose(grad(function, x), [5.0] * 3)
    np.testing.assert_allclose(tangent(function, x), [7.0] * 3)
    np.testing.assert_allclose(jax.jit(lambda x: grad_inside(function, x))(x), [5.0] * 3)
    with pytest.raises(NotImplementedError, match="linear_call"):
        jax.vmap(lambda x: grad_inside(function, x))(jnp.stack([x, x]))
    traced = rlx_xla.trace(lambda x: grad_inside(function, x), x)
    assert traced.coverage().external == 0
    np.testing.assert_allclose(rlx.interpret(traced.graph, {"x": np.asarray(x)})[0], [5.0] * 3)


def test_a_jvp_may_take_the_results(x: Any) -> None:
    jvp = body((X, X, X), lambda x, y, t: (y * t,))
    function = rlx_xla.to_jax(around(square(jvp=jvp)))
    np.testing.assert_allclose(tangent(function, x), x * x)


def test_integers_have_no_gradients(x: Any) -> None:
    op = CustomFn(
        fwd=body((X, "i32[3]"), lambda x, n: (x * n.convert("f32"), n + 1)),
        vjp=body((X, "i32[3]", X, "i32[3]", X), lambda x, n, y, m, d: (d * m.convert("f32"),)),
        jvp=body((X, "i32[3]", X), lambda x, n, t: (t * 2.0,)),
    )
    n = jnp.asarray([1, 2, 3], jnp.int32)
    for chosen, wanted in ((op, n + 1), (op.replace(jvp=None), n + 1), (op.replace(vjp=None), 2)):
        function = rlx_xla.to_jax(around(chosen, (X, "i32[3]")))  # type: ignore[arg-type]
        found = jax.grad(lambda x, f=function: f(x, n).sum())(x)
        np.testing.assert_allclose(found, np.broadcast_to(wanted, 3))


def test_a_second_derivative_follows_the_rules(x: Any) -> None:
    vjp = body((X, X, X), lambda x, y, d: (d * x * 5.0,))
    function = rlx_xla.to_jax(around(square(vjp=vjp)))
    second = jax.grad(lambda x: grad_inside(function, x).sum())(x)
    np.testing.assert_allclose(second, [5.0] * 3)


@pytest.mark.parametrize("rules", [{}, {"vjp": VJP}, {"jvp": JVP}, {"vjp": VJP, "jvp": JVP}])
def test_the_way_there_and_back(rules: dict[str, Graph], x: Any) -> None:
    op = square(**rules)
    function = rlx_xla.to_jax(around(op))
    back = rlx_xla.trace(function, x).graph
    kinds = [node.op for node in back.nodes()]
    if not rules:
        assert "call" in [op.op_name for op in kinds] or "mul" in [op.op_name for op in kinds]
        return
    (found,) = (op for op in kinds if isinstance(op, CustomFn))
    assert found == op
    again = rlx_xla.to_jax(back)
    np.testing.assert_array_equal(grad(again, x), grad(function, x))


def test_a_batch_of_a_function_is_not_taken_for_it(x: Any) -> None:
    function = rlx_xla.to_jax(around(square(vjp=VJP)))
    many = jnp.stack([x, 2 * x, x])
    traced = rlx_xla.trace(jax.vmap(function), many)
    found = rlx.interpret(traced.graph, {traced.graph.inputs[0].name: np.asarray(many)})[0]
    np.testing.assert_allclose(found, many * many + 1)
    assert not any(isinstance(node.op, CustomFn) for node in traced.graph.nodes())
    names = [node.op.attributes().get("name", "") for node in traced.graph.nodes()]
    assert "square" in names or not any("rlx-own" in str(name) for name in names)


def test_rules_are_saved(tmp_path: Path, x: Any) -> None:
    graph = around(square(vjp=VJP, jvp=JVP))
    rlx.save(graph, tmp_path / "g.rlx")
    loaded = rlx.load(tmp_path / "g.rlx")
    assert rlx.same(loaded, graph)
    np.testing.assert_allclose(grad(rlx_xla.to_jax(loaded), x), [5.0] * 3)
    assert str(rlx.parse(str(graph))) == str(graph)


def test_passes_keep_it_and_devices_run_it(x: Any) -> None:
    graph = around(square(vjp=VJP))
    cleaned = rlx.passes.run(graph, [Canonicalize(), EliminateCommonSubexpressions()])
    np.testing.assert_allclose(grad(rlx_xla.to_jax(cleaned), x), [5.0] * 3)
    found = rlx.Session("cpu").compile(graph).run({"x0": np.asarray(x)})[0]
    np.testing.assert_allclose(found, x * x + 1)


def test_symbolic_dims_are_bound_in_every_graph() -> None:
    s = "f32[n]"
    op = CustomFn(
        fwd=body((s,), lambda x: x * x),
        vjp=body((s, s, s), lambda x, y, d: (d * 5.0,)),
        jvp=body((s, s), lambda x, t: (t * 7.0,)),
    )
    function = rlx_xla.to_jax(around(op, (s,)))
    for size in (1, 4):
        np.testing.assert_allclose(grad(function, jnp.ones(size)), [5.0] * size)
