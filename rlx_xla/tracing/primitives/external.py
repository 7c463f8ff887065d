"""Opaque nodes that came from a saved graph."""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Value, make_node
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.foreign import PRIMITIVE
from rlx_xla.tracing.registry import traces


@traces(PRIMITIVE)
def external(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> tuple[Value, ...]:
    return make_node(params["program"].op, operands).results
