"""Products of a TPU on the CPU: field case D1, infinities, convolutions, what stays as it is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import RunError, TraceError
from rlx_xla.simulate import MODES, simulate

X = np.float32([[0.3744, 0.1656], [0.4707, 0.1663]])
Y = np.float32([[0.3946, 0.1186], [0.1569, 0.3145]])
WANTED = np.array([[0.17372088, 0.09648504], [0.21183069, 0.10812637]])


def _matmul(x, y):
    return x @ y


@pytest.mark.parametrize(
    ("mode", "least", "most"),
    [("tpu-default", 1e-4, 1e-3), ("tpu-high", 1e-9, 1e-5), ("tpu-highest", 0, 1e-6)],
)
def test_d1_each_mode_errs_as_a_tpu_does(mode: str, least: float, most: float) -> None:
    traced = simulate(rlx_xla.trace(_matmul, X, Y), mode)
    found = {
        "xla": rlx.Session("cpu").compile(traced)(X, Y),
        "numpy": rlx.interpret(traced.graph, {"x": X, "y": Y})[0],
        "function": simulate(_matmul, mode)(X, Y),
    }
    for how, result in found.items():
        error = np.abs(np.asarray(result, np.float64) - WANTED).max()
        assert least <= error < most, (how, error)


def test_default_is_the_product_of_bf16_operands() -> None:
    rng = np.random.default_rng()
    x = rng.standard_normal((7, 33), np.float32)
    y = rng.standard_normal((33, 5), np.float32)
    wanted = jnp.matmul(
        x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    )
    np.testing.assert_allclose(simulate(_matmul, "tpu-default")(x, y), wanted, rtol=1e-5, atol=1e-5)


def test_a_product_that_asks_for_more_gets_it() -> None:
    def exact(x, y):
        return jnp.matmul(x, y, precision="highest")

    found = simulate(exact, "tpu-default")(X, Y)
    assert np.abs(np.asarray(found, np.float64) - WANTED).max() < 1e-6


@pytest.mark.parametrize("mode", MODES)
def test_infinities_stay_infinities(mode: str) -> None:
    x = np.float32([[np.inf, 1.0], [np.nan, 2.0], [-np.inf, 0.5]])
    y = np.float32([[2.0], [3.0]])
    found = np.asarray(simulate(_matmul, mode)(x, y))[:, 0]
    assert found[0] == np.inf
    assert np.isnan(found[1])
    assert found[2] == -np.inf


def test_convolutions_count_and_integers_do_not() -> None:
    rng = np.random.default_rng()
    x = rng.standard_normal((1, 3, 8, 8), np.float32)
    k = rng.standard_normal((4, 3, 3, 3), np.float32)

    def conv(x, k):
        return jax.lax.conv(x, k, (1, 1), "SAME")

    exact = np.asarray(conv(x, k))
    scale = np.abs(exact).max()
    errors = [np.abs(np.asarray(simulate(conv, m)(x, k)) - exact).max() / scale for m in MODES]
    assert 1e-4 < errors[0] < 2e-2
    assert errors[1] < 1e-4
    assert errors[2] < 2e-6
    graph = rlx_xla.trace(_matmul, "i32[4, 4]", "i32[4, 4]").graph
    assert rlx.same(simulate(graph, "tpu-default"), graph)


def test_products_inside_of_loops_and_composites() -> None:
    def fn(x):
        def step(carry, _):
            return jnp.tanh(carry @ x), None

        return jax.lax.scan(step, x, None, length=3)[0]

    x = np.random.default_rng().standard_normal((6, 6), np.float32)
    text = str(simulate(rlx_xla.trace(fn, x).graph, "tpu-high"))
    assert text.count("dot_general") == 3
    b = rlx.GraphBuilder("built")
    built = b.build(b.input("x", "f32[4, 6]") @ b.input("y", "f32[6, 2]"))
    assert "reduce_precision" in str(simulate(built, "tpu-default"))


def test_a_simulated_function_has_gradients() -> None:
    gradient = jax.grad(lambda x: simulate(_matmul, "tpu-default")(x, Y).sum())(X)
    assert np.asarray(gradient).shape == X.shape
    assert np.allclose(gradient, np.broadcast_to(Y.sum(1), (2, 2)), rtol=1e-2)


def test_opaque_nodes_are_named() -> None:
    def fn(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda a: np.asarray(a), shape, x)

    graph = rlx_xla.trace(fn, X).graph
    with pytest.warns(
        UserWarning,
        match=r"simulate fn: opaque nodes \(1\) run as on the CPU, with the products inside of",
    ):
        simulate(graph, "tpu-default")


def test_what_is_refused() -> None:
    with pytest.raises(RunError) as info:
        simulate(_matmul, "tpu-hi")
    assert str(info.value) == (
        "simulate: mode is required to be one of tpu-default, tpu-high, tpu-highest; got "
        "'tpu-hi'. Did you mean 'tpu-high'?"
    )
    with pytest.raises(RunError, match="mode is required to be one of"):
        simulate(_matmul, np.ones(2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TraceError) as refused:
        simulate(3, "tpu-high")
    assert str(refused.value) == (
        "simulate: a Graph, a Traced or a JAX function is required; got int. Trace it with "
        "rlx_xla.trace."
    )
