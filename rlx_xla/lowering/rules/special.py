"""Error, gamma, beta, zeta and Bessel functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from rlx.ir.op import Op
from rlx.ops import special as ops
from rlx_xla._jax_compat import equations, mlir
from rlx_xla._jax_compat.mlir import chlo, func, ir
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers

_UNARY: dict[type[Op], Callable[..., Any]] = {
    ops.Erf: chlo.erf,
    ops.Erfc: chlo.erfc,
    ops.ErfInv: chlo.erf_inv,
    ops.Lgamma: chlo.lgamma,
    ops.Digamma: chlo.digamma,
    ops.BesselI1e: chlo.bessel_i1e,
}
_BINARY: dict[type[Op], Callable[..., Any]] = {
    ops.Polygamma: chlo.polygamma,
    ops.Zeta: chlo.zeta,
}
# Series and continued fractions with loops: JAX has them, so its StableHLO is merged in.
_FROM_JAX: dict[type[Op], Callable[..., Any]] = {
    ops.BesselI0e: jax.lax.bessel_i0e,
    ops.Igamma: jax.lax.igamma,
    ops.Igammac: jax.lax.igammac,
    ops.IgammaGradA: jax.lax.igamma_grad_a,
    ops.RegularizedIncompleteBeta: jax.lax.betainc,
}


@lowers(*_UNARY)
def unary(ctx: LoweringContext, op: Op, x: ir.Value) -> ir.Value:
    return _UNARY[type(op)](x)


@lowers(*_BINARY)
def binary(ctx: LoweringContext, op: Op, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return _BINARY[type(op)](lhs, rhs)


@lowers(ops.BesselI0e)
def bessel_i0e(ctx: LoweringContext, op: ops.BesselI0e, x: ir.Value) -> ir.Value:
    return _from_jax(ctx, op, x)


@lowers(ops.Igamma, ops.Igammac, ops.IgammaGradA)
def incomplete_gamma(ctx: LoweringContext, op: Op, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return _from_jax(ctx, op, lhs, rhs)


@lowers(ops.RegularizedIncompleteBeta)
def regularized_incomplete_beta(
    ctx: LoweringContext, op: ops.RegularizedIncompleteBeta, a: ir.Value, b: ir.Value, x: ir.Value
) -> ir.Value:
    return _from_jax(ctx, op, a, b, x)


def _from_jax(ctx: LoweringContext, op: Op, *operands: ir.Value) -> ir.Value:
    avals = [jax.ShapeDtypeStruct(t.shape, t.dtype.numpy) for t in ctx.input_types]
    text, _, _ = equations.lower_function(_FROM_JAX[type(op)], avals, ctx.platform)
    source = mlir.parse_module(text, ctx.module.context)
    name = mlir.merge_module(source, ctx.module.module, op.op_name, ctx.module.symbols)
    return func.CallOp(ctx.result_types, name, list(operands)).results[0]
