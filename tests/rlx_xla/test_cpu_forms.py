"""Forms of ops that lowering rules choose on CPUs: the same values, and no worse rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from rlx import tolerances
from rlx.dtypes import as_dtype
from rlx.ops.reduction import Argmax, Argmin, CumLogSumExp, CumMax, CumMin, CumProd, CumSum

COMMON = rlx.CompileOptions(
    kernel_dispatch=rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
)
PLACES = (((40, 50), 0), ((40, 50), 1), ((9, 12, 11), 1), ((64, 2, 16), 0))
"""Shapes with the axis to run along: with rows after it, with none, and with rows on both sides."""


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Random data with ties, and for floats with NaN, infinities and both zeros."""
    if dtype.kind in "iu":
        return rng.integers(0, 5, shape).astype(dtype)
    data = (np.round(rng.standard_normal(shape) * 8) / 8).astype(dtype)
    for special in (np.nan, np.inf, -np.inf, -0.0, 0.0):
        data.flat[rng.integers(0, data.size, 2)] = special
    return data


def compared(outs: list[rlx.Value], b: rlx.GraphBuilder, feeds: dict[str, np.ndarray]) -> None:
    graph = b.build(*outs)
    compiled = rlx.Session("cpu").compile(graph, options=COMMON)
    found, wanted = compiled.run(feeds), rlx.interpret(graph, feeds)
    for value, got, want in zip(outs, found, wanted, strict=True):
        assert got.dtype == want.dtype
        kept = tolerances.tolerance(value.dtype)
        wide = np.asarray(want, np.float64)
        finite = wide[np.isfinite(wide)]
        scale = max(1.0, float(np.abs(finite).max(initial=0.0)))
        np.testing.assert_allclose(
            np.asarray(got, np.float64),
            wide,
            rtol=20 * kept.rtol,
            atol=20 * kept.atol + 4 * kept.rtol * scale,
            err_msg=repr(value.node.op),
        )


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i32"])
def test_running_ops(dtype: str, rng: np.random.Generator) -> None:
    b, outs = rlx.GraphBuilder(), []
    feeds: dict[str, np.ndarray] = {}
    for number, (shape, axis) in enumerate(PLACES):
        x = b.input(f"x{number}", f"{dtype}[{', '.join(map(str, shape))}]")
        feeds[x.name] = drawn(rng, shape, x.dtype.numpy)
        ops = [CumSum, CumProd, CumMax, CumMin, *((CumLogSumExp,) if dtype != "i32" else ())]
        for op in [CumSum, CumLogSumExp] if number == 0 and dtype == "f32" else ops[number::4]:
            reverse, exclusive = (bool(n) for n in rng.integers(0, 2, 2))
            outs.append(op(axis=axis, reverse=reverse, exclusive=exclusive)(x))
    compared(outs, b, feeds)


