"""``Session``: a device, and compiles for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast, final, runtime_checkable

from rlx.backend import AbstractBackend, backend_for
from rlx.compiled import CompiledGraph
from rlx.dims.buckets import buckets_of
from rlx.dims.constraints import constraints_of
from rlx.errors import CompileError, DeviceError, did_you_mean
from rlx.ir.graph import Graph
from rlx.ir.module import Module, Stage
from rlx.ir.plan import Lir
from rlx.kept import check_feeds
from rlx.options.compile import CompileOptions
from rlx.options.devices import default_device
from rlx.options.dispatch import claim_of
from rlx.options.precision import Precision, PrecisionPolicy
from rlx.param_values import fixed_values
from rlx.show.dump import dump
from rlx.signature import Signature, flat_signature
from rlx.specializing import Planner
from rlx.template import AbstractTemplate, fixed

if TYPE_CHECKING:
    from rlx.passes.base import PassRecord

_LEAST = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Sizes from which a function may have one graph for all; smaller ones are traced by themselves."""


@runtime_checkable
class TracedFunction(Protocol):
    """What a frontend's trace gives."""

    @property
    def graph(self) -> Graph:
        """The graph."""
        ...

    @property
    def signature(self) -> Signature:
        """Names and structure of arguments and results."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Param name → array, or None for one that is set later."""
        ...


@runtime_checkable
class TemplatedFunction(TracedFunction, Protocol):
    """A trace that can be repeated for given sizes."""

    @property
    def template(self) -> AbstractTemplate | None:
        """Traces anew; None where nothing may differ at some sizes."""
        ...


@runtime_checkable
class TimedFunction(Protocol):
    """A trace that says what it took."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Wall time in seconds, by phase."""
        ...


@runtime_checkable
class TemplateFunction(Protocol):
    """A function without one graph for all sizes: traced anew for each binding."""

    @property
    def boundary(self) -> Graph:
        """A graph of the inputs and params alone."""
        ...

    @property
    def signature(self) -> Signature:
        """Names and structure of arguments."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Param name → array, or None for one that is set later."""
        ...

    @property
    def template(self) -> AbstractTemplate:
        """Traces anew."""
        ...


