"""Reductions over axes and prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from rlx.ir.op import Op
from rlx.ops import reduction as ops
from rlx.types import TensorType
from rlx_xla._jax_compat import control_flow as cf
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import JaxRule, to_jax_rule
from rlx_xla.tracing.jax_rules.arithmetic import is_bool, is_narrow, through

_PLAIN: dict[type[Op], Any] = {
    ops.ReduceSum: lax.reduce_sum,
    ops.ReduceProd: lax.reduce_prod,
    ops.ReduceMax: lax.reduce_max,
    ops.ReduceMin: lax.reduce_min,
}
_LOGICAL: dict[type[Op], Any] = {
    ops.ReduceAnd: lax.reduce_and,
    ops.ReduceOr: lax.reduce_or,
    ops.ReduceXor: lax.reduce_xor,
}


def _axes_rule(function: Any) -> JaxRule:
    def rule(ctx: JaxContext, op: Any, x: Any) -> Any:
        return function(x, op.axes)

    return rule


def _logical_rule(function: Any) -> JaxRule:
    def rule(ctx: JaxContext, op: Any, x: Any) -> Any:
        if is_narrow(op, ctx.in_types):
            return through(np.int32, lambda wide: function(wide, op.axes), x)
        return function(x, op.axes)

    return rule


for _op, _function in _PLAIN.items():
    to_jax_rule(_op)(_axes_rule(_function))
for _op, _function in _LOGICAL.items():
    to_jax_rule(_op, named=is_narrow)(_logical_rule(_function))


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


def _is_indirect(op: Any, types: Sequence[TensorType]) -> bool:
    return op.exclusive or is_bool(op, types)


def _cumulative_rule(function: Any, op_class: type[Op]) -> JaxRule:
    def rule(ctx: JaxContext, op: Any, x: Any) -> Any:
        if x.dtype == bool:
            return through(np.uint8, lambda wide: rule(ctx, op, wide), x)
        if not op.exclusive:
            return function(x, op.axis, op.reverse)
        # What is reduced before an element: the start value, then all but the last.
        start = op_class.evaluate(op, np.zeros((1,) * x.ndim, x.dtype)).reshape(())[()]
        moved = [(0, 0, 0)] * x.ndim
        moved[op.axis] = (-1, 1, 0) if op.reverse else (1, -1, 0)
        return function(lax.pad(x, np.asarray(start, x.dtype), moved), op.axis, op.reverse)

    return rule


for _op, _function in _CUMULATIVE.items():
    to_jax_rule(_op, named=_is_indirect)(_cumulative_rule(_function, _op))