def test_a_product_beyond_f32_stays_infinite() -> None:
    b = rlx.GraphBuilder()
    graph = b.build(CumProd(axis=0)(b.input("x", "f32[128, 8]")))
    x = np.full((128, 8), 0.5, np.float32)
    x[:8] = 1e30
    (found,) = rlx.Session("cpu").compile(graph, options=COMMON).run({"x": x})
    assert np.isinf(found[8:]).all()


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cumlogsumexp"])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_ops_round_no_worse_than_the_tree(
    name: str, axis: int, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((1024, 1024)).astype(np.float32)
    if name == "cumprod":
        x = 1 + x / 64
    x = np.ascontiguousarray(x[:, :16] if axis == 0 else x[:16])
    exact = {
        "cumsum": np.cumsum,
        "cumprod": np.cumprod,
        "cumlogsumexp": lambda v, axis: np.logaddexp.accumulate(v, axis),
    }[name](x.astype(np.float64), axis=axis)

    def function(v: jax.Array) -> jax.Array:
        return getattr(lax, name)(v, axis)

    ours = rlx.Session("cpu").compile(rlx_xla.trace(function, x), options=COMMON)(x)
    theirs = jax.jit(function)(x)
    scale = np.abs(exact).max() if name == "cumsum" else np.maximum(np.abs(exact), 1.0)
    error, other = (float((np.abs(v - exact) / scale).max()) for v in (ours, theirs))
    assert error <= other + 2.0**-23


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_argmax_and_argmin(dtype: str, rng: np.random.Generator) -> None:
    b, outs = rlx.GraphBuilder(), []
    feeds: dict[str, np.ndarray] = {}
    for number, (shape, axis) in enumerate([*PLACES, ((3, 5000), 1), ((33,), 0)]):
        x = b.input(f"x{number}", f"{dtype}[{', '.join(map(str, shape))}]")
        feeds[x.name] = drawn(rng, shape, x.dtype.numpy)
        outs += [Argmax(axis=axis)(x), Argmin(axis=axis, index_dtype=rlx.DType.I64)(x)]
    graph = b.build(*outs)
    found = rlx.Session("cpu").compile(graph, options=COMMON).run(feeds)
    for got, want in zip(found, rlx.interpret(graph, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_rows_of_bf16_are_stacked_as_bits(rng: np.random.Generator) -> None:
    def function(xs: jax.Array) -> Any:
        def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
            carry = carry * 0.5 + x
            return carry, (carry, x)

        return lax.scan(step, jnp.zeros_like(xs[0]), xs)

    xs = jnp.asarray(drawn(rng, (40, 6), as_dtype("bf16").numpy))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(function, xs), options=COMMON)
    text = compiled.stablehlo()
    assert "tensor<40x6xui16>" in text
    assert "dynamic_update_slice" in text
    for got, want in zip(
        jax.tree.leaves(compiled(xs)), jax.tree.leaves(jax.jit(function)(xs)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
@pytest.mark.parametrize("form", ["x @ w.T", "w @ x", "x @ w"])
def test_one_row_times_a_matrix(dtype: str, form: str, rng: np.random.Generator) -> None:
    n, k = (256, 384) if form != "x @ w" else (384, 256)
    drawn_x = rng.integers(-100, 100, (1, k) if form != "w @ x" else (k,))
    x, w = (jnp.asarray(v, dtype) for v in (drawn_x, rng.integers(-100, 100, (n, k))))
    wide = jnp.int32 if dtype == "int8" else jnp.float32

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        if form == "w @ x":
            return jnp.matmul(w, x, preferred_element_type=wide)
        return jnp.matmul(
            x, w.T if form == "x @ w.T" else w.reshape(k, n), preferred_element_type=wide
        )

    compiled = rlx.Session("cpu").compile(rlx_xla.trace(function, x, w), options=COMMON)
    assert ("stablehlo.transpose" in compiled.stablehlo()) == (form != "x @ w")
    exact = np.asarray(x, np.float64), np.asarray(w, np.float64)
    turned = exact[1].reshape(k, n) if form == "x @ w" else exact[1].T
    found = np.asarray(compiled(x, w), np.float64)
    np.testing.assert_allclose(found, exact[0] @ turned, rtol=1e-6, atol=1)


@pytest.mark.parametrize(("n", "k", "turned"), [(64, 64, True), (10, 256, False), (8, 4096, False)])
def test_a_short_row_of_f32_compiles_as_one_loop(
    n: int, k: int, turned: bool, rng: np.random.Generator
) -> None:
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((1, k), (n, k)))
    traced = rlx_xla.trace(lambda x, w: (x + 1) @ w.T, x, w)
    compiled = rlx.Session("cpu").compile(traced, options=COMMON)
    assert ("stablehlo.transpose" in compiled.stablehlo()) == turned
    wanted = np.asarray(x + 1, np.float64) @ np.asarray(w, np.float64).T
    np.testing.assert_allclose(compiled(x, w), wanted, rtol=1e-4, atol=1e-4)


def test_functions_written_out_in_doubles(rng: np.random.Generator) -> None:
    x, y = (jnp.asarray(rng.standard_normal(2**15) * 50, jnp.float32) for _ in range(2))
    x = x.at[:4].set(jnp.asarray([0.0, -0.0, jnp.nan, 1e6]))

    def function(x: jax.Array, y: jax.Array) -> Any:
        return jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.arctan2(x, y), lax.rem(x, y)

    compiled = rlx.Session("cpu").compile(rlx_xla.trace(function, x, y), options=COMMON)
    assert "stablehlo.case" in compiled.stablehlo()
    found, theirs = compiled(x, y), jax.jit(function)(x, y)
    for got, want in zip(found, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-9)
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])
    np.testing.assert_array_equal(found[-1], theirs[-1])


def test_other_platforms_keep_one_op_each(rng: np.random.Generator) -> None:
    del rng
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[64, 64]")
    graph = b.build(CumSum(axis=0)(x), Argmax(axis=1)(x))
    for platform in ("cuda", "tpu"):
        text = rlx_xla.stablehlo(graph, platform=platform)
        assert "stablehlo.reduce_window" in text
        assert "stablehlo.while" not in text
    assert "stablehlo.while" in rlx_xla.stablehlo(graph, platform="cpu")
