"""Samples of linear algebra; results that are unique up to a phase are checked by what they solve.

Matrices are far from singular, so that errors stay at the size of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, ShapeError
from rlx.ops import solve as ops
from rlx.ops.solve import SvdMethod
from rlx.tolerances import Tolerance
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw

DTYPES = (DType.F32, DType.F64, DType.C64, DType.C128)
SHAPES = ((0, 0), (1, 1), (2, 0, 3), (3, 0), (2, 5, 3), (3, 5), (2, 2, 4, 4), (33, 17))
SQUARES = ((0, 0), (1, 1), (0, 3, 3), (2, 4, 4), (33, 33))

# Sums of up to 33 terms; the results do not shrink with the errors.
_BOUND = {
    DType.F32: Tolerance(1e-4, 1e-4),
    DType.C64: Tolerance(1e-4, 1e-4),
    DType.F64: Tolerance(1e-11, 1e-11),
    DType.C128: Tolerance(1e-11, 1e-11),
    # Substitution in the narrow type, as XLA does it: an error of each of up to 17 steps.
    DType.F16: Tolerance(2e-2, 2e-2),
    DType.BF16: Tolerance(1.2e-1, 1.2e-1),
}


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DTYPES:
        yield from _factors(rng, dtype)
        yield from _spectra(rng, dtype)
        yield from _systems(rng, dtype)
    yield from _special(rng)
    for dtype in (*DTYPES, DType.F16, DType.BF16):
        yield from _triangular(rng, dtype)
    for shape, size in (((0,), 0), ((1,), 1), ((2, 3), 5), ((2, 3, 4), 4), ((17,), 33)):
        pivots = np.minimum(np.arange(shape[-1]) + rng.integers(0, 5, shape), max(size - 1, 0))
        op = ops.LuPivotsToPermutation(permutation_size=size)
        yield Sample(op, (pivots.astype(np.int32),), f"{shape} {size}")


def _special(rng: np.random.Generator) -> Iterator[Sample]:
    """Matrices for which there is no result, and those that are singular."""
    bad = np.array([[[1, 9], [2, 1]], [[4, 9], [2, 5]]], np.float32)
    yield Sample(ops.Cholesky(), (bad,), "one is not positive definite")
    zeros = np.zeros((2, 3, 3), np.float32)
    yield Sample(ops.Lu(), (zeros,), "zeros")
    yield Sample(ops.Det(), (zeros,), "zeros")
    yield Sample(ops.LogDet(), (zeros,), "zeros")
    yield Sample(ops.DenseSolve(), (zeros, zeros), "singular")
    yield Sample(ops.TridiagonalSolve(), (*zeros[:, :, :].transpose(1, 0, 2), zeros), "singular")
    column = draw(rng, DType.F32, (5, 1))
    yield Sample(ops.Svd(), (column @ column.T,), "rank one", check=_svd)


def _factors(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    bound = _BOUND[dtype]
    for shape in SQUARES:
        x = _strong(rng, dtype, shape)
        hermitian = (x + _adjoint(x)) / np.array(2, x.dtype)
        # Only the lower triangle is read.
        hermitian = np.tril(hermitian) + 7 * np.triu(np.ones(shape, x.dtype), 1)
        yield Sample(ops.Cholesky(), (hermitian,), f"{dtype} {shape}", tolerance=bound)
    for shape in SHAPES:
        x = draw(rng, dtype, shape)
        label = f"{dtype} {shape}"
        yield Sample(ops.Lu(), (x,), label, tolerance=bound, check=_lu)
        yield Sample(ops.Geqrf(), (x,), label, tolerance=bound)
        for full in (False, True):
            yield Sample(ops.Qr(full_matrices=full), (x,), f"{label} {full}", check=_qr)
            op = ops.Qr(full_matrices=full, pivoting=True)
            yield Sample(op, (x,), f"{label} {full} pivoting", check=_qr)
        first = np.zeros((*shape[:-2], shape[-1]), np.int32)
        yield Sample(ops.Geqp3(), (x, first), label, tolerance=bound)
    for count, shape in ((0, (2, 0)), (1, (1, 1)), (2, (2, 5, 3)), (3, (4, 3)), (3, (0, 4, 3))):
        a, taus = draw(rng, dtype, shape), draw(rng, dtype, (*shape[:-2], count), high=1, low=0)
        op = ops.HouseholderProduct()
        yield Sample(op, (a, taus), f"{dtype} {shape} {count}", tolerance=bound)
    x = draw(rng, dtype, (6, 4))
    first = np.array([0, 0, 1, 0], np.int32)
    yield Sample(ops.Geqp3(), (x, first), f"{dtype} one column in front", tolerance=bound)


def _spectra(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape in SQUARES:
        x = draw(rng, dtype, shape)
        for lower in (True, False):
            op = ops.Eigh(lower=lower, sort_eigenvalues=lower)
            yield Sample(op, (x,), f"{dtype} {shape} {lower}", check=_eigh(op))
        for left, right in ((False, False), (True, False), (False, True), (True, True)):
            op = ops.Eig(left=left, right=right)
            yield Sample(op, (x,), f"{dtype} {shape} {left} {right}", check=_eig(op))
    for shape in SHAPES:
        x = draw(rng, dtype, shape)
        label = f"{dtype} {shape}"
        for full in (False, True):
            yield Sample(ops.Svd(full_matrices=full), (x,), f"{label} {full}", check=_svd)
        op = ops.Svd(compute_uv=False)
        yield Sample(op, (x,), label, tolerance=_BOUND[dtype])
    op = ops.Svd(method=SvdMethod.QR)
    yield Sample(op, (draw(rng, dtype, (4, 3)),), f"{dtype} by QR", check=_svd)


def _systems(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    bound = _BOUND[dtype]
    for shape in SQUARES:
        a = _strong(rng, dtype, shape)
        label = f"{dtype} {shape}"
        for b in (draw(rng, dtype, shape[:-1]), draw(rng, dtype, (*shape[:-1], 2))):
            yield Sample(ops.DenseSolve(), (a, b), f"{label} {b.shape}", tolerance=bound)
        small = a / np.array(max(shape[-1], 1), a.dtype)
        yield Sample(ops.Det(), (small,), label, tolerance=bound)
        yield Sample(ops.LogDet(), (a,), label, tolerance=bound)
        if shape[-1]:
            diagonals = [draw(rng, dtype, shape[:-1]) for _ in range(3)]
            diagonals[1] = diagonals[1] + np.array(10, dtype.numpy)
            right = draw(rng, dtype, (*shape[:-1], 3))
            yield Sample(ops.TridiagonalSolve(), (*diagonals, right), label, tolerance=bound)


def _triangular(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    cases: Sequence[tuple[bool, ...]] = (
        (True, True, False, False, False),
        (True, False, False, True, False),
        (False, True, True, False, True),
        (False, False, True, True, False),
        (True, True, True, True, True),
        (False, False, False, False, False),
    )
    for settings in cases:
        op = ops.TriangularSolve(
            **dict(zip(ops.TriangularSolve.attribute_names, settings, strict=True))
        )
        for shape in ((0, 0), (1, 1), (0, 3, 3), (2, 4, 4), (17, 17)):
            a = _strong(rng, dtype, shape)
            if op.unit_diagonal:
                a = a / np.array(4 * max(shape[-1], 1), a.dtype)
            right = (shape[-1], 2) if op.left_side else (2, shape[-1])
            b = draw(rng, dtype, (*shape[:-2], *right))
            yield Sample(op, (a, b), f"{dtype} {shape} {settings}", tolerance=_BOUND[dtype])


def _strong(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Matrices with a dominant diagonal."""
    x = draw(rng, dtype, shape, low=-1, high=1)
    return (x + 2 * shape[-1] * np.eye(shape[-1], dtype=x.dtype)).astype(x.dtype)


