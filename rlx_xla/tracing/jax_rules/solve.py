"""Linear algebra; factorisations keep JAX's own derivatives."""

from __future__ import annotations

from typing import Any

from jax.lax import linalg as lax_linalg

from rlx.ops import solve as ops
from rlx_xla._jax_compat import linalg
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(ops.Cholesky, named=True)
def cholesky(ctx: JaxContext, op: ops.Cholesky, x: Any) -> Any:
    """The primitive, and zeros above the diagonal."""
    return lax_linalg.cholesky(x, symmetrize_input=False)


@to_jax_rule(
    ops.TriangularSolve,
    named=lambda op, types: op.conjugate_a and not types[0].dtype.is_complex,
)
def triangular_solve(ctx: JaxContext, op: ops.TriangularSolve, a: Any, b: Any) -> Any:
    return lax_linalg.triangular_solve(a, b, **op.attributes())


@to_jax_rule(ops.Lu)
def lu(ctx: JaxContext, op: ops.Lu, x: Any) -> Any:
    return lax_linalg.lu(x)


@to_jax_rule(ops.LuPivotsToPermutation)
def lu_pivots_to_permutation(ctx: JaxContext, op: ops.LuPivotsToPermutation, pivots: Any) -> Any:
    return lax_linalg.lu_pivots_to_permutation(pivots, op.permutation_size)


@to_jax_rule(ops.Geqrf)
def geqrf(ctx: JaxContext, op: ops.Geqrf, x: Any) -> Any:
    return linalg.geqrf(x)


@to_jax_rule(ops.Geqp3)
def geqp3(ctx: JaxContext, op: ops.Geqp3, x: Any, jpvt: Any) -> Any:
    return linalg.geqp3(x, jpvt)


@to_jax_rule(ops.HouseholderProduct)
def householder_product(ctx: JaxContext, op: ops.HouseholderProduct, a: Any, taus: Any) -> Any:
    return lax_linalg.householder_product(a, taus)


@to_jax_rule(ops.Qr)
def qr(ctx: JaxContext, op: ops.Qr, x: Any) -> Any:
    return lax_linalg.qr(x, pivoting=op.pivoting, full_matrices=op.full_matrices)


@to_jax_rule(ops.Eigh)
def eigh(ctx: JaxContext, op: ops.Eigh, x: Any) -> Any:
    method = None if op.method is ops.EighMethod.DEFAULT else op.method.name
    return linalg.eigh(x, lower=op.lower, sort_eigenvalues=op.sort_eigenvalues, method=method)


@to_jax_rule(ops.Eig)
def eig(ctx: JaxContext, op: ops.Eig, x: Any) -> Any:
    return linalg.eig(x, **op.attributes())


@to_jax_rule(ops.Svd)
def svd(ctx: JaxContext, op: ops.Svd, x: Any) -> Any:
    method = None if op.method is ops.SvdMethod.DEFAULT else op.method.name
    return linalg.svd(x, full_matrices=op.full_matrices, compute_uv=op.compute_uv, method=method)


@to_jax_rule(ops.TridiagonalSolve)
def tridiagonal_solve(
    ctx: JaxContext, op: ops.TridiagonalSolve, dl: Any, d: Any, du: Any, b: Any
) -> Any:
    return lax_linalg.tridiagonal_solve(dl, d, du, b)
