"""Linear algebra, complex order and placement: what JAX's public functions trace to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import rlx
import rlx_xla
from rlx.errors import LoweringError
from rlx.ops import solve as ops
from rlx_xla.lowering.module import lower_to_module
from rlx_xla.tracing.to_jax import to_jax

RNG = np.random.default_rng(0)
SQUARE = RNG.normal(size=(2, 4, 4)).astype(np.float32) + 4 * np.eye(4, dtype=np.float32)
TALL = RNG.normal(size=(5, 3)).astype(np.float32)
RIGHT = RNG.normal(size=(2, 4, 3)).astype(np.float32)
COMPLEX = (TALL + 1j * TALL[::-1]).astype(np.complex64)


def _check(function: Callable[..., Any], *arguments: Any) -> rlx_xla.Traced:
    traced = rlx_xla.trace(function, *arguments)
    assert traced.coverage().external == 0, str(traced.coverage())
    found = rlx.Session("cpu").compile(traced)(*arguments)
    chex.assert_trees_all_close(found, jax.jit(function)(*arguments), rtol=1e-5, atol=1e-5)
    return traced


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda a: jnp.linalg.cholesky(a @ a.mT), (SQUARE,)),
        (jnp.linalg.solve, (SQUARE, RIGHT)),
        (jnp.linalg.inv, (SQUARE,)),
        (jnp.linalg.slogdet, (SQUARE,)),
        (jnp.linalg.det, (SQUARE,)),
        (jnp.linalg.svd, (TALL,)),
        (jnp.linalg.qr, (TALL,)),
        (jnp.linalg.lstsq, (TALL, TALL[:, 0])),
        (jnp.linalg.pinv, (TALL,)),
        (lambda a: jnp.linalg.eigh(a + a.mT), (SQUARE,)),
        (jnp.linalg.eig, (SQUARE,)),
        (
            lambda a: jax.lax.linalg.symmetric_product(a, a, alpha=0.5, beta=-2.0),
            (SQUARE + SQUARE.swapaxes(1, 2),),
        ),
        (jax.grad(lambda a: jnp.abs(jnp.linalg.eigvals(a)).sum()), (SQUARE,)),
        (lambda a: jax.grad(lambda a: jnp.linalg.slogdet(a)[1].sum())(a), (SQUARE,)),
        (lambda a: jax.scipy.linalg.qr(a, mode="economic", pivoting=True), (TALL,)),
        (
            lambda x: (x.max(0), x.min(), jax.lax.clamp(np.complex64(0), x, np.complex64(1))),
            (COMPLEX,),
        ),
        (lambda x: jax.lax.cummax(x, axis=0, reverse=True), (COMPLEX,)),
        (lambda x: jax.device_put(x) + 1, (TALL,)),
        (lambda x: jax.lax.top_k(x > 0, 2), (TALL,)),
    ],
)
def test_public_functions(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    _check(function, *arguments)


@pytest.mark.skipif(
    not hasattr(jax.lax.linalg, "EighImplementation"), reason="this jax has one method"
)
def test_eigh_by_a_method() -> None:
    method = jax.lax.linalg.EighImplementation.QR
    traced = _check(lambda a: jax.lax.linalg.eigh(a, implementation=method), SQUARE)
    assert any(n.op == ops.Eigh(method=ops.EighMethod.QR) for n in traced.graph.nodes())


def test_conjugate_gradients() -> None:
    matrix = SQUARE[0] @ SQUARE[0].T
    _check(lambda b: jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, b)[0], RIGHT[0, :, 0])


def test_gamma_draws_what_jax_draws() -> None:
    _check(lambda key, a: jax.random.gamma(key, a), jax.random.key(3), jnp.array([0.5, 2.0]))


def test_solve_means_what_scipy_means() -> None:
    found = ops.DenseSolve().evaluate(SQUARE, RIGHT)
    wanted = np.stack([scipy.linalg.solve(a, b) for a, b in zip(SQUARE, RIGHT, strict=True)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def _graph(op: Any, text: str) -> rlx.Graph:
    b = rlx.GraphBuilder("g")
    made = op(*(b.input(f"x{i}", part) for i, part in enumerate(text.split("; "))))
    return b.build(*(made if isinstance(made, tuple) else (made,)))


@pytest.mark.parametrize(
    ("op", "types"),
    [
        (ops.Cholesky(), "f32[4, 4]"),
        (ops.TriangularSolve(conjugate_a=True), "c64[4, 4]; c64[4, 2]"),
        (ops.TriangularSolve(conjugate_a=True, transpose_a=True), "c64[4, 4]; c64[4, 2]"),
        (ops.Lu(), "f32[4, 4]"),
    ],
)
def test_portable_modules_hold_core_ops(op: Any, types: str) -> None:
    text = str(lower_to_module(_graph(op, types), "cpu", portable=True).module)
    assert "custom_call" not in text


def test_a_portable_module_calls_no_library() -> None:
    graph = _graph(ops.Eig(), "f32[4, 4]")
    with pytest.raises(LoweringError, match="eig is required to call a library, which a portable"):
        lower_to_module(graph, "cpu", portable=True)


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_accelerators_have_their_own_libraries(platform: str) -> None:
    for op in (ops.Geqrf(), ops.Lu(), ops.Cholesky()):
        lower_to_module(_graph(op, "f32[4, 4]"), platform)


def test_a_method_that_a_device_lacks_is_refused() -> None:
    graph = _graph(ops.Svd(method=ops.SvdMethod.JACOBI), "f32[4, 4]")
    with pytest.raises(LoweringError, match="JAX is required to lower it for 'cpu'; it says"):
        lower_to_module(graph, "cpu")


@pytest.mark.parametrize(
    ("op", "types"),
    [
        (ops.Cholesky(), "f32[4, 4]"),
        (ops.TriangularSolve(lower=False), "f32[4, 4]; f32[4, 2]"),
        (ops.Lu(), "f32[5, 4]"),
        (ops.LuPivotsToPermutation(permutation_size=5), "i32[4]"),
        (ops.Geqrf(), "f32[5, 4]"),
        (ops.Geqp3(), "f32[5, 4]; i32[4]"),
        (ops.HouseholderProduct(), "f32[5, 4]; f32[4]"),
        (ops.Qr(pivoting=True), "f32[5, 4]"),
        (ops.Eigh(lower=False), "f32[4, 4]"),
        (ops.Svd(full_matrices=True, method=ops.SvdMethod.QR), "f32[5, 4]"),
        (ops.TridiagonalSolve(), "f32[4]; f32[4]; f32[4]; f32[4, 1]"),
        (ops.DenseSolve(), "f32[4, 4]; f32[4]"),
        (ops.Det(), "f32[4, 4]"),
        (ops.LogDet(), "f32[4, 4]"),
    ],
    ids=lambda value: value.op_name if isinstance(value, rlx.ir.op.Op) else "",
)
def test_ops_come_back_from_jax(op: Any, types: str) -> None:
    graph = _graph(op, types)
    function = to_jax(graph)
    arguments = [jax.ShapeDtypeStruct(v.type.shape, v.type.dtype.numpy) for v in graph.inputs]
    back = rlx_xla.trace(function, *arguments).graph
    assert [n.op for n in back.nodes() if n.op.op_name != "input"] == [op], str(back)


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (lambda a: jnp.linalg.cholesky(a @ a.mT), SQUARE),
        (lambda a: jax.scipy.sparse.linalg.cg(lambda v: (a @ a.mT)[0] @ v, a[1, 0])[0], SQUARE),
        (lambda a: jnp.linalg.solve(a, a[..., :1]), SQUARE),
        (lambda a: jnp.linalg.svd(a, full_matrices=False)[1], TALL),
    ],
)
def test_derivatives_are_those_of_jax(function: Callable[..., Any], argument: Any) -> None:
    back = to_jax(rlx_xla.trace(function, argument))
    found, wanted = (jax.grad(lambda a, f=f: f(a).sum())(argument) for f in (back, function))
    chex.assert_trees_all_close(found, wanted, rtol=1e-4, atol=1e-4)