def _adjoint(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.conj(np.swapaxes(x, -1, -2))


def _near(found: Any, wanted: Any, dtype: DType) -> None:
    bound = _BOUND[dtype]
    np.testing.assert_allclose(found, wanted, atol=bound.atol, rtol=bound.rtol)


def _types(found: Sequence[Any], wanted: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    arrays = [np.asarray(a) for a in found]
    assert [(a.dtype, a.shape) for a in arrays] == [(a.dtype, a.shape) for a in wanted]
    return arrays


def _orthogonal(q: np.ndarray[Any, Any], dtype: DType) -> None:
    identity = np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1]))
    _near(_adjoint(q) @ q, identity, dtype)


def _lu(found: Sequence[Any], wanted: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Exact pivots could differ where two candidates tie, so the product is what counts."""
    lu, pivots, order = _types(found, wanted)
    (x,) = inputs
    dtype, k = as_dtype(x.dtype), min(x.shape[-2:])
    lower = np.tril(lu[..., :k], -1) + np.eye(lu.shape[-2], k)
    taken = np.take_along_axis(x, order[..., None], -2)
    _near(lower @ np.triu(lu[..., :k, :]), taken, dtype)
    np.testing.assert_array_equal(
        ops.LuPivotsToPermutation(permutation_size=x.shape[-2]).evaluate(pivots), order
    )


def _qr(found: Sequence[Any], wanted: Sequence[Any], inputs: Sequence[Any]) -> None:
    q, r, *order = _types(found, wanted)
    (x,) = inputs
    dtype = as_dtype(x.dtype)
    _orthogonal(q, dtype)
    np.testing.assert_array_equal(np.tril(r, -1), np.zeros_like(r))
    taken = np.take_along_axis(x, order[0][..., None, :], -1) if order else x
    _near(q @ r, taken, dtype)
    _near(np.abs(r), np.abs(wanted[1]), dtype)


def _eigh(op: ops.Eigh) -> Callable[..., None]:
    def check(found: Sequence[Any], wanted: Sequence[Any], inputs: Sequence[Any]) -> None:
        v, w = _types(found, wanted)
        (x,) = inputs
        dtype = as_dtype(x.dtype)
        half = np.tril(x, -1) if op.lower else _adjoint(np.triu(x, 1))
        diagonal = np.real(np.diagonal(x, axis1=-2, axis2=-1))
        whole = half + _adjoint(half) + diagonal[..., None] * np.eye(x.shape[-1])
        _orthogonal(v, dtype)
        _near(whole @ v, v * w[..., None, :], dtype)
        _near(w, wanted[1], dtype)

    return check


def _eig(op: ops.Eig) -> Callable[..., None]:
    def check(found: Sequence[Any], wanted: Sequence[Any], inputs: Sequence[Any]) -> None:
        w, *vectors = _types(found, wanted)
        (x,) = inputs
        dtype = as_dtype(w.dtype)
        # The order is the library's own: sums of powers are compared instead.
        for power, matrix in ((1, x), (2, x @ x)):
            total = np.trace(matrix, axis1=-2, axis2=-1)
            scale = np.maximum(1, np.sum(np.abs(w) ** power, axis=-1))
            _near(np.sum(w**power, axis=-1) / scale, total / scale, dtype)
        if op.right:
            right = vectors[-1]
            _near(x @ right, right * w[..., None, :], dtype)
        if op.left:
            left = vectors[0]
            _near(_adjoint(left) @ x, w[..., :, None] * _adjoint(left), dtype)
        for v in vectors:
            _near(np.linalg.norm(v, axis=-2), np.ones(v.shape[:-1]), dtype)

    return check


def _svd(found: Sequence[Any], wanted: Sequence[Any], inputs: Sequence[Any]) -> None:
    s, u, vt = _types(found, wanted)
    (x,) = inputs
    dtype, k = as_dtype(x.dtype), s.shape[-1]
    _orthogonal(u, dtype)
    _orthogonal(_adjoint(vt), dtype)
    _near((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], x, dtype)
    _near(s, wanted[0], dtype)


def error_samples() -> Iterator[ErrorSample]:
    for op in (ops.Cholesky, ops.Eigh, ops.Eig, ops.Det, ops.LogDet):
        yield ErrorSample(op, ("f32[4]",), ShapeError, "C1", "f32[4]")
        yield ErrorSample(op, ("f32[4, 3]",), ShapeError, "C1", "f32[4, 3]")
        yield ErrorSample(op, ("bf16[4, 4]",), DTypeError, "C2", "bf16[4, 4]")
    for op in (ops.Lu, ops.Geqrf, ops.Qr, ops.Svd):
        yield ErrorSample(op, ("f32[4]",), ShapeError, "C1", "f32[4]")
        yield ErrorSample(op, ("i32[4, 4]",), DTypeError, "C2", "i32[4, 4]")
    yield from _error_samples_with_operands()

    def permutation() -> ops.LuPivotsToPermutation:
        return ops.LuPivotsToPermutation(permutation_size=3)

    yield ErrorSample(permutation, ("i32[]",), ShapeError, "C1", "i32[]")
    yield ErrorSample(permutation, ("i32[4]",), ShapeError, "C1", "k ≤ 3")
    yield ErrorSample(permutation, ("i64[3]",), DTypeError, "C2", "i64[3]")


def _error_samples_with_operands() -> Iterator[ErrorSample]:
    product = ops.HouseholderProduct
    yield ErrorSample(product, ("f32[3]", "f32[3]"), ShapeError, "C1", "f32[3]")
    yield ErrorSample(product, ("f32[3, 4]", "f32[3]"), ShapeError, "C1", "m ≥ n")
    yield ErrorSample(product, ("f16[4, 3]", "f16[3]"), DTypeError, "C2", "f16[4, 3]")
    yield ErrorSample(product, ("f32[4, 3]", "f32[]"), ShapeError, "C3", "f32[]")
    yield ErrorSample(product, ("f32[4, 3]", "f32[4]"), ShapeError, "C3", "f32[4]")
    yield ErrorSample(product, ("f32[2, 4, 3]", "f32[1, 3]"), ShapeError, "C3", "f32[1, 3]")
    yield ErrorSample(product, ("f32[4, 3]", "f64[3]"), DTypeError, "C4", "f64[3]")
    yield ErrorSample(ops.Geqp3, ("f32[4]", "i32[4]"), ShapeError, "C1", "f32[4]")
    yield ErrorSample(ops.Geqp3, ("f16[4, 3]", "i32[3]"), DTypeError, "C2", "f16[4, 3]")
    yield ErrorSample(ops.Geqp3, ("f32[4, 3]", "i64[3]"), ShapeError, "C3", "i64[3]")
    yield ErrorSample(ops.Geqp3, ("f32[4, 3]", "i32[4]"), ShapeError, "C3", "i32[4]")
    triangular = ops.TriangularSolve
    yield ErrorSample(triangular, ("f32[3, 4]", "f32[4, 1]"), ShapeError, "C1", "f32[3, 4]")
    yield ErrorSample(triangular, ("f32[4, 4]", "f32[4]"), ShapeError, "C2", "f32[4]")
    yield ErrorSample(triangular, ("f32[4, 4]", "f32[2, 4]"), ShapeError, "C2", "f32[2, 4]")
    yield ErrorSample(triangular, ("f32[4, 4]", "f64[4, 1]"), DTypeError, "C3", "f64[4, 1]")
    yield ErrorSample(triangular, ("i32[4, 4]", "i32[4, 1]"), DTypeError, "C4", "i32[4, 4]")
    dense = ops.DenseSolve
    yield ErrorSample(dense, ("f32[3, 4]", "f32[4]"), ShapeError, "C1", "f32[3, 4]")
    yield ErrorSample(dense, ("f32[4, 4]", "f32[3]"), ShapeError, "C2", "f32[3]")
    yield ErrorSample(dense, ("f32[4, 4]", "f32[]"), ShapeError, "C2", "f32[]")
    yield ErrorSample(dense, ("f32[4, 4]", "f64[4]"), DTypeError, "C3", "f64[4]")
    yield ErrorSample(dense, ("f16[4, 4]", "f16[4]"), DTypeError, "C4", "f16[4, 4]")
    three = ops.TridiagonalSolve
    yield ErrorSample(three, ("f32[]", "f32[]", "f32[]", "f32[1]"), ShapeError, "C1", "f32[]")
    yield ErrorSample(three, ("f32[3]", "f32[4]", "f32[4]", "f32[4, 1]"), ShapeError, "C1", "dl")
    yield ErrorSample(three, ("f32[4]", "f32[4]", "f32[3]", "f32[4, 1]"), ShapeError, "C1", "du")
    yield ErrorSample(three, ("f32[4]", "f32[4]", "f32[4]", "f32[4]"), ShapeError, "C2", "f32[4]")
    yield ErrorSample(three, ("f32[4]",) * 3 + ("f32[3, 1]",), ShapeError, "C2", "f32[3, 1]")
    yield ErrorSample(three, ("f32[4]",) * 3 + ("f64[4, 1]",), DTypeError, "C3", "f64[4, 1]")
    yield ErrorSample(three, ("f16[4]",) * 3 + ("f16[4, 1]",), DTypeError, "C4", "f16[4]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    binding = {"b": 2, "n": 3}
    for op in (ops.Cholesky(), ops.Eigh(), ops.Det(), ops.LogDet()):
        yield SymbolicSample(op, ("f32[b, n, n]",), binding)
    for op in (ops.Lu(), ops.Geqrf(), ops.Qr(), ops.Svd()):
        yield SymbolicSample(op, ("f32[b, n, 2]",), binding)
    yield SymbolicSample(ops.Geqp3(), ("f32[b, n, 2]", "i32[b, 2]"), binding)
    yield SymbolicSample(ops.HouseholderProduct(), ("f32[b, n, n]", "f32[b, n]"), binding)
    yield SymbolicSample(ops.TriangularSolve(), ("f32[b, n, n]", "f32[b, n, 4]"), binding)
    yield SymbolicSample(ops.DenseSolve(), ("f32[b, n, n]", "f32[b, n]"), binding)
    types = ("f32[b, n]",) * 3 + ("f32[b, n, 4]",)
    yield SymbolicSample(ops.TridiagonalSolve(), types, binding)
    op = ops.LuPivotsToPermutation(permutation_size=4)
    yield SymbolicSample(op, ("i32[b, 4]",), {"b": 2})
