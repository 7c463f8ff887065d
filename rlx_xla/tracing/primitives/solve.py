"""Linear algebra."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Value
from rlx.ops import solve as ops
from rlx.ops.control_flow import Call, CallKind
from rlx.ops.dot import DotGeneral, DotPrecision
from rlx.ops.io import Input
from rlx.ops.solve.matrices import FACTORABLE, SOLVABLE
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces


@traces("cholesky")
def cholesky(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ops.Cholesky()(x) if x.dtype in FACTORABLE else NotImplemented


@traces("triangular_solve")
def triangular_solve(ctx: TraceContext, params: dict[str, Any], a: Value, b: Value) -> Value:
    names = ops.TriangularSolve.attribute_names
    settings = {name: bool(params[name]) for name in names}
    return ops.TriangularSolve(**settings)(a, b) if a.dtype in SOLVABLE else NotImplemented


@traces("lu")
def lu(ctx: TraceContext, params: dict[str, Any], x: Value) -> Any:
    return ops.Lu()(x) if x.dtype in FACTORABLE else NotImplemented


@traces("lu_pivots_to_permutation")
def lu_pivots_to_permutation(ctx: TraceContext, params: dict[str, Any], pivots: Value) -> Value:
    size = ctx.dim(params["permutation_size"])
    if not isinstance(size, int):
        return NotImplemented
    return ops.LuPivotsToPermutation(permutation_size=size)(pivots)


@traces("geqrf")
def geqrf(ctx: TraceContext, params: dict[str, Any], x: Value) -> Any:
    return ops.Geqrf()(x) if x.dtype in FACTORABLE else NotImplemented


@traces("geqp3")
def geqp3(ctx: TraceContext, params: dict[str, Any], x: Value, jpvt: Value) -> Any:
    if x.dtype not in FACTORABLE or jpvt.type != ctx.out_types[1].with_dtype(jpvt.dtype):
        return NotImplemented
    return ops.Geqp3()(x, jpvt)


@traces("householder_product")
def householder_product(ctx: TraceContext, params: dict[str, Any], a: Value, taus: Value) -> Value:
    return ops.HouseholderProduct()(a, taus) if a.dtype in FACTORABLE else NotImplemented


@traces("qr")
def qr(ctx: TraceContext, params: dict[str, Any], x: Value) -> Any:
    if x.dtype not in FACTORABLE:
        return NotImplemented
    op = ops.Qr(full_matrices=params["full_matrices"], pivoting=params.get("pivoting", False))
    return op(x)


@traces("eigh")
def eigh(ctx: TraceContext, params: dict[str, Any], x: Value) -> Any:
    method = _method(ops.EighMethod, params.get("algorithm"))
    whole = params.get("subset_by_index") in (None, (0, x.shape[-1]))
    if x.dtype not in FACTORABLE or method is None or not whole:
        return NotImplemented
    return ops.Eigh(
        lower=params["lower"], sort_eigenvalues=params["sort_eigenvalues"], method=method
    )(x)


@traces("eig")
def eig(ctx: TraceContext, params: dict[str, Any], x: Value) -> Any:
    chosen = params.get("implementation") is not None or params.get("use_magma") is not None
    if x.dtype not in FACTORABLE or chosen:
        return NotImplemented
    return ops.Eig(
        left=params["compute_left_eigenvectors"],
        right=params["compute_right_eigenvectors"],
        vector_derivatives=params.get("enable_eigvec_derivs", False),
    )(x)


@traces("svd")
def svd(ctx: TraceContext, params: dict[str, Any], x: Value) -> Any:
    method = _method(ops.SvdMethod, params.get("algorithm"))
    sizes = [n for n in x.shape[-2:] if isinstance(n, int)]
    whole = params.get("subset_by_index") in (None, (0, min(sizes, default=-1)))
    if x.dtype not in FACTORABLE or method is None or not whole:
        return NotImplemented
    return ops.Svd(
        full_matrices=params["full_matrices"], compute_uv=params["compute_uv"], method=method
    )(x)


def _method(kinds: Any, given: Any) -> Any:
    """JAX's choice by its name; None for one that is not modelled."""
    return kinds.DEFAULT if given is None else kinds.__members__.get(given.name)


@traces("symmetric_product")
def symmetric_product(ctx: TraceContext, params: dict[str, Any], a: Value, c: Value) -> Value:
    """The product of matrices with their own transposes, as JAX writes it without a library."""
    batch, last = tuple(range(a.rank - 2)), (a.rank - 1,)
    square = DotGeneral(
        lhs_contracting=last,
        rhs_contracting=last,
        lhs_batch=batch,
        rhs_batch=batch,
        precision=(DotPrecision.HIGHEST, DotPrecision.HIGHEST),
    )(a, a)
    alpha, beta = (ctx.full(params[name], ctx.out_type) for name in ("alpha", "beta"))
    return alpha * square + beta * c


@traces("tridiagonal_solve")
def tridiagonal_solve(
    ctx: TraceContext, params: dict[str, Any], dl: Value, d: Value, du: Value, b: Value
) -> Value:
    if params.get("perturb_singular") or d.dtype not in FACTORABLE:
        return NotImplemented
    return ops.TridiagonalSolve()(dl, d, du, b)


@traces("custom_linear_solve")
def custom_linear_solve(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    """A call of its solver; the call takes what the derivative needs too, and keeps its rule."""
    solve, lengths = params["jaxprs"].solve, params["const_lengths"]
    if jx.open_jaxpr(solve).effects:
        return NotImplemented
    solver, captured = ctx.graph(solve, "solve"), ctx.constants(solve)
    leaves: list[Value] = [
        Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)()
        for i, t in enumerate(v.type for v in (*captured, *operands))
    ]
    mine = leaves[len(captured) :]
    first = lengths.matvec + lengths.vecmat
    used = (*mine[first : first + lengths.solve], *mine[sum(lengths) :])
    results = _results(Call(body=solver, name="solve")(*leaves[: len(captured)], *used))
    body = Graph(leaves, (), results, name="custom_linear_solve")
    op = Call(
        body=body,
        name=body.name,
        kind=CallKind.CUSTOM_JVP,
        live=ctx.live(body, captured=bool(captured)),
    )
    return _results(op(*captured, *operands))


def _results(made: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return (made,) if isinstance(made, Value) else made
