"""``rlx_xla.stablehlo``: the StableHLO text of a graph for any platform."""

from __future__ import annotations

from typing import Any

from rlx.errors import LoweringError
from rlx.ir.graph import Graph
from rlx_xla._jax_compat import mlir
from rlx_xla.lowering.module import lower_to_module


def stablehlo(
    graph: Any, platform: str = "cpu", *, portable: bool = False, locations: bool = False
) -> str:
    """Return a graph as StableHLO text.

    Args:
        graph: a static Graph, or anything with a ``graph`` (a Traced).
        platform: ``cpu``, ``cuda``, ``rocm`` or ``tpu``.
        portable: only core StableHLO ops, no CHLO and no custom calls.
        locations: print source locations.

    Raises:
        LoweringError: this is no graph, a dim is symbolic, an op has no lowering, or it has none
            that is portable.
    """
    inner: Graph = getattr(graph, "graph", graph)
    if not isinstance(inner, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LoweringError(
            f"stablehlo: a Graph or a traced function is required; got {type(graph).__name__}. "
            "Trace a JAX function with rlx_xla.trace(fn, ...)."
        )
    from rlx.passes.legalize import decompose_unsupported
    from rlx_xla.lowering.registry import rule_for

    ready = decompose_unsupported(inner, lambda op: rule_for(type(op), platform) is not None)
    lowered = lower_to_module(ready, platform, portable=portable)
    if portable:
        mlir.legalize_chlo(lowered.module)
        _require_portable(lowered.module)
    return mlir.module_text(lowered.module, locations=locations)


def without_kernels(graph: Graph, platform: str, *, as_written: bool = False) -> str:
    """Return a lowered graph as text in which rules stand in for kernels, and no CHLO is left.

    Args:
        graph: the graph of an LIR.
        platform: what it was lowered for.
        as_written: leave out forms of rules that only make XLA's code faster.

    Raises:
        LoweringError: a kernel alone carries out one of its ops.
    """
    from rlx.passes.legalize import decompose_unsupported
    from rlx_xla.lowering.registry import rule_for

    ready = decompose_unsupported(graph, lambda op: rule_for(type(op), platform) is not None)
    lowered = lower_to_module(ready, platform, as_written=as_written)
    mlir.legalize_chlo(lowered.module)
    return mlir.module_text(lowered.module)


def _require_portable(module: mlir.ir.Module) -> None:
    wrong: list[str] = []

    def visit(operation: mlir.ir.Operation) -> mlir.ir.WalkResult:
        if operation.name.startswith("chlo.") or operation.name == "stablehlo.custom_call":
            wrong.append(f"{operation.name} at {operation.location}")
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if wrong:
        raise LoweringError(
            "stablehlo: portable=True is required to give core StableHLO only; found "
            f"{'; '.join(wrong[:8])}. Lower without portable, or replace these ops."
        )
