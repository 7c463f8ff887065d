"""Constants."""

from __future__ import annotations

from typing import Any

from rlx.ops.io import Constant
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(Constant)
def constant(ctx: JaxContext, op: Constant) -> Any:
    return op.value.array
