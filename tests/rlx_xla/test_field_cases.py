"""Cases that people met with other importers and compilers: C2, C3, C4, C6, C8, C12, C14, H3."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from rlx.errors import TraceError
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.jaxpr import enable_x64


def run(fn: Callable[..., Any], *args: Any) -> Any:
    """Trace without opaque nodes and run; types are those of jax.eval_shape, values jax.jit's."""
    traced = rlx_xla.trace(fn, *args)
    assert traced.coverage().external == 0, str(traced.coverage())
    found = rlx.Session("cpu").compile(traced)(*args)
    shapes, wanted = jax.eval_shape(fn, *args), jax.jit(fn)(*args)
    for ours, shape, theirs in zip(*map(jax.tree.leaves, (found, shapes, wanted)), strict=True):
        assert (ours.dtype, ours.shape) == (shape.dtype, shape.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    return found


def test_c2_scan_without_inputs() -> None:
    def fn(start: Any) -> Any:
        return lax.scan(lambda c, _: (c + 1, c * 2), start, None, length=10)

    final, ys = run(fn, jnp.int32(0))
    assert final == 10
    assert ys.dtype == jnp.int32
    assert ys.tolist() == list(range(0, 20, 2))


@pytest.mark.parametrize(
    "fn",
    [jax.nn.relu, jax.nn.gelu, jax.nn.softplus, jax.nn.logsumexp, jax.nn.silu, jnp.sinc],
    ids=lambda fn: fn.__name__,
)
def test_c3_functions_with_derivatives_of_their_own(fn: Callable[[Any], Any]) -> None:
    x = jnp.asarray(np.random.default_rng().uniform(-2, 2, 7), jnp.float32).at[0].set(0.0)
    run(fn, x)
    run(jax.grad(lambda x: fn(x).sum()), x)


def test_c3_silu_of_one() -> None:
    np.testing.assert_allclose(run(jax.nn.silu, jnp.float32(1)), 0.7310586, rtol=1e-6)


C4: dict[str, tuple[Callable[[], Any], Any]] = {
    "row": (lambda: jnp.zeros((3, 3)).at[0, :].set(1), [[1, 1, 1], [0, 0, 0], [0, 0, 0]]),
    "add": (
        lambda: jnp.zeros(4).at[jnp.array([0, 2, 1])].add(jnp.array([1.0, 2, 3])),
        [1, 3, 2, 0],
    ),
    "duplicates": (lambda: jnp.zeros(3).at[jnp.array([1, 1, 1])].add(2.0), [0, 6, 0]),
    "outside is dropped": (lambda: jnp.zeros(3).at[7].set(9), [0, 0, 0]),
    "from the end": (lambda: jnp.zeros(3).at[-1].set(5), [0, 0, 5]),
    "max": (lambda: jnp.array([1.0, 5, 3]).at[jnp.array([0, 1])].max(4.0), [4, 5, 3]),
    "min": (lambda: jnp.array([1.0, 5, 3]).at[jnp.array([0, 1])].min(4.0), [1, 4, 3]),
    "mul": (lambda: jnp.array([1.0, 5, 3]).at[jnp.array([2, 2])].mul(2.0), [1, 5, 12]),
}


@pytest.mark.parametrize("name", C4)
def test_c4_scatters(name: str) -> None:
    fn, wanted = C4[name]
    assert run(fn).tolist() == wanted


def test_c4_a_window_is_written_inside() -> None:
    update = jnp.asarray(np.random.default_rng().uniform(size=(1, 5, 256, 256, 1)), jnp.float32)
    found = run(lambda u: jnp.zeros((5, 266, 266, 1)).at[:, 5:261, 5:261].set(u[0]), update)
    np.testing.assert_array_equal(found[:, 5:261, 5:261], update[0])
    assert float(jnp.abs(found).sum()) == pytest.approx(float(update.sum()), rel=1e-4)


def test_c6_concatenation_of_an_integer_and_a_float() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.concatenate([a, b])

    found = run(fn, jnp.arange(3, dtype=jnp.int32), jnp.array([0.5, 1.5, 2.5]))
    assert found.dtype == jnp.float32
    assert found.tolist() == [0, 1, 2, 0.5, 1.5, 2.5]


def test_c6_a_choice_between_double_and_integer() -> None:
    with enable_x64():
        which = jnp.array([True, False, True])
        x, y = jnp.array([0.5, 1.5, 2.5], jnp.float64), jnp.array([7, 8, 9], jnp.int32)
        found = run(jnp.where, which, x, y)
        assert found.dtype == jnp.float64
        assert found.tolist() == [0.5, 8, 2.5]


def test_c6_a_gather_keeps_doubles() -> None:
    with enable_x64():
        x = jnp.array([1 / 3, 2 / 3, 1.0], jnp.float64)
        found = run(lambda x, i: x[i], x, jnp.array([2, 0]))
        assert found.dtype == jnp.float64
        assert found.tolist() == [1.0, 1 / 3]


def test_c8_vmapped_depth_to_space() -> None:
    def depth_to_space(x: Any) -> Any:
        height, width, channels = x.shape
        blocks = x.reshape(height, width, 2, 2, channels // 4)
        return blocks.transpose(0, 2, 1, 3, 4).reshape(2 * height, 2 * width, channels // 4)

    x = jnp.asarray(np.random.default_rng().uniform(size=(1, 4, 4, 4)), jnp.float32)
    found = run(jax.vmap(depth_to_space), x)
    assert found.shape == (1, 8, 8, 1)
    np.testing.assert_array_equal(found[0], depth_to_space(x[0]))


def test_c12_a_file_of_stablehlo() -> None:
    def fn(weights: Any, image: Any) -> Any:
        return jax.nn.softmax(image @ weights)

    traced = rlx_xla.trace(fn, "f32[4, 3]", "f32[2, 4]")
    compiled = rlx.Session("cpu").compile(traced)
    assert mlir.parse_module(compiled.stablehlo(), mlir.new_context()).operation.verify()
    # The program itself may call kernels; a portable one is core StableHLO.
    portable = rlx_xla.stablehlo(traced.graph, portable=True)
    artifact = mlir.to_portable(mlir.parse_module(portable, mlir.new_context()), "0.9.0")
    again = rlx_xla.from_stablehlo(artifact)
    assert [v.name for v in again.inputs] == ["weights", "image"]
    x, w = np.ones((2, 4), np.float32), np.eye(4, 3, dtype=np.float32)
    found = rlx.Session("cpu").compile(again).run({"weights": w, "image": x})[0]
    np.testing.assert_allclose(found, jax.jit(fn)(w, x), rtol=1e-6)


def test_c14_rounding() -> None:
    x = jnp.array([0.5, 1.5, 2.5])
    assert run(lax.round, x).tolist() == [1, 2, 3]
    assert run(jnp.round, x).tolist() == [0, 2, 2]


def test_c14_division_of_integers() -> None:
    a, b = jnp.int32(-7), jnp.int32(2)
    assert run(lax.div, a, b) == -3
    assert run(lambda a, b: a // b, a, b) == -4


def test_c14_a_float_that_no_integer_holds() -> None:
    found = run(lambda x: x.astype(jnp.int32), jnp.array([3e9, -3e9, jnp.nan]))
    assert found.tolist() == [2147483647, -2147483648, 0]


def test_c14_nan_is_the_largest_and_the_last() -> None:
    x = jnp.array([jnp.nan, 1.0, jnp.inf, -2.0])
    assert np.isnan(run(jnp.max, x))
    found = run(jnp.sort, x)
    assert found[:3].tolist() == [-2, 1, np.inf]
    assert np.isnan(found[3])


def test_c14_products_of_bytes() -> None:
    x = jnp.full((1, 4096), 127, jnp.int8)

    def product(dtype: Any) -> Callable[[Any], Any]:
        return lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ())), None, dtype)

    assert run(product(None), x).tolist() == [[0]]
    assert run(product(jnp.int32), x).tolist() == [[66064384]]


def test_c14_wide_integers_without_x64() -> None:
    with pytest.warns(UserWarning, match="int64"):
        x = jnp.asarray(np.arange(3), dtype=jnp.int64)
    assert run(lambda x: x + 1, x).dtype == jnp.int32
    compiled = rlx_xla.jit(lambda x: x + 1)
    assert compiled(np.arange(3)).dtype == jnp.int32


def test_h3_a_carry_is_promoted() -> None:
    final, ys = run(lambda xs: lax.scan(lambda c, x: (c + x, c), 0, xs), jnp.arange(3.0))
    assert final == 3.0
    assert ys.tolist() == [0, 0, 1]


def test_h3_a_carry_of_another_shape_is_told() -> None:
    def body(carry: Any, x: Any) -> Any:
        return jnp.stack([carry + x]), x

    with pytest.raises(TraceError) as caught:
        rlx_xla.trace(lambda xs: lax.scan(body, jnp.float32(0), xs), jnp.arange(3.0))
    line = body.__code__.co_firstlineno + 1
    wanted = (
        rf"carry\[0\] f32\[\] -> f32\[1\] because of body line \S*test_field_cases\.py:{line}; "
    )
    assert re.search(wanted + re.escape("use x[0] or init jnp.zeros(1)."), str(caught.value))


def test_mutable_arrays_of_a_function_are_values_passed_on() -> None:
    new_ref: Any = getattr(jax, "new_ref", None) or jax.experimental.mutable_array  # moved

    def fn(x: Any) -> Any:
        held = new_ref(x)
        held[...] = held[...] * 2

        def body(i: Any, c: Any) -> Any:
            held[i] = c + held[i]
            return c + 1

        lax.fori_loop(0, 3, body, 1.0)
        return held[...]

    def nested(x: Any) -> Any:
        return jax.jit(fn)(x) + lax.cond(x[0] > 0, fn, lambda x: x, x)

    x = jnp.asarray(np.random.default_rng().normal(size=5), jnp.float32)
    for program in (fn, nested):
        run(program, x)
        wanted = jax.jit(program)(x)
        for way in (
            rlx_xla.to_jax(rlx_xla.trace(program, x)),
            jax.jit(rlx_xla.jit(program)),
            lambda x, p=program: jax.vmap(rlx_xla.jit(p))(x[None])[0],
        ):
            np.testing.assert_allclose(way(x), wanted, rtol=1e-6)
        slopes = [jax.grad(lambda x, f=f: f(x).sum())(x) for f in (rlx_xla.jit(program), program)]
        np.testing.assert_allclose(*slopes, rtol=1e-6)


def test_mutable_arrays_from_outside_are_written_as_arguments() -> None:
    new_ref: Any = getattr(jax, "new_ref", None) or jax.experimental.mutable_array  # moved

    def fn(held: Any, total: Any, x: Any) -> Any:
        held[0] = jnp.sort(x)
        total[...] += held[1].sum()
        return x + total[...]

    start = np.random.default_rng().normal(size=(3, 4)).astype(np.float32)
    found: list[Any] = []
    for program in (jax.jit(fn), rlx_xla.jit(fn)):
        held, total = new_ref(jnp.asarray(start)), new_ref(jnp.float32(2))
        results = [program(held, total, start[i]) for i in (1, 2)]
        found.append((*results, held[...], total[...]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_graphs_capture_no_mutable_arrays_and_jit_leaves_them_to_jax() -> None:
    new_ref: Any = getattr(jax, "new_ref", None) or jax.experimental.mutable_array  # moved
    held = new_ref(jnp.zeros((3, 4)))

    def fn(x: Any) -> Any:
        held[0] += x
        return x + held[0]

    wanted = (
        "trace of 'fn': what a function captures is required to be arrays; got the mutable array "
        "Ref{float32[3,4]}. Pass it to rlx_xla.jit as an argument, or make it inside the function."
    )
    with pytest.raises(TraceError) as caught:
        rlx_xla.trace(fn, jnp.ones(4))
    assert str(caught.value) == wanted
    fast = rlx_xla.jit(fn)
    x = jnp.asarray(np.random.default_rng().normal(size=4), jnp.float32)
    np.testing.assert_allclose([fast(x), fast(x), held[0]], [2 * x, 3 * x, 2 * x], rtol=1e-6)
    (record,) = fast.specializations()
    assert record.reason == "first call; left to jax.jit: it captures a mutable array"
    assert record.hits == 1
