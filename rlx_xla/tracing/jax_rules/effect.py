"""Effects: JAX orders them itself, so tokens are None."""

from __future__ import annotations

from typing import Any

from rlx.ops.effect import CreateToken
from rlx_xla.tracing.evaluation import JaxContext
from rlx_xla.tracing.jax_registry import to_jax_rule


@to_jax_rule(CreateToken)
def create_token(ctx: JaxContext, op: CreateToken) -> tuple[Any, ...]:
    return (None,)
