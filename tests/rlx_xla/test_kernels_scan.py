"""The kernels of running reductions and of top_k: accuracy, transformations, refusals, handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import as_dtype
from rlx.ir.op import Op
from rlx.ops.reduction import CumLogSumExp, CumSum
from rlx.ops.sorting import TopK
from rlx.types import as_type
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.select import kernels_for

CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _kernels(function: Any) -> set[str]:
    return {c.implementation for c in function.report().choices if c.kind == "kernel"}


def _both(function: Callable[..., Any], *args: Any) -> tuple[Any, Any, set[str]]:
    ours = rlx_xla.jit(function)
    found = jax.tree.leaves(ours(*args))
    return found, jax.tree.leaves(jax.jit(function)(*args)), _kernels(ours)


@pytest.mark.parametrize("name", CUMULATIVE)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumulative_reductions_as_jax_has_them(
    name: str, axis: int, rng: np.random.Generator
) -> None:
    x = jnp.asarray(rng.uniform(0.9, 1.1, (40, 33, 70)).astype(np.float32))
    for reverse in (False, True):
        found, wanted, kernels = _both(
            lambda x, r=reverse: getattr(jax.lax, name)(x, axis=axis, reverse=r), x
        )
        np.testing.assert_allclose(found[0], wanted[0], rtol=2e-6)
        assert kernels == {f"{name}.cpu.ffi"}


def test_integers_wrap_around(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.integers(-(2**31), 2**31, (3, 100), dtype=np.int64).astype(np.int32))
    for function in (jax.lax.cumsum, jax.lax.cumprod, jax.lax.cummax, jax.lax.cummin):
        for reverse in (False, True):
            found, wanted, kernels = _both(lambda x, f=function, r=reverse: f(x, 1, r), x)
            np.testing.assert_array_equal(found[0], wanted[0])
            assert len(kernels) == 1


@pytest.mark.parametrize("shape", [(1 << 20, 1), (1 << 14, 9)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_sums_are_as_accurate_as_xla_s(
    shape: tuple[int, int], dtype: type, rng: np.random.Generator
) -> None:
    x = rng.uniform(0, 1, shape).astype(dtype)
    exact = np.cumsum(x.astype(np.longdouble), axis=0)
    b = rlx.GraphBuilder("sum")
    graph = b.build(CumSum(axis=0)(b.input("x", rlx.TensorType(as_dtype(dtype), shape))))
    session = rlx.Session("cpu")
    common = rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
    ours = session.compile(graph)
    theirs = session.compile(graph, options=rlx.CompileOptions(kernel_dispatch=common))
    assert [c.implementation for c in ours.report().kernels] == ["cumsum.cpu.ffi"]
    errors = [float(np.max(np.abs(c.run({"x": x})[0] - exact) / exact)) for c in (ours, theirs)]
    unit = np.finfo(dtype).eps
    assert errors[0] <= max(errors[1], 2 * unit), (errors, unit)


def test_infinities_and_nan_win_from_where_they_stand() -> None:
    x = np.ones((4, 200), np.float32)
    x[0, 150] = np.inf
    x[1, 70] = np.nan
    x[2, 64] = -np.inf
    x[3, 10], x[3, 100] = np.inf, -np.inf
    for name in CUMULATIVE:
        for reverse in (False, True):
            found, wanted, _ = _both(
                lambda x, n=name, r=reverse: getattr(jax.lax, n)(x, axis=1, reverse=r),
                jnp.asarray(x),
            )
            np.testing.assert_allclose(found[0], wanted[0], rtol=2e-6)


def test_a_sum_of_zeros_and_the_signs_of_extremes() -> None:
    x = jnp.asarray(np.array([[0.0, -0.0] * 40, [-0.0, 0.0] * 40], np.float32))
    for function in (jax.lax.cummax, jax.lax.cummin):
        found, wanted, _ = _both(lambda x, f=function: f(x, axis=1), x)
        np.testing.assert_array_equal(np.signbit(found[0]), np.signbit(wanted[0]))


def test_cumulative_under_vmap_and_grad(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.uniform(0.9, 1.1, (5, 64)).astype(np.float32))
    for name in CUMULATIVE:
        function = getattr(jax.lax, name)
        found, wanted, kernels = _both(jax.vmap(function), x)
        np.testing.assert_allclose(found[0], wanted[0], rtol=2e-6)
        assert f"{name}.cpu.ffi" in kernels
    found, wanted, kernels = _both(jax.vmap(jax.grad(lambda x: jnp.sum(jax.lax.cumsum(x) ** 2))), x)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    assert kernels == {"cumsum.cpu.ffi"}


@pytest.mark.parametrize("k", [1, 5, 128, 129, 1000])
def test_top_k_as_jax_has_it(k: int, rng: np.random.Generator) -> None:
    x = jnp.asarray(np.round(rng.normal(size=(2, 3, 1000)), 1).astype(np.float32))
    found, wanted, kernels = _both(lambda x: jax.lax.top_k(x, k), x)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    assert kernels == {"top_k.cpu.ffi"}


def test_top_k_under_vmap_and_grad(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.normal(size=(4, 2, 100)).astype(np.float32))
    for function in (
        jax.vmap(lambda x: jax.lax.top_k(x, 3)),
        jax.grad(lambda x: jnp.sum(jax.lax.top_k(x, 3)[0] ** 2)),
    ):
        found, wanted, kernels = _both(function, x)
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        assert "top_k.cpu.ffi" in kernels


def test_rows_for_many_threads(rng: np.random.Generator) -> None:
    x = jnp.asarray(np.round(rng.normal(size=(300, 500)), 2).astype(np.float32))
    found, wanted, kernels = _both(
        lambda x: (jax.lax.top_k(x, 7), jax.lax.cummax(x, 0), jax.lax.cummin(x, 1)), x
    )
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    assert len(kernels) == 3


@pytest.mark.parametrize(
    ("op", "type_", "reason"),
    [
        (
            CumSum(axis=0),
            "i8[64]",
            "x is i8, and the handler takes f32, f64, bf16, f16, i32, i64, u32",
        ),
        (CumLogSumExp(axis=0), "f64[64]", "x is f64, and the handler takes f32, bf16, f16"),
        (
            CumSum(axis=0, exclusive=True),
            "f32[64]",
            "exclusive results are not among the handler's",
        ),
        (CumSum(axis=0), "f32[n]", "f32[n] is not static"),
        (CumSum(axis=1), "f32[64, 31]", "an axis of 31 elements is shorter than 32"),
        (CumLogSumExp(axis=1), "f32[64, 7]", "an axis of 7 elements is shorter than 8"),
        (TopK(k=2), "f64[64]", "x is f64, and the handler takes f32, bf16, f16, i32, u32"),
        (TopK(k=2), "f32[n, 64]", "f32[n, 64] is not static"),
        (TopK(k=0), "f32[64]", "k is 0"),
        (TopK(k=2), "f32[63]", "rows of 63 elements are outside 64 to 2147483647"),
        (TopK(k=2), "bf16[15]", "rows of 15 elements are outside 16 to 2147483647"),
    ],
)
def test_what_the_kernels_do_not_take(op: Op, type_: str, reason: str) -> None:
    (kernel,) = kernels_for(type(op), "cpu")
    assert kernel.supports(op, [as_type(type_)], "cpu") == Refused(reason)


def _refused(symbol: str, results: Any, x: np.ndarray, message: str, **attributes: Any) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    call = jax.ffi.ffi_call(library.target(symbol), results)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"{symbol}: {message}"):
        jax.block_until_ready(jax.jit(lambda x: call(x, **attributes))(x))


def test_the_handlers_check_their_calls() -> None:
    x = np.zeros((2, 4), np.float32)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    fine = {"kind": np.int64(0), "axis": np.int64(1), "reverse": np.bool_(False)}
    symbol = "rlx_cumulative_f32_cpu"
    _refused(symbol, like, x, "axis must be one of", **{**fine, "axis": np.int64(2)})
    _refused(symbol, like, x, "kind must be from 0 to 4; got 5", **{**fine, "kind": np.int64(5)})
    shorter = jax.ShapeDtypeStruct((2, 3), x.dtype)
    _refused(symbol, shorter, x, r"axis must be .* \[2, 4\] -> \[2, 3\]", **fine)
    wide = jax.ShapeDtypeStruct((2, 4), jnp.int32)
    _refused(
        "rlx_cumulative_i32_cpu",
        wide,
        x.astype(np.int32),
        "kind must be from 0 to 3; got 4",
        **{**fine, "kind": np.int64(4)},
    )
    for shape in ((2, 5), (3, 2)):
        results = [jax.ShapeDtypeStruct(shape, d) for d in (jnp.float32, jnp.int32)]
        _refused(
            "rlx_top_k_f32_cpu",
            results,
            x,
            "as many rows, of 1 to n < 2.31 elements, are required",
            nan_is_lowest=np.bool_(False),
        )
    results = [jax.ShapeDtypeStruct((2, 2), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)]
    _refused(
        "rlx_top_k_f32_cpu",
        results,
        x,
        "two results of one shape",
        nan_is_lowest=np.bool_(False),
    )
