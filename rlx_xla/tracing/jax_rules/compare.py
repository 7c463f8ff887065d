"""Comparisons and choices between values."""

from __future__ import annotations

from typing import Any

from jax import lax

from rlx.ops.compare import Compare, Select, SelectN
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule

_INSTEAD = {"ne": ("eq", False), "gt": ("lt", True), "ge": ("le", True)}
"""In the total order: what JAX has instead, and whether the operands change places."""


@to_jax_rule(Compare, named=lambda op, types: op.total_order and op.direction.value in _INSTEAD)
def compare(ctx: JaxContext, op: Compare, lhs: Any, rhs: Any) -> Any:
    direction = op.direction.value
    if not op.total_order:
        return getattr(lax, f"{direction}_p").bind(lhs, rhs)
    base, swapped = _INSTEAD.get(direction, (direction, False))
    made = getattr(lax, f"{base}_to_p").bind(*((rhs, lhs) if swapped else (lhs, rhs)))
    return lax.bitwise_not(made) if direction == "ne" else made


@to_jax_rule(Select)
def select(ctx: JaxContext, op: Select, pred: Any, on_true: Any, on_false: Any) -> Any:
    return lax.select_n(pred, on_false, on_true)


@to_jax_rule(SelectN)
def select_n(ctx: JaxContext, op: SelectN, which: Any, *cases: Any) -> Any:
    return lax.select_n(which, *cases)
