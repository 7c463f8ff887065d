"""The argreduce handlers against jax.lax.argmax and argmin."""

from __future__ import annotations

import contextlib
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx_xla.kernels.ffi import LoadedLibrary, Unavailable, load

SIZES = (1, 2, 7, 31, 32, 63, 64, 65, 127, 2047, 2048, 2049, 5000)
DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32}


@pytest.fixture(scope="module")
def library() -> LoadedLibrary:
    loaded = load()
    if isinstance(loaded, Unavailable):
        compilers = [c for c in ("c++", "g++", "clang++") if shutil.which(c)]
        assert not compilers, f"{compilers} exist, yet: {loaded.reason}"
        pytest.skip(loaded.reason)
    return loaded


@functools.cache
def kernel(target: str, *, minimum: bool, axis: int = -1):
    def call(x, axis=axis):
        axis = axis % x.ndim
        result = jax.ShapeDtypeStruct(x.shape[:axis] + x.shape[axis:][1:], jnp.int32)
        call = jax.ffi.ffi_call(target, result)
        return call(x, axis=np.int64(axis), minimum=np.bool_(minimum))

    return jax.jit(call)


@contextlib.contextmanager
def x64(enabled: bool):
    """Set the flag itself: the context managers for it have other names in other versions."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", enabled)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


@functools.cache
def kernels_and_references(target: str, axis: int):
    def both(x):
        at, index = axis % x.ndim, np.int32
        return (
            tuple(kernel(target, minimum=m, axis=axis)(x) for m in (False, True)),
            (jax.lax.argmax(x, at, index), jax.lax.argmin(x, at, index)),
        )

    return jax.jit(both)  # one compilation for all four


def check(library: LoadedLibrary, x: np.ndarray, dtype: str = "f32", axis: int = -1) -> None:
    target = library.target(f"rlx_argreduce_{dtype}_cpu")
    with x64(dtype == "f64"):
        array = jnp.asarray(x)
        assert array.dtype == x.dtype
        got, expected = kernels_and_references(target, axis)(array)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", SIZES)
def test_random_rows_of_ragged_sizes(library, rng, cols, dtype):
    x = rng.normal(size=(3, cols)) * 1000
    check(library, x.astype(DTYPES[dtype]), dtype)


@pytest.mark.parametrize("cols", SIZES)
def test_ties_give_the_first_position(library, rng, cols):
    check(library, rng.integers(0, 3, size=(5, cols)).astype(np.float32))
    check(library, np.zeros((2, cols), np.float32))


@pytest.mark.parametrize("cols", SIZES)
def test_nan_wins_and_the_first_one_is_returned(library, rng, cols):
    x = rng.normal(size=(6, cols)).astype(np.float32)
    for row in range(1, 6):  # row 0 has none
        x[row, rng.integers(0, cols, size=min(row, cols))] = np.nan
    x[4, 0] = np.inf
    x[5, :] = np.nan
    check(library, x)


@pytest.mark.parametrize("cols", SIZES)
def test_zeros_of_both_signs_are_equal(library, rng, cols):
    x = np.where(rng.integers(0, 2, size=(4, cols)) == 1, 0.0, -0.0).astype(np.float32)
    check(library, x)


@pytest.mark.parametrize("cols", SIZES)
def test_infinities(library, rng, cols):
    x = rng.choice(np.array([np.inf, -np.inf, 1.0], np.float32), size=(6, cols))
    x[0, :] = -np.inf
    x[1, :] = np.inf
    check(library, x)


def test_extremes_of_int32(library):
    info = np.iinfo(np.int32)
    check(library, np.full((2, 40), info.min, np.int32), "i32")
    check(library, np.array([[info.max, info.min, info.max, info.min]], np.int32), "i32")


def test_subnormals_compare_as_xla_compares_them(library):
    x = np.array([[0.0, 1e-40, -1e-40, 2e-40] * 20], np.float32)
    check(library, x)


def test_the_best_of_each_position_in_a_long_row(library):
    x = np.zeros((4500, 4500), np.float32)  # also enough rows for every thread
    np.fill_diagonal(x, 1.0)
    target = library.target("rlx_argreduce_f32_cpu")
    np.testing.assert_array_equal(kernel(target, minimum=False)(x), np.arange(4500))


def test_leading_axes_and_no_rows(library, rng):
    check(library, rng.normal(size=(2, 3, 4, 5)).astype(np.float32))
    check(library, rng.normal(size=(17,)).astype(np.float32))
    check(library, np.zeros((0, 4), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [2, 7, 63, 64, 65, 513, 1000])
def test_columns_of_ragged_sizes(library, rng, inner, dtype):
    x = rng.normal(size=(2, 33, inner)) * 3
    if dtype != "i32":
        x[rng.random(x.shape) < 0.05] = 0.0
        x[rng.random(x.shape) < 0.05] = -0.0
        x[:, rng.integers(0, 33, 3), rng.integers(0, inner, 3)] = np.nan
    check(library, np.round(x, 1).astype(DTYPES[dtype]), dtype, axis=1)


def test_a_first_axis_of_one_and_of_many(library, rng):
    check(library, rng.normal(size=(1, 300)).astype(np.float32), axis=0)
    check(library, rng.normal(size=(3000, 300)).astype(np.float32), axis=0)
    check(library, np.full((40, 9), np.nan, np.float32), axis=0)


def test_an_empty_axis_is_refused(library):
    target = library.target("rlx_argreduce_f32_cpu")
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"an axis of 1 to .* got axis 1 of \[2, 0\]"
    ):
        kernel(target, minimum=False)(np.zeros((2, 0), np.float32)).block_until_ready()


def test_a_wrong_dtype_is_refused(library):
    target = library.target("rlx_argreduce_f32_cpu")
    with pytest.raises(jax.errors.JaxRuntimeError, match="operand 0 must have element type 11"):
        kernel(target, minimum=False)(np.zeros((2, 4), np.int32)).block_until_ready()


def test_a_missing_attribute_is_refused(library):
    target = library.target("rlx_argreduce_f32_cpu")
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((2,), jnp.int32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'minimum' is required"):
        jax.jit(functools.partial(call, axis=np.int64(1)))(
            np.zeros((2, 4), np.float32)
        ).block_until_ready()
