"""From a function or a graph to StableHLO text for a device that is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, final

from rlx.errors import CompileError, DeviceError, DimError, LoweringError, TraceError
from rlx.ir.graph import Graph, Node
from rlx.ir.module import Module
from rlx.ir.plan import Implementation, Lir, Refusals
from rlx.ir.verify import verify
from rlx.options.compile import CompileOptions
from rlx.options.dispatch import KernelDispatch
from rlx.passes.base import PassContext, PassRecord
from rlx.passes.bind_dims import bind
from rlx.passes.legalize import Unsupported
from rlx.passes.legalize_spread import examine_on_devices
from rlx.sharding import mesh_of
from rlx_xla._jax_compat import mlir
from rlx_xla.aot.targets import Target
from rlx_xla.kernels.select import choose
from rlx_xla.lowering.module import lower_to_module
from rlx_xla.tracing.trace import trace


@final
@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A graph ready for a target's compiler.

    Attributes:
        source: the graph before passes.
        lir: the graph with its plan; nodes without an implementation are listed apart.
        passes: what each pass did.
        unsupported: nodes that nothing carries out there.
        refused: what a rule says that cannot lower its node after all, or empty.
        text: StableHLO with source lines; empty where something is unsupported or refused.
    """

    source: Graph
    lir: Lir
    passes: tuple[PassRecord, ...]
    unsupported: tuple[Unsupported, ...]
    refused: str
    text: str

    @property
    def partitions(self) -> int:
        """Over how many devices the program is spread."""
        mesh = mesh_of(self.lir.graph)
        return 1 if mesh is None else mesh.size


def graph_of(
    where: str, given: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], params: Any
) -> Graph:
    """The static graph of a function with arguments, of a traced function, a module or a graph.

    Raises:
        TraceError: ``given`` is none of these, or arguments come with a graph.
        DimError: sizes are not known.
    """
    if isinstance(given, Graph | Module) or hasattr(given, "graph"):
        if args or kwargs:
            raise TraceError(
                f"{where}: arguments are for functions; got them with a "
                f"{type(given).__name__}. Leave them out."
            )
        graph = given.into_mir().graph if isinstance(given, Module) else given
        graph = cast("Graph", getattr(graph, "graph", graph))
    elif callable(given):
        function = cast("Callable[..., Any]", given)
        graph = trace(function, *args, params=params, **kwargs).graph
    else:
        raise TraceError(
            f"{where}: a JAX function, a Graph, a Module or a traced function is required; got "
            f"{type(given).__name__}."
        )
    if graph.symbols:
        raise DimError(
            f"{where}: every size is required to be known; {', '.join(graph.symbols)} are symbols. "
            "Bind them with options=CompileOptions(dim_binding={...}), or give sizes."
        )
    verify(graph)
    return graph


def lower_for(graph: Graph, target: Target, options: CompileOptions) -> Lowered:
    """Run the passes, choose implementations and write StableHLO.

    Raises:
        DeviceError: the target has fewer devices than the graph's mesh.
        CompileError: the options are none.
    """
    from rlx.passes.pipelines import mir_pipeline  # loads op families

    if not isinstance(options, CompileOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompileError(
            "compile: options are required as rlx.CompileOptions(...); got "
            f"{type(options).__name__}."
        )
    platform = target.platform
    mesh = mesh_of(graph)
    if mesh is not None and mesh.size > target.devices:
        raise DeviceError(
            f"target {target.name!r}: {mesh.size} devices are required for {mesh}; the target has "
            f"{target.devices}. Take a larger topology or a smaller mesh."
        )
    if options.dim_binding:
        graph = bind(graph, options.dim_binding)
    ctx = PassContext(options, platform)
    optimised, records = mir_pipeline(options).run(graph, ctx)

    def pick(node: Node, dispatch: KernelDispatch) -> Implementation | Refusals:
        return choose(node, platform, dispatch)

    legal = examine_on_devices(optimised, pick, options.kernel_dispatch, platform)
    lir = Lir(legal.graph, legal.plan)
    text = refused = ""
    if not legal.unsupported:
        emitters = {
            node: made.emit
            for node, made in legal.plan.implementations.items()
            if made.kind == "kernel"
        }
        try:
            lowered = lower_to_module(legal.graph, platform, emitters=emitters)
            text = mlir.module_text(lowered.module, locations=True)
        except LoweringError as error:
            refused = str(error)
    return Lowered(
        source=graph,
        lir=lir,
        passes=tuple(records),
        unsupported=legal.unsupported,
        refused=refused,
        text=text,
    )
