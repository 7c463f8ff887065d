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
from rlx_xla.lowering import core_linalg, jax_function
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers


@lowers(ops.Cholesky)
def cholesky(ctx: LoweringContext, op: ops.Cholesky, x: ir.Value) -> ir.Value:
    function = functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False)
    return _by_jax(ctx, op, function, x, core=core_linalg.cholesky)[0]


@lowers(ops.TriangularSolve)
def triangular_solve(
    ctx: LoweringContext, op: ops.TriangularSolve, a: ir.Value, b: ir.Value
) -> ir.Value:
    function: Callable[..., Any] = functools.partial(_triangular, op)
    if ctx.output_types[0].dtype.bits < 32 and ctx.platform in ("cuda", "rocm"):
        function = _in_f32(function)  # the GPUs' library has no narrower type
    core = functools.partial(core_linalg.triangular_solve, **op.attributes())
    return _by_jax(ctx, op, function, a, b, core=core)[0]


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
    if ctx.platform == "tpu" and _wide(ctx.input_types):
        return _by_core(ctx, op, core_linalg.lu, x)  # the compiler has it in 32 bits only
    return _by_jax(ctx, op, jax.lax.linalg.lu, x, core=core_linalg.lu)


@lowers(ops.LuPivotsToPermutation)
def lu_pivots_to_permutation(
    ctx: LoweringContext, op: ops.LuPivotsToPermutation, pivots: ir.Value
) -> ir.Value:
    function = functools.partial(
        jax.lax.linalg.lu_pivots_to_permutation, permutation_size=op.permutation_size
    )
    core = functools.partial(core_linalg.permutation, size=op.permutation_size)
    return _by_jax(ctx, op, function, pivots, core=core)[0]


@lowers(ops.Geqrf)
def geqrf(ctx: LoweringContext, op: ops.Geqrf, x: ir.Value) -> Sequence[ir.Value]:
    return _by_jax(ctx, op, linalg.geqrf, x, core=core_linalg.geqrf)


@lowers(ops.Geqp3)
def geqp3(ctx: LoweringContext, op: ops.Geqp3, x: ir.Value, jpvt: ir.Value) -> Sequence[ir.Value]:
    if 0 in ctx.input_types[0].shape:
        a, order, taus = ctx.output_types
        counted = stablehlo.add(_counted(ctx, order), ctx.full(1, order))
        return [ctx.full(0, a), counted, ctx.full(0, taus)]
    core = core_linalg.geqp3
    if ctx.platform == "tpu":  # JAX has none there
        return _by_core(ctx, op, core, x, jpvt)
    return _by_jax(ctx, op, linalg.geqp3, x, jpvt, core=core)


@lowers(ops.HouseholderProduct)
def householder_product(
    ctx: LoweringContext, op: ops.HouseholderProduct, a: ir.Value, taus: ir.Value
) -> ir.Value:
    function = jax.lax.linalg.householder_product
    return _by_jax(ctx, op, function, a, taus, core=core_linalg.householder_product)[0]


@lowers(ops.Eigh)
def eigh(ctx: LoweringContext, op: ops.Eigh, x: ir.Value) -> Sequence[ir.Value]:
    function = functools.partial(
        linalg.eigh,
        lower=op.lower,
        sort_eigenvalues=op.sort_eigenvalues,
        method=None if op.method is ops.EighMethod.DEFAULT else op.method.name,
    )
    return _by_jax(ctx, op, function, x, core=functools.partial(core_linalg.eigh, lower=op.lower))


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
    core = functools.partial(
        core_linalg.svd, full_matrices=op.full_matrices, compute_uv=op.compute_uv
    )
    if ctx.platform == "tpu" and op.method not in (ops.SvdMethod.DEFAULT, ops.SvdMethod.POLAR):
        return _by_core(ctx, op, core, x)  # JAX has its own method alone there
    return _by_jax(ctx, op, function, x, core=core)


@lowers(ops.TridiagonalSolve)
def tridiagonal_solve(
    ctx: LoweringContext,
    op: ops.TridiagonalSolve,
    dl: ir.Value,
    d: ir.Value,
    du: ir.Value,
    b: ir.Value,
) -> ir.Value:
    function = jax.lax.linalg.tridiagonal_solve
    return _by_jax(ctx, op, function, dl, d, du, b, core=core_linalg.tridiagonal_solve)[0]


def _counted(ctx: LoweringContext, type_: TensorType) -> ir.Value:
    return stablehlo.iota(ctx.mlir_type(type_), type_.rank - 1)


def _by_jax(
    ctx: LoweringContext,
    op: Op,
    function: Callable[..., Any],
    *operands: ir.Value,
    core: Callable[..., Any] | None = None,
) -> list[ir.Value]:
    """What JAX lowers a function to; in portable modules ``core`` takes its place."""
    if ctx.portable:
        return _by_core(ctx, op, core, *operands)
    if all(0 in t.shape for t in ctx.output_types):
        return [ctx.full(0, t) for t in ctx.output_types]
    return _called(ctx, op, function, operands)


def _by_core(
    ctx: LoweringContext, op: Op, function: Callable[..., Any] | None, *operands: ir.Value
) -> list[ir.Value]:
    """A function of single matrices over the leading axes, without calls of a library."""
    if all(0 in t.shape for t in ctx.output_types):
        return [ctx.full(0, t) for t in ctx.output_types]
    if function is None:
        raise ctx.refuse(
            f"{op.op_name} is required to call a library, which a portable module must not. "
            "Files of rlx_xla.export hold no such calls: keep the graph with rlx.save, which is "
            "compiled where it is loaded, or take an op that needs no library (eigh for symmetric "
            "matrices)."
        )
    vectors = isinstance(op, ops.TridiagonalSolve | ops.LuPivotsToPermutation)
    leading = ctx.input_types[0].rank - (1 if vectors else 2)
    made = core_linalg.batched(function, leading)
    # The caller's own settings are for the caller's code.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return _called(ctx, op, made, operands)


def _called(
    ctx: LoweringContext, op: Op, function: Callable[..., Any], operands: Sequence[ir.Value]
) -> list[ir.Value]:
    """TPUs emulate 64 bits, and their compiler aborts where it meets them beside ``Eigh``."""
    x64 = _wide(ctx.input_types)
    return jax_function.call(ctx, function, ctx.input_types, operands, op.op_name, x64=x64)


def _wide(types: Sequence[TensorType]) -> bool:
    return any(t.dtype in (DType.F64, DType.C128) for t in types)
