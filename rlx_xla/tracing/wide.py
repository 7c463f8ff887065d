"""Which graphs need JAX's 64-bit mode."""

from __future__ import annotations

import functools

from rlx.dtypes import DType
from rlx.errors import DimError
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla.tracing.composites import decomposition
from rlx_xla.tracing.jax_registry import jax_rule_for

_WIDE = frozenset({DType.I64, DType.U64, DType.F64, DType.C128})


def needs_64_bits(graph: Graph) -> bool:
    """Whether a value somewhere in the graph, or inside a composite, has 64-bit elements."""
    return any(
        any(t.dtype in _WIDE for t in node.types)
        or is_made_of_64_bits(node.op, tuple(v.type for v in node.inputs))
        for inner in graph.all_graphs()
        for node in inner.nodes()
    )


@functools.lru_cache(maxsize=4096)
def is_made_of_64_bits(op: Op, types: tuple[TensorType, ...]) -> bool:
    """Whether what an op decomposes into has 64-bit elements; False while that is open."""
    if not op.has_decompose or jax_rule_for(type(op)) is not None:
        return False
    try:
        return needs_64_bits(decomposition(op, types))
    except DimError:  # it depends on sizes; a bound graph is asked again
        return False
