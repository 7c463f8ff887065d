"""Primitives of equinox that only say how JAX may transform a value or a function.

XLA gets their Python implementation, so their graph is that of the implementation: mostly the
operand itself. What they forbid (a gradient, a batch) is not kept in the graph.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from rlx.ir.graph import Value
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import traces


@traces(
    "linear_solve",  # lineax's, which equinox makes
    "maybe_set",
    "nonbatchable",
    "nondifferentiable_backward",
    "nontraceable",
    "select_if_vmap",
    "unvmap_all",
    "unvmap_any",
    "unvmap_max",
    "vprim",
)
def by_implementation(ctx: TraceContext, params: dict[str, Any], *operands: Value) -> Any:
    primitive = ctx.equation.primitive
    if not primitive.impl.__module__.startswith("equinox"):
        return NotImplemented  # another package's primitive of the same name
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in ctx.in_avals]
    traced = jx.trace_function(functools.partial(primitive.impl, **params), avals)
    return ctx.inline(traced.jaxpr, operands)
