"""The kernel of products with few rows: which contractions it takes, and its handler's checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import DType
from rlx.ops.dot import DotAlgorithm, DotGeneral
from rlx.types import as_type
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.library import matmul
from rlx_xla.kernels.select import kernels_for

BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _kernels(function: Any) -> list[str]:
    return [c.implementation for c in function.report().choices if c.kind == "kernel"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "form",
    [
        lambda x, w: x @ w,
        lambda x, w: x @ w.T,
        lambda x, w: jnp.einsum("...k,nk->...n", x, w),
        lambda x, w: w @ x[0],
        lambda x, w: x[0] @ w,
        lambda x, w: jnp.einsum("bk,knh->bnh", x, w.reshape(256, 4, 64)),
        lambda x, w: jnp.einsum("bnh,nhd->bd", x.reshape(1, 4, 64), w.reshape(4, 64, 256)),
        lambda x, w: jnp.dot(x, w, preferred_element_type=jnp.float32),
    ],
)
def test_natural_forms_run_the_kernel(
    dtype: str, form: Callable[..., Any], rng: np.random.Generator
) -> None:
    x = jnp.asarray(rng.normal(size=(1, 256))).astype(dtype)
    w = jnp.asarray(rng.normal(size=(256, 256)) / 16).astype(dtype)
    ours = rlx_xla.jit(form)
    found, wanted = ours(x, w), jax.jit(form)(x, w)
    assert found.dtype == wanted.dtype
    bound = 2e-2 if dtype == "bfloat16" else 3e-3
    np.testing.assert_allclose(
        found.astype(jnp.float32), wanted.astype(jnp.float32), rtol=bound, atol=bound
    )
    assert _kernels(ours) == ["dot_general.cpu.ffi"]


def test_under_vmap_and_grad(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.normal(size=(3, 2, 160))).astype(jnp.float16)
    w = jnp.asarray(rng.normal(size=(3, 160, 160)) / 12).astype(jnp.float16)
    ours = rlx_xla.jit(jax.vmap(lambda x, w: x @ w))
    np.testing.assert_allclose(ours(x, w), jax.vmap(lambda x, w: x @ w)(x, w), rtol=4e-3, atol=4e-3)
    assert _kernels(ours) == ["dot_general.cpu.ffi"]
    loss = jax.grad(lambda x, w: jnp.sum((x @ w).astype(jnp.float32) ** 2))
    gradient = rlx_xla.jit(loss)
    np.testing.assert_allclose(
        gradient(x[0], w[0]).astype(np.float32),
        loss(x[0], w[0]).astype(np.float32),
        rtol=2e-2,
        atol=0.2,
    )
    assert "dot_general.cpu.ffi" in _kernels(gradient)


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_are_as_accurate_as_xla_s(axis: int, rng: np.random.Generator) -> None:
    x = rng.uniform(0, 1, (1, 8192)).astype(np.float16)
    w = rng.uniform(0, 1, (8192, 200)).astype(np.float16)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    matrix = w if axis == 0 else np.ascontiguousarray(w.T)

    def form(x: jax.Array, w: jax.Array) -> jax.Array:
        numbers = (((1,), (axis,)), ((), ()))
        return jax.lax.dot_general(x, w, numbers, preferred_element_type=jnp.float32)

    ours = rlx_xla.jit(form)
    errors = [np.max(np.abs(f(x, matrix) - exact) / exact) for f in (ours, jax.jit(form))]
    assert _kernels(ours) == ["dot_general.cpu.ffi"]
    assert errors[0] <= max(errors[1], 2e-6), errors


CONTRACT: dict[str, Any] = {"lhs_contracting": (1,), "rhs_contracting": (0,)}


@pytest.mark.parametrize(
    ("op", "types", "reason"),
    [
        (
            DotGeneral(**CONTRACT),
            ["i8[1, 256]", "i8[256, 256]"],
            "lhs is i8, and f32, bf16 and f16 are taken",
        ),
        (
            DotGeneral(**CONTRACT, preferred_element_type=DType.F64),
            ["f32[1, 256]", "f32[256, 256]"],
            "the result is f64, and f32, bf16 and f16 are taken",
        ),
        (
            DotGeneral(**CONTRACT, algorithm=DotAlgorithm.F16_F16_F16),
            ["f16[1, 256]", "f16[256, 256]"],
            f"the algorithm {DotAlgorithm.F16_F16_F16.value} is asked for",
        ),
        (DotGeneral(**CONTRACT), ["f16[b, 256]", "f16[256, 256]"], "f16[b, 256] is not static"),
        (DotGeneral(**CONTRACT), ["f16[1, 256]", "f16[256, n]"], "f16[256, n] is not static"),
        (
            DotGeneral(lhs_contracting=(1, 2), rhs_contracting=(1, 0)),
            ["f16[4, 16, 16]", "f16[16, 16, 256]"],
            "f16[4, 16, 16] and f16[16, 16, 256] are not rows and a matrix, each with its axes in "
            "order",
        ),
        (
            DotGeneral(lhs_contracting=(2,), rhs_contracting=(2,), lhs_batch=(1,), rhs_batch=(0,)),
            ["f16[2, 4, 256]", "f16[4, 256, 256]"],
            "batch axes do not lead in both operands",
        ),
        (
            DotGeneral(lhs_contracting=(0,), rhs_contracting=(0,)),
            ["f16[256, 2]", "f16[256, 256]"],
            "f16[256, 2] and f16[256, 256] are not rows and a matrix, each with its axes in order",
        ),
        (
            DotGeneral(**CONTRACT),
            ["f32[1, 2048]", "f32[2048, 2048]"],
            "one row of f32 with 4194304 terms is not [n, k] from 32768 to 2097152",
        ),
        (
            DotGeneral(lhs_contracting=(2,), rhs_contracting=(1,), lhs_batch=(0,), rhs_batch=(0,)),
            ["f32[3, 1, 16]", "f32[3, 16, 16]"],
            "XLA does batches of f32 products as fast",
        ),
    ],
)
def test_what_the_kernel_does_not_take(op: DotGeneral, types: list[str], reason: str) -> None:
    (kernel,) = kernels_for(DotGeneral, "cpu")
    assert kernel.supports(op, [as_type(t) for t in types], "cpu") == Refused(reason)


@pytest.mark.parametrize(
    ("types", "by_rows", "taken"),
    [
        (["f32[1, 512]", "f32[512, 512]"], False, False),
        (["f32[1, 512]", "f32[512, 512]"], True, True),
        (["f32[1, 181]", "f32[181, 181]"], True, False),
        (["f32[8, 128]", "f32[128, 128]"], True, True),
        (["f32[7, 128]", "f32[128, 128]"], True, False),
        (["f32[64, 64]", "f32[64, 64]"], False, False),
        (["f32[96, 96]", "f32[96, 96]"], False, False),
        (["f32[112, 112]", "f32[112, 112]"], False, True),
        (["f32[128, 128]", "f32[128, 128]"], False, True),
        (["f32[129, 128]", "f32[128, 128]"], False, False),
        (["f32[4, 128]", "f32[128, 512]"], False, False),
        (["f32[32, 512]", "f32[512, 512]"], True, True),
        (["f32[32, 512]", "f32[512, 512]"], False, False),
        (["f32[4, 2048]", "f32[2048, 2048]"], True, True),
        (["f32[2, 1024]", "f32[1024, 1024]"], False, True),
        (["f32[3, 1024]", "f32[1024, 1024]"], False, matmul.WIDE),
        (["f32[16, 384]", "f32[384, 1536]"], False, matmul.WIDE),
        (["f32[17, 384]", "f32[384, 1536]"], False, False),
        (["f32[16, 2048]", "f32[2048, 2049]"], False, False),
        (["f16[16, 128]", "f16[128, 128]"], False, True),
        (["f16[17, 128]", "f16[128, 128]"], False, False),
        (["f16[32, 1024]", "f16[1024, 1024]"], False, True),
        (["bf16[1, 128]", "f32[128, 128]"], False, True),
        (["f16[0, 128]", "f16[128, 128]"], False, False),
        (["bf16[1, 128]", "bf16[128, 128]"], False, True),
    ],
)
def test_thresholds(types: list[str], by_rows: bool, taken: bool) -> None:
    (kernel,) = kernels_for(DotGeneral, "cpu")
    op = DotGeneral(
        lhs_contracting=(1,), rhs_contracting=(int(by_rows),), preferred_element_type=DType.F32
    )
    verdict = kernel.supports(op, [as_type(t) for t in types], "cpu")
    assert isinstance(verdict, Supported) is taken


@pytest.mark.parametrize(
    ("types", "by_rows", "with_pairs", "without"),
    [
        (["bf16[1, 64]", "bf16[64, 64]"], False, True, False),
        (["bf16[1, 64]", "bf16[64, 63]"], False, False, False),
        (["bf16[1, 128]", "bf16[128, 128]"], False, True, True),
        (["bf16[2, 1024]", "bf16[1024, 1024]"], False, True, False),
        (["bf16[3, 1024]", "bf16[1024, 1024]"], True, True, True),
        (["bf16[4, 1024]", "bf16[1024, 1024]"], True, True, False),
        (["bf16[5, 64]", "bf16[64, 64]"], True, False, False),
        (["bf16[8, 4096]", "bf16[4096, 4096]"], False, True, False),
        (["bf16[9, 4096]", "bf16[4096, 4096]"], False, False, False),
        (["bf16[16, 512]", "bf16[512, 512]"], False, True, False),
        (["bf16[16, 1024]", "bf16[1024, 1024]"], False, False, False),
        (["bf16[16, 1024]", "bf16[1024, 1024]"], True, True, False),
        (["bf16[32, 512]", "bf16[512, 512]"], True, True, False),
        (["bf16[32, 512]", "bf16[512, 512]"], False, False, False),
        (["bf16[33, 512]", "bf16[512, 512]"], True, False, False),
    ],
)
def test_thresholds_of_bf16_follow_the_cpu(
    types: list[str], by_rows: bool, with_pairs: bool, without: bool
) -> None:
    op = DotGeneral(lhs_contracting=(1,), rhs_contracting=(int(by_rows),))
    product = matmul.product_of(op, [as_type(t) for t in types])
    assert not isinstance(product, Refused)
    for pairs, most, taken in ((True, 8, with_pairs), (False, 3, without)):
        gains = matmul.bf16_gains(most, pairs=pairs)
        assert any(gain.holds(product) for gain in gains) is taken, (pairs, gains)


@pytest.mark.skipif(not matmul.PAIRS, reason="this CPU does not multiply pairs of bf16")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("by_rows", [False, True])
def test_pairs_of_bf16_are_summed_in_f32(
    by_rows: bool, strict: bool, rng: np.random.Generator
) -> None:
    # Each size ends within a vector, a tile, a block and a stretch.
    for rows, k, n in ((1, 515, 1031), (3, 130, 545), (6, 77, 1025), (16, 515, 530), (8, 1030, 66)):
        x, w = rng.normal(size=(rows, k)).astype(BF16), rng.normal(size=(k, n)).astype(BF16)
        exact = x.astype(np.float64) @ w.astype(np.float64)
        size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
        matrix = np.ascontiguousarray(w.T) if by_rows else w
        numbers = (((1,), (int(by_rows),)), ((), ()))

        def form(x: jax.Array, w: jax.Array, numbers: Any = numbers) -> jax.Array:
            wide = jnp.float32
            return jax.lax.dot_general(x, w, numbers, "highest", preferred_element_type=wide)

        ours = rlx_xla.jit(form, options=rlx.CompileOptions(strict=strict))
        assert (np.abs(np.asarray(ours(x, matrix)) - exact) <= 2e-6 * size).all(), (rows, k, n)
        assert _kernels(ours) == ["dot_general.cpu.ffi"]


@pytest.mark.skipif(not matmul.WIDE, reason="this CPU has no AVX-512")
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_few_rows_of_f32(dtype: DType, rng: np.random.Generator) -> None:
    for rows, k, n in ((2, 515, 305), (8, 770, 96), (11, 200, 431), (16, 384, 400)):
        x = rng.normal(size=(rows, k)).astype(np.float32)
        w = rng.normal(size=(k, n)).astype(np.float32)
        exact = x.astype(np.float64) @ w.astype(np.float64)
        size = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
        ours = rlx_xla.jit(
            lambda x, w: jnp.matmul(x, w, preferred_element_type=dtype.numpy),
        )
        error = np.abs(np.asarray(ours(x, w), np.float64) - exact)
        rounded = 2**-8 * np.abs(exact) if dtype is DType.BF16 else 0
        assert (error <= 2e-6 * size + rounded).all(), (rows, k, n)
        assert _kernels(ours) == ["dot_general.cpu.ffi"]


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_special_numbers_of_bf16(rows: int, by_rows: bool, rng: np.random.Generator) -> None:
    x = rng.normal(size=(rows, 129)).astype(BF16)
    w = rng.normal(size=(1025, 129)).astype(BF16)
    x[0, 3], w[5, 7], w[6, 7], w[7, 3] = np.inf, np.nan, -np.inf, 0
    w[8:12] = 1e-40  # counts as zero, as it does for XLA; times infinity that is a NaN
    w[12] = 1e-30
    matrix = w if by_rows else np.ascontiguousarray(w.T)
    form: Any = (lambda x, w: x @ w.T) if by_rows else (lambda x, w: x @ w)
    ours = rlx_xla.jit(form)
    runs: list[Any] = [ours, jax.jit(form)]
    found, wanted = (np.asarray(f(x, matrix), np.float32) for f in runs)
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)
    assert np.isnan(found[0, [5, 7, 8]]).all()
    taken = rows == 1 or matmul.PAIRS
    assert _kernels(ours) == (["dot_general.cpu.ffi"] if taken else [])


def test_a_product_is_read_from_either_operand() -> None:
    op = DotGeneral(lhs_contracting=(1,), rhs_contracting=(1,), lhs_batch=(0,), rhs_batch=(0,))
    product = matmul.product_of(op, [as_type("f16[3, 5, 7]"), as_type("f16[3, 5]")])
    assert product == matmul.Product(
        batch=1, summed=1, weights=0, by_rows=False, products=3, rows=1, k=5, n=7
    )


def _refused(args: list[np.ndarray], result: tuple[int, ...], message: str, **more: Any) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    given = {
        "batch": np.int64(0),
        "summed": np.int64(1),
        "weights": np.int64(1),
        "by_rows": np.bool_(False),
        **more,
    }
    call = jax.ffi.ffi_call(
        library.target("rlx_matmul_f32_cpu"), jax.ShapeDtypeStruct(result, jnp.float32)
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"rlx_matmul_f32_cpu: {message}"):
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **given))(*args))


def test_the_handler_checks_its_call() -> None:
    x, w = np.zeros((2, 4), np.float32), np.zeros((4, 3), np.float32)
    shapes = r"x\[batch..., rows..., k...\] and weights\[batch..., k..., n...\] with 0 batch and 1 "
    _refused(
        [x, w],
        (2, 4),
        shapes + r"summed axes are required; got \[2, 4\] and \[4, 3\] -> \[2, 4\]\.",
    )
    _refused([x[:, :3], w], (2, 3), shapes)
    _refused([w, x[0]], (2, 3), shapes)
    _refused([x.astype(np.int32), w], (2, 3), shapes)
    _refused([w, x], (3, 2), shapes, weights=np.int64(0))
    _refused([x, w], (2, 3), r"weights must be operand 0 or 1; got 2\.", weights=np.int64(2))
    _refused([x, w.astype(np.int32)], (2, 3), "operand 1 must have element type 11")
    wrong = r"x\[batch..., rows..., k...\] and weights\[batch..., k..., n...\] with -1 batch and 1"
    _refused([x, w], (2, 3), wrong, batch=np.int64(-1))
