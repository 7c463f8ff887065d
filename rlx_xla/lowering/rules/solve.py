"""Linear algebra: the libraries that JAX calls, or core StableHLO in portable modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops import solve as ops
from rlx.types import TensorType
from rlx_xla._jax_compat import linalg
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering import jax_function
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers


@lowers(ops.Cholesky)
def cholesky(ctx: LoweringContext, op: ops.Cholesky, x: ir.Value) -> ir.Value:
    type_ = ctx.output_types[0]
    if not ctx.portable:
        function = functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False)
        return _by_jax(ctx, op, function, x)[0]
    whole = stablehlo.cholesky(x, lower=True)
    counts = type_.with_dtype(DType.I32)
    rows = stablehlo.iota(ctx.mlir_type(counts), type_.rank - 2)
    columns = stablehlo.iota(ctx.mlir_type(counts), type_.rank - 1)
    inside = stablehlo.compare(rows, columns, stablehlo.ComparisonDirectionAttr.get("GE"))
    return stablehlo.select(inside, whole, ctx.full(0, type_))


@lowers(ops.TriangularSolve)
def triangular_solve(
    ctx: LoweringContext, op: ops.TriangularSolve, a: ir.Value, b: ir.Value
) -> ir.Value:
    if not ctx.portable:
        function: Callable[..., Any] = functools.partial(_triangular, op)
        if ctx.output_types[0].dtype.bits < 32 and ctx.platform in ("cuda", "rocm"):
            function = _in_f32(function)  # the GPUs' library has no narrower type
        return _by_jax(ctx, op, function, a, b)[0]
    conjugate = op.conjugate_a and ctx.input_types[0].dtype.is_complex
    if conjugate and not op.transpose_a:
        a = stablehlo.complex(stablehlo.real(a), stablehlo.negate(stablehlo.imag(a)))
    transpose = "NO_TRANSPOSE"
    if op.transpose_a:
        transpose = "ADJOINT" if conjugate else "TRANSPOSE"
    return stablehlo.triangular_solve(
        a, b, op.left_side, op.lower, op.unit_diagonal, stablehlo.TransposeAttr.get(transpose)
    )


def _triangular(op: ops.TriangularSolve, a: Any, b: Any) -> Any:
    return jax.lax.linalg.triangular_solve(a, b, **op.attributes())


def _in_f32(function: Callable[..., Any]) -> Callable[..., Any]:
    def wide(*arguments: Any) -> Any:
        made = function(*(x.astype(jnp.float32) for x in arguments))
        return made.astype(arguments[0].dtype)

    return wide


@lowers(ops.Lu)
def lu(ctx: LoweringContext, op: ops.Lu, x: ir.Value) -> Sequence[ir.Value]:
    if 0 in ctx.input_types[0].shape:  # the libraries divide by the sizes
        lu, pivots, permutation = ctx.output_types
        return [ctx.full(0, lu), ctx.full(0, pivots), _counted(ctx, permutation)]
    return _by_jax(ctx, op, jax.lax.linalg.lu, x)


@lowers(ops.LuPivotsToPermutation)
def lu_pivots_to_permutation(
    ctx: LoweringContext, op: ops.LuPivotsToPermutation, pivots: ir.Value
) -> ir.Value:
    function = functools.partial(
        jax.lax.linalg.lu_pivots_to_permutation, permutation_size=op.permutation_size
    )
    return _by_jax(ctx, op, function, pivots)[0]


@lowers(ops.Geqrf)
def geqrf(ctx: LoweringContext, op: ops.Geqrf, x: ir.Value) -> Sequence[ir.Value]:
    return _by_jax(ctx, op, linalg.geqrf, x)


@lowers(ops.Geqp3)
def geqp3(ctx: LoweringContext, op: ops.Geqp3, x: ir.Value, jpvt: ir.Value) -> Sequence[ir.Value]:
    if 0 in ctx.input_types[0].shape:
        a, order, taus = ctx.output_types
        counted = stablehlo.add(_counted(ctx, order), ctx.full(1, order))
        return [ctx.full(0, a), counted, ctx.full(0, taus)]
    return _by_jax(ctx, op, linalg.geqp3, x, jpvt)


@lowers(ops.HouseholderProduct)
def householder_product(
    ctx: LoweringContext, op: ops.HouseholderProduct, a: ir.Value, taus: ir.Value
) -> ir.Value:
    return _by_jax(ctx, op, jax.lax.linalg.householder_product, a, taus)[0]


@lowers(ops.Eigh)
def eigh(ctx: LoweringContext, op: ops.Eigh, x: ir.Value) -> Sequence[ir.Value]:
    function = functools.partial(
        linalg.eigh,
        lower=op.lower,
        sort_eigenvalues=op.sort_eigenvalues,
        method=None if op.method is ops.EighMethod.DEFAULT else op.method.name,
    )
    return _by_jax(ctx, op, function, x)


def _without_library(op: ops.Eig, types: Sequence[TensorType], platform: str) -> str | None:
    del op, types
    return "JAX has no general eigenvalues on TPUs; eigh has them" if platform == "tpu" else None


@lowers(ops.Eig, refuses=_without_library)
def eig(ctx: LoweringContext, op: ops.Eig, x: ir.Value) -> Sequence[ir.Value]:
    return _by_jax(ctx, op, functools.partial(linalg.eig, **op.attributes()), x)


@lowers(ops.Svd)
def svd(ctx: LoweringContext, op: ops.Svd, x: ir.Value) -> Sequence[ir.Value]:
    function = functools.partial(
        linalg.svd,
        full_matrices=op.full_matrices,
        compute_uv=op.compute_uv,
        method=None if op.method is ops.SvdMethod.DEFAULT else op.method.name,
    )
    return _by_jax(ctx, op, function, x)


@lowers(ops.TridiagonalSolve)
def tridiagonal_solve(
    ctx: LoweringContext,
    op: ops.TridiagonalSolve,
    dl: ir.Value,
    d: ir.Value,
    du: ir.Value,
    b: ir.Value,
) -> ir.Value:
    return _by_jax(ctx, op, jax.lax.linalg.tridiagonal_solve, dl, d, du, b)[0]


def _counted(ctx: LoweringContext, type_: TensorType) -> ir.Value:
    return stablehlo.iota(ctx.mlir_type(type_), type_.rank - 1)


def _by_jax(
    ctx: LoweringContext, op: Op, function: Callable[..., Any], *operands: ir.Value
) -> list[ir.Value]:
    if all(0 in t.shape for t in ctx.output_types):
        return [ctx.full(0, t) for t in ctx.output_types]
    if ctx.portable and not isinstance(op, ops.LuPivotsToPermutation):
        raise ctx.refuse(
            f"{op.op_name} is required to call a library, which a portable module must not. "
            "Lower it for one platform (portable=False)."
        )
    return jax_function.call(ctx, function, ctx.input_types, operands, op.op_name)
