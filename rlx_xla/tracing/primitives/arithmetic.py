"""Elementwise arithmetic."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Value
from rlx.ops.arithmetic import Add
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces


@traces("add", "add_any")
def add(ctx: TraceContext, params: dict[str, Any], lhs: Value, rhs: Value) -> Value:
    return Add()(*ctx.same_shape(lhs, rhs))
