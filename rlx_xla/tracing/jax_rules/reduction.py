"""Reductions, over axes, windows and prefixes; sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from rlx import ops
from rlx.ir.op import Op
from rlx.ops.pooling import WindowKind, identity
from rlx_xla._jax_compat import control_flow as cf
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import JaxRule, to_jax_rule

_PLAIN: dict[type[Op], Any] = {
    ops.ReduceSum: lax.reduce_sum,
    ops.ReduceProd: lax.reduce_prod,
    ops.ReduceMax: lax.reduce_max,
    ops.ReduceMin: lax.reduce_min,
    ops.ReduceAnd: lax.reduce_and,
    ops.ReduceOr: lax.reduce_or,
    ops.ReduceXor: lax.reduce_xor,
}


def _axes_rule(function: Any) -> JaxRule:
    def rule(ctx: JaxContext, op: Any, x: Any) -> Any:
        return function(x, op.axes)

    return rule


for _op, _function in _PLAIN.items():
    to_jax_rule(_op)(_axes_rule(_function))


@to_jax_rule(ops.Argmax)
def argmax(ctx: JaxContext, op: ops.Argmax, x: Any) -> Any:
    return lax.argmax(x, op.axis, op.index_dtype.numpy)


@to_jax_rule(ops.Argmin)
def argmin(ctx: JaxContext, op: ops.Argmin, x: Any) -> Any:
    return lax.argmin(x, op.axis, op.index_dtype.numpy)


@to_jax_rule(ops.Reduce)
def reduce(ctx: JaxContext, op: ops.Reduce, *operands: Any) -> Any:
    half = len(operands) // 2
    return cf.reduce(ctx.function(op.body), operands[:half], operands[half:], op.axes)


_CUMULATIVE: dict[type[Op], Any] = {
    ops.CumSum: lax.cumsum,
    ops.CumProd: lax.cumprod,
    ops.CumMax: lax.cummax,
    ops.CumMin: lax.cummin,
    ops.CumLogSumExp: lax.cumlogsumexp,
}


def _cumulative_rule(function: Any, op_class: type[Op]) -> JaxRule:
    def rule(ctx: JaxContext, op: Any, x: Any) -> Any:
        if not op.exclusive:
            return function(x, op.axis, op.reverse)
        # What is reduced before an element: the start value, then all but the last.
        start = op_class.evaluate(op, np.zeros((1,) * x.ndim, x.dtype)).reshape(())[()]
        moved = [(0, 0, 0)] * x.ndim
        moved[op.axis] = (-1, 1, 0) if op.reverse else (1, -1, 0)
        return function(lax.pad(x, np.asarray(start, x.dtype), moved), op.axis, op.reverse)

    return rule


for _op, _function in _CUMULATIVE.items():
    to_jax_rule(_op, named=lambda op: op.exclusive)(_cumulative_rule(_function, _op))


@to_jax_rule(ops.Sort)
def sort(ctx: JaxContext, op: ops.Sort, *operands: Any) -> Any:
    return lax.sort(
        tuple(operands), dimension=op.axis, is_stable=op.is_stable, num_keys=op.num_keys
    )


@to_jax_rule(ops.TopK, named=lambda op: op.nan is ops.TopNan.NEVER)
def top_k(ctx: JaxContext, op: ops.TopK, x: Any) -> Any:
    if op.nan is ops.TopNan.NEVER and np.dtype(x.dtype).kind not in "iub":
        lowest = np.asarray(identity(WindowKind.MAX, ctx.in_types[0].dtype), x.dtype)
        x = lax.select(lax.ne(x, x), lax.full(x.shape, lowest), x)
    return lax.top_k(x, op.k)


def _window(ctx: JaxContext, op: Any) -> dict[str, Any]:
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    padding = tuple((ctx.size(low), ctx.size(high)) for low, high in op.padding)
    return {**{name: getattr(op, name) for name in names}, "padding": padding}


_WINDOWED = {
    WindowKind.SUM: lax.add,
    WindowKind.PROD: lax.mul,
    WindowKind.MAX: lax.max,
    WindowKind.MIN: lax.min,
}


@to_jax_rule(ops.ReduceWindow)
def reduce_window(ctx: JaxContext, op: ops.ReduceWindow, x: Any) -> Any:
    initial = np.asarray(identity(op.kind, ctx.in_types[0].dtype))
    return lax.reduce_window(x, initial, _WINDOWED[op.kind], **_window(ctx, op))


@to_jax_rule(ops.ReduceWindowGeneral)
def reduce_window_general(ctx: JaxContext, op: ops.ReduceWindowGeneral, *operands: Any) -> Any:
    half = len(operands) // 2
    body = ctx.function(op.body)
    return cf.reduce_window(body, operands[:half], operands[half:], **_window(ctx, op))


def _selection(op: Any) -> Any:
    return lax.ge_p if op.select is ops.WindowSelect.GE else lax.le_p


@to_jax_rule(ops.SelectAndScatterAdd)
def select_and_scatter_add(
    ctx: JaxContext, op: ops.SelectAndScatterAdd, source: Any, operand: Any
) -> Any:
    return lax.select_and_scatter_add_p.bind(
        source,
        operand,
        select_prim=_selection(op),
        window_dimensions=op.window_dimensions,
        window_strides=op.window_strides,
        padding=tuple((ctx.size(low), ctx.size(high)) for low, high in op.padding),
    )


@to_jax_rule(ops.SelectAndGatherAdd)
def select_and_gather_add(
    ctx: JaxContext, op: ops.SelectAndGatherAdd, tangents: Any, operand: Any
) -> Any:
    return lax.select_and_gather_add_p.bind(
        tangents, operand, select_prim=_selection(op), **_window(ctx, op)
    )
