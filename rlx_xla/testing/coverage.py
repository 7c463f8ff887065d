"""Whether a traced function holds opaque nodes."""

from __future__ import annotations

from collections.abc import Collection

from rlx.ir.graph import Graph
from rlx.ops.external import External
from rlx_xla.tracing.traced import Traced


def assert_no_external(traced: Traced | Graph, *, allow: Collection[str] = ()) -> None:
    """Assert that every primitive of a traced function became ops.

    Args:
        traced: what ``rlx_xla.trace`` gave, or a graph.
        allow: names of primitives that may be opaque.

    Raises:
        AssertionError: there are opaque nodes; all of them are listed, with counts and lines.

    Example:
        >>> import jax.numpy as jnp, rlx_xla
        >>> assert_no_external(rlx_xla.trace(jnp.sin, "f32[b]"))
    """
    graph = traced.graph if isinstance(traced, Traced) else traced
    found: dict[str, list[str]] = {}
    for inner in graph.all_graphs():
        for node in inner.nodes():
            if isinstance(node.op, External) and node.op.name not in allow:
                found.setdefault(node.op.name, []).append(str(node.location) or "unknown line")
    if not found:
        return
    lines = [
        f"  {name} ×{len(places)}: {', '.join(dict.fromkeys(places))}"
        for name, places in sorted(found.items())
    ]
    raise AssertionError(
        f"graph {graph.name!r} is required to hold no opaque nodes; it holds "
        f"{sum(map(len, found.values()))}:\n" + "\n".join(lines) + "\nName primitives that may be "
        "opaque in allow=."
    )