@final
class Session:
    """Compiles graphs for one device.

    Attributes:
        device: name of the device, such as ``cpu`` or ``cuda:1``.
        precision: the dtype that floats are computed in; F32 leaves the graph's own dtypes.
        policy: which classes of ops compute in a low precision; None for none.

    Example:
        >>> import rlx
        >>> b = rlx.GraphBuilder()
        >>> x = b.input("x", "f32[3]")
        >>> compiled = rlx.Session("interpret").compile(b.build(x + x))
        >>> compiled.run({"x": [1.0, 2.0, 3.0]})[0].tolist()
        [2.0, 4.0, 6.0]
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        precision: Precision = Precision.F32,
        policy: PrecisionPolicy | None = None,
    ) -> None:
        """Find the device.

        Args:
            device: any spelling of a device's name; None is what ``RLX_DEVICE`` names, or ``cpu``.
            precision: the dtype that floats are computed in.
            policy: which classes of ops compute in a low precision. Both hold for compiles whose
                options leave them at their defaults.

        Raises:
            DeviceError: it is unknown or not attached; the available ones are listed.
            CompileError: the precision is no Precision, or the policy no PrecisionPolicy.
        """
        CompileOptions(precision=precision, policy=policy)  # refuses what is neither
        self.backend: AbstractBackend = _backend(device)
        self.precision = precision
        self.policy = policy

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.backend.device

    def __repr__(self) -> str:
        return f"Session({self.device!r})"

    def compile(
        self,
        graph: Graph | Module | TracedFunction | TemplateFunction,
        *,
        options: CompileOptions | None = None,
    ) -> CompiledGraph:
        """Compile a graph, a module of any level, or a traced function.

        A graph with symbolic dims compiles at the first call with each new combination of sizes.
        The concrete params of a traced function are bound.

        Raises:
            LoweringError: ops without any implementation, all at once.
            CompileError: XLA refuses the program, or the argument is nothing that compiles.
            VerifyError: the graph breaks the rules of the IR.
            PassError: a pass failed, or (``validate``) changed what the graph computes.
        """
        # Here, since a process that only loads what is compiled needs neither passes nor ops.
        from rlx.compiler import Compiler
        from rlx.ir.verify import verify
        from rlx.passes.bind_dims import bind

        chosen = self._options(options)
        claim_of(chosen.supported_ops)  # an unknown name is refused before any pass
        params: dict[str, Any] = {}
        template: AbstractTemplate | None = None
        graph, chosen = traced_at(graph, chosen)
        if chosen.buckets is not None and isinstance(graph, TemplateFunction):
            graph = _within_buckets(graph, chosen)
        records: list[PassRecord] = []
        if chosen.weights is not None:
            graph, records = _with_packed_weights(graph, chosen.weights)
        if isinstance(graph, Graph):
            mir, signature = graph, flat_signature(graph)
        elif isinstance(graph, Module):
            if graph.lir is not None:
                return self._from_lir(graph.lir, chosen)
            if graph.stage is Stage.HIR and chosen.ir_dump:
                dump(chosen.ir_dump, graph.graph.name, {}, {"hir": graph.graph})
            mir = graph.into_mir().graph
            signature = flat_signature(mir)
        elif isinstance(graph, TemplateFunction):
            mir, signature, template = graph.boundary, graph.signature, graph.template
            params = {k: v for k, v in graph.params.items() if v is not None}
        elif _is_traced(graph):
            mir, signature = graph.graph, graph.signature
            params = {k: v for k, v in graph.params.items() if v is not None}
            template = graph.template if isinstance(graph, TemplatedFunction) else None
        else:
            raise _nothing_to_compile("compile", graph)
        captured = params
        if chosen.dim_binding:
            mir = bind(mir, chosen.dim_binding)
        verify(mir)
        names = [v.name for v in mir.inputs]
        strangers = sorted(chosen.donate.difference(names))
        if strangers:
            raise CompileError(
                f"CompileOptions.donate: names of inputs are required ({', '.join(names)}); got "
                f"{strangers[0]!r}.{did_you_mean(strangers[0], names)}"
            )
        check_feeds(mir, chosen.resident, "CompileOptions.resident")
        fixed = fixed_values(mir, chosen)
        planner = Planner(
            mir,
            signature,
            buckets=buckets_of(chosen.buckets, mir.symbols, "CompileOptions.buckets"),
            template=template,
            on_unsafe=chosen.on_unsafe,
            constraints=constraints_of(chosen.constraints, mir.symbols),
            captured=captured,
            options=chosen,
            seconds=sum(graph.seconds.values()) if isinstance(graph, TimedFunction) else 0.0,
        )
        compiled = CompiledGraph(
            Compiler(
                self.backend, mir, signature, chosen, fixed=fixed, planner=planner, earlier=records
            )
        )
        free = {name: value for name, value in params.items() if name not in fixed}
        if free:
            compiled.set_params(free)
        return compiled

    def compile_hir(self, graph: Graph, *, options: CompileOptions | None = None) -> CompiledGraph:
        """Compile a graph that may hold HIR blocks."""
        return self.compile(Module.from_hir(graph), options=options)

    def compile_module(
        self, module: Module, *, options: CompileOptions | None = None
    ) -> CompiledGraph:
        """Compile a module of any level."""
        return self.compile(module, options=options)

    def lower(
        self, graph: Graph | Module | TracedFunction, *, options: CompileOptions | None = None
    ) -> Lir:
        """Run the passes and the choice of implementations.

        Args:
            graph: what ``compile`` takes; the plan of a module at LIR comes back as it is. Symbols
                are bound by ``options.dim_binding``.
            options: what may change the choice.

        Raises:
            LoweringError, KernelError: nodes without any implementation, all at once.
            CompileError: the module is an LIR for another platform, or symbols are left.
            VerifyError: the graph breaks the rules of the IR.
        """
        from rlx.compiler import Compiler
        from rlx.ir.verify import verify
        from rlx.passes.bind_dims import bind

        chosen = self._options(options)
        if isinstance(graph, Module) and graph.lir is not None:
            return self._own(graph.lir)
        traced, chosen = traced_at(graph, chosen)
        mir = mir_of("lower", traced)
        if chosen.dim_binding:
            mir = bind(mir, chosen.dim_binding)
        if mir.symbols:
            raise CompileError(
                f"lower {mir.name}: static shapes are required; {', '.join(mir.symbols)} "
                "are symbolic. Bind them with CompileOptions(dim_binding={...})."
            )
        verify(mir)
        return Compiler(self.backend, mir, flat_signature(mir), chosen).lower(mir)

    def _options(self, options: CompileOptions | None) -> CompileOptions:
        """The options with this session's precision and policy where they leave them open."""
        chosen = CompileOptions() if options is None else options
        if not isinstance(chosen, CompileOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CompileError(
                "compile: options are required as rlx.CompileOptions(...); got "
                f"{type(chosen).__name__}."
            )
        if chosen.precision is Precision.F32 and self.precision is not Precision.F32:
            chosen = chosen.replace(precision=self.precision)
        if chosen.policy is None and self.policy is not None:
            chosen = chosen.replace(policy=self.policy)
        return chosen

    def _own(self, lir: Lir) -> Lir:
        if lir.plan.platform != self.backend.platform:
            raise CompileError(
                f"compile: an LIR is for one platform; this one is for {lir.plan.platform!r} and "
                f"the session's device is {self.device!r}. Compile its MIR instead."
            )
        return lir

    def _from_lir(self, lir: Lir, options: CompileOptions) -> CompiledGraph:
        from rlx.compiler import Compiler

        signature = flat_signature(lir.graph)
        check_feeds(lir.graph, options.resident, "CompileOptions.resident")
        fixed = fixed_values(lir.graph, options)
        return CompiledGraph(
            Compiler(self.backend, lir.graph, signature, options, self._own(lir), fixed)
        )


def mir_of(where: str, given: Graph | Module | TracedFunction | TemplateFunction) -> Graph:
    """The graph at MIR of anything that compiles.

    Raises:
        CompileError: it is nothing that compiles; ``where`` is the caller's name for the message.
    """
    if isinstance(given, Graph):
        return given
    if isinstance(given, Module):
        return given.into_mir().graph
    if isinstance(given, TemplateFunction):
        raise CompileError(
            f"{where}: one graph for all sizes is required; {given.template.why} Trace with "
            "numbers in place of the symbols."
        )
    if _is_traced(given):
        return given.graph
    raise _nothing_to_compile(where, given)


_Given = Graph | Module | TracedFunction | TemplateFunction


def traced_at(given: _Given, options: CompileOptions) -> tuple[_Given, CompileOptions]:
    """A function traced for the sizes of ``dim_binding``, with the options that are left.

    What cannot be traced anew comes back as it is, for its symbols to be bound.
    """
    sizes = dict(options.dim_binding.items()) if options.dim_binding else {}
    if not sizes or not isinstance(given, TemplateFunction | TemplatedFunction):
        return given, options
    whole = given.boundary if isinstance(given, TemplateFunction) else given.graph
    template = given.template
    if template is None or not set(sizes) <= set(whole.symbols):
        return given, options
    if len(sizes) == len(whole.symbols):
        return template.at(sizes), options.replace(dim_binding=None, buckets=None)
    made = fixed(whole, given.signature, given.params, template, sizes)
    return made, options.replace(dim_binding=None)


def _within_buckets(
    given: TemplateFunction, options: CompileOptions
) -> TracedFunction | TemplateFunction | TemplatedFunction:
    """The one graph for the sizes in buckets, small ones left out, where there is such a graph."""
    symbols = given.boundary.symbols
    buckets = buckets_of(options.buckets, symbols, "CompileOptions.buckets")
    assert buckets is not None
    for least in _LEAST:
        limits = {name: buckets.greatest(name) for name in symbols}
        if any(most is not None and most < least for most in limits.values()):
            break
        found = given.template.bounded({name: (least, limits[name]) for name in symbols})
        if found is not None:
            return found
    return given


def _with_packed_weights(
    given: Graph | Module | TracedFunction | TemplateFunction, name: str
) -> tuple[TracedFunction, list[PassRecord]]:
    from rlx.packing import packed_function  # loads op families

    if isinstance(given, Graph | Module | TemplateFunction) or not _is_traced(given):
        raise CompileError(
            "CompileOptions.weights: a traced function with one graph for all sizes is required; "
            f"got {type(given).__name__}. Trace a JAX function with rlx_xla.trace(fn, ...), or "
            "leave weights out."
        )
    return packed_function(given, name)


def _nothing_to_compile(where: str, given: object) -> CompileError:
    return CompileError(
        f"{where}: a Graph, a Module or a traced function is required; got "
        f"{type(given).__name__}. Trace a JAX function with rlx_xla.trace(fn, ...)."
    )


def _backend(device: str | None) -> AbstractBackend:
    if device is not None:
        return backend_for(device)
    device = default_device()
    try:
        return backend_for(device)
    except DeviceError as error:
        error.add_note(f"  {device!r} is what RLX_DEVICE names")
        raise


def _is_traced(candidate: object) -> TypeGuard[TracedFunction]:
    # A compiled graph has attributes of these names too.
    return isinstance(candidate, TracedFunction) and isinstance(
        cast("object", candidate.params), Mapping
    )
