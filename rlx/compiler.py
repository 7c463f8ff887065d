"""From a graph and a binding to a program: passes, choices, the backend's compile, the report."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from rlx.backend import AbstractBackend, AbstractExecutable
from rlx.deferred import Specialization
from rlx.dims import DimExpr
from rlx.dispatch import KernelDispatchReport, report_of
from rlx.fusion_report import check_fusion
from rlx.hidden import SEED
from rlx.ir.graph import Graph, Node
from rlx.ir.plan import Implementation, Lir
from rlx.options.compile import CompileOptions
from rlx.options.dispatch import claim_of
from rlx.passes.base import PassContext, PassRecord
from rlx.passes.bind_dims import bind
from rlx.passes.legalize import Legalization, require_legal
from rlx.report import CompileReport, external_nodes
from rlx.sharding import mesh_of
from rlx.show.dump import dump
from rlx.signature import Signature, flat_signature
from rlx.specializing import Plan, Planner
from rlx.staging import PrepareStage, StagedExecutable
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.passes.prepare import Split


@final
class Compiler:
    """Compiles one graph for bindings, and keeps what does not depend on them.

    Attributes:
        backend: compiles LIR.
        graph: what is compiled, before passes.
        signature: how callers call it.
        options: of the compile.
        fixed: values of params that cannot change, by name.
    """

    def __init__(
        self,
        backend: AbstractBackend,
        graph: Graph,
        signature: Signature,
        options: CompileOptions,
        lir: Lir | None = None,
        fixed: Mapping[str, Any] | None = None,
        planner: Planner | None = None,
        earlier: Sequence[PassRecord] = (),
    ) -> None:
        """Compile ``graph``, or the LIR that is given; ``earlier`` passes made the graph."""
        self.backend = backend
        self.graph = graph
        self.signature = signature
        self.options = options
        self.fixed: Mapping[str, Any] = dict(fixed or {})
        self.planner = planner or Planner(graph, signature)
        self._earlier = tuple(earlier)
        self._lir = lir
        self._own: dict[int, tuple[Any, Any]] = {}
        self._symbolic: Graph | None = None
        self._stages: dict[str, PrepareStage] = {}
        self._stages_lock = threading.Lock()

    def with_options(self, options: CompileOptions) -> Compiler:
        """The same graph with other options."""
        return Compiler(
            self.backend,
            self.graph,
            self.signature,
            options,
            self._lir,
            self.fixed,
            self.planner,
            self._earlier,
        )

    def axes(self) -> dict[str, str]:
        """Where callers see each symbol: the first axis of an input with that size."""
        found: dict[str, str] = {}
        for value in self.graph.inputs:
            for axis, dim in enumerate(value.type.shape):
                if isinstance(dim, DimExpr) and dim.name is not None:
                    found.setdefault(dim.name, f"{value.name} axis {axis}")
        return found

    def build(
        self, binding: Mapping[str, int], reason: str, plan: Plan | None = None
    ) -> Specialization:
        """Compile for one binding.

        Args:
            binding: the sizes of the call.
            reason: why, in words.
            plan: how; None puts the sizes into the graph.
        """
        if plan is None:
            plan = Plan(binding, self.signature)
        if plan.note:
            reason = f"{reason}; {plan.note}"
        binding, signature = plan.binding, plan.signature
        started, before = time.perf_counter(), self.planner.spent()
        split = stage = None
        if self._lir is not None:
            lir, records, phases = self._lir, [], {}
            dispatch = self.dispatch(Legalization(lir.graph, lir.plan, ()))
        else:
            graph = plan.graph
            if graph is None:
                graph = bind(self._shared(), binding) if binding else self.graph
            optimised, records, phases = self.optimise(graph)
            if self.options.cache_param_invariant:
                split = self._split(optimised)
            legal, seconds = self._timed_legalize(optimised if split is None else split.main)
            phases["legalize"] = seconds
            dispatch = self.dispatch(legal)
            if self.options.dispatch_report or self.options.verbose:
                print(dispatch)
            lir = self.require(legal)
            if self.options.ir_dump:
                levels = {"mir": graph, "mir.optimised": optimised, "lir": lir}
                if split is not None:
                    levels["mir.prepare"] = split.prepare
                dump(self.options.ir_dump, self.graph.name, binding, levels)
        executable = self.backend.compile(lir, signature, self.options)
        phases = {**phases, **executable.phases}
        memory, cost = executable.memory(), executable.cost()
        if split is not None:
            middle = time.perf_counter()
            stage = self._stage(split.prepare)
            phases["prepare"] = time.perf_counter() - middle
            names = [v.name for v in lir.graph.params]
            executable = StagedExecutable(executable, names, stage)
        report = CompileReport(
            name=self.graph.name,
            device=self.backend.device,
            phases=phases,
            passes=[*self._earlier, *plan.records, *records],
            dispatch=dispatch,
            params=(
                len(lir.graph.params),
                sum(v.type.nbytes for v in lir.graph.params),
            ),
            memory=memory,
            cost=cost,
            external=external_nodes(lir),
            lir=lir,
            ineffective=self.options.without_effect(),
            decisions=executable.decisions,
            staging=self._staging_lines(split),
        )
        taken = {v.name for v in lir.graph.params}.difference(
            () if split is None else (v.name for v in split.prepared)
        )
        taken.update(() if stage is None else stage.params)
        types = {v.name: v.type for v in lir.graph.params} if plan.own else {}
        own = {n: self._on_device(x, types[n]) for n, x in plan.own.items() if n in taken}
        if own:
            executable.bind(own)
        padded = None
        if plan.padded is not None:
            from rlx.padded_call import PaddedCall

            padded = PaddedCall(
                self.backend,
                self.graph,
                signature,
                plan.padded,
                binding,
                executable,
                self.options.resident,
            )
        return Specialization(
            binding=dict(binding),
            reason=reason,
            seconds={
                **before,
                **phases,
                "total": time.perf_counter() - started + sum(before.values()),
            },
            executable=executable,
            call=self._caller(executable, signature),
            report=report,
            params=frozenset(taken.difference(own)),
            refresh=executable.refresh if isinstance(executable, StagedExecutable) else None,
            padded=padded,
            signature=signature,
            unsafe=plan.unsafe,
            own=own,
            started=started,
        )

    def _shared(self) -> Graph:
        """The symbolic graph after the passes that need no sizes; made once for all bindings."""
        from rlx.passes.pipelines import symbolic_pipeline

        with self._stages_lock:
            if self._symbolic is None:
                ctx = PassContext(self.options.replace(validate=False), self.backend.platform)
                self._symbolic, _ = symbolic_pipeline(self.options).run(self.graph, ctx)
            return self._symbolic

    def _on_device(self, value: Any, type_: TensorType) -> Any:
        """A captured array on the device; one copy for all programs."""
        with self._stages_lock:
            found = self._own.get(id(value))
            if found is None:
                if len(self._own) >= 256:
                    self._own.clear()
                found = self._own[id(value)] = value, self.backend.to_device(value, type_)
            return found[1]

    def twin(self, program: Specialization) -> Specialization:
        """The same compiled program with nothing bound."""
        executable = program.executable.clone()
        if program.own:
            executable.bind(program.own)
        return dataclasses.replace(
            program,
            executable=executable,
            call=self._caller(executable, program.signature or self.signature),
            padded=None if program.padded is None else program.padded.on(executable),
            elements=(0, 0),
            refresh=executable.refresh if isinstance(executable, StagedExecutable) else None,
            hits=0,
        )

    def _caller(self, executable: AbstractExecutable, signature: Signature) -> Callable[..., Any]:
        return executable.caller(signature.without(self.options.resident))

    def _stage(self, graph: Graph) -> PrepareStage:
        """The compiled first stage; one for all bindings whose first graphs are the same."""
        key = graph.fingerprint()
        with self._stages_lock:
            found = self._stages.get(key)
            if found is None:
                options = self.options.replace(
                    resident={}, donate=frozenset(), cache_param_invariant=False
                )
                lir = self.require(self.legalize(graph))
                made = self.backend.compile(lir, flat_signature(lir.graph), options)
                found = self._stages[key] = PrepareStage(lir.graph, made)
            return found

    def _split(self, graph: Graph) -> Split | None:
        """Split off what params alone decide; with ``validate`` prove that nothing changed."""
        from rlx.passes.prepare import split_param_invariant  # loads op families

        if mesh_of(graph) is not None:  # XLA decides where prepared values would lie
            return None
        split = split_param_invariant(graph, dynamic=(SEED,))
        if split is not None and self.options.validate:
            from rlx.passes.validate import Validator

            Validator(graph).check(split.joined(), "split-param-invariant", [])
        if split is not None and self.options.verbose:
            print("\n".join(split.lines()))
        return split

    def _staging_lines(self, split: Split | None) -> list[str]:
        if split is not None:
            return split.lines()
        if self.options.cache_param_invariant and self._lir is None:
            if mesh_of(self.graph) is not None:
                return ["a graph with shardings is not split: there is one graph"]
            return ["nothing depends on params alone: there is one graph"]
        return []

    def _timed_legalize(self, graph: Graph) -> tuple[Legalization, float]:
        started = time.perf_counter()
        return self.legalize(graph), time.perf_counter() - started

    def lower(self, graph: Graph) -> Lir:
        """Run the passes, then choose implementations.

        Raises:
            LoweringError, KernelError: nodes without any implementation, all at once.
        """
        return self.require(self.examine(graph)[0])

    def examine(self, graph: Graph) -> tuple[Legalization, list[PassRecord], dict[str, float]]:
        """Run the passes, then choose implementations where there are any.

        Nothing is hidden, dropped or split: seeds are constants, and there is one graph.
        """
        optimised, records, phases = self.optimise(graph, own=False)
        legal, seconds = self._timed_legalize(optimised)
        return legal, records, {**phases, "legalize": seconds}

    def optimise(
        self, graph: Graph, *, own: bool = True
    ) -> tuple[Graph, list[PassRecord], dict[str, float]]:
        """Run the passes on a static graph; return the graph, records and seconds by phase.

        Args:
            graph: MIR.
            own: the result is compiled here, so that its params may differ from the graph's.
        """
        from rlx.passes.bind_params import KnownValues
        from rlx.passes.pipelines import (  # loads op families
            binding_pipeline,
            closing_pipeline,
            mir_pipeline,
        )

        started = time.perf_counter()
        backend = self.backend
        options = self.options
        ctx = PassContext(
            options, backend.platform, backend.lacks, self._has_kernel, backend.has_kernels
        )
        mesh = mesh_of(graph)
        if mesh is not None and mesh.size > 1:  # XLA divides the plain forms
            ctx = PassContext(options, backend.platform, backend.lacks, _never, _never)
        known = KnownValues(self.fixed if own else {})
        first = binding_pipeline(self.options, known, hidden_seed=own)
        graph, binding = first.run(graph, ctx)
        graph, records = mir_pipeline(self.options).run(graph, ctx)
        check_fusion(records, self.options)
        closing: list[PassRecord] = []
        if own:
            graph, closing = closing_pipeline(self.options, known).run(graph, ctx)
        records = [
            *(r for r in binding if r.changed or r.notes),
            *records,
            *(r for r in closing if r.changed or r.notes),
        ]
        if self.options.verbose:
            for record in records:
                print(record)
        return graph, records, {"passes": time.perf_counter() - started}

    def _has_kernel(self, node: Node) -> bool:
        choice = self.backend.choose(node, self.options)
        return isinstance(choice, Implementation) and choice.kind == "kernel"

    def legalize(self, graph: Graph) -> Legalization:
        """Choose implementations where there are any; no pass runs."""
        from rlx.passes.legalize_spread import examine_on_devices  # loads op families

        options = self.options
        return examine_on_devices(
            graph,
            lambda node, dispatch: self.backend.choose(
                node,
                options
                if dispatch is options.kernel_dispatch
                else options.replace(kernel_dispatch=dispatch),
            ),
            options.kernel_dispatch,
            self.backend.platform,
            claim=claim_of(options.supported_ops),
        )

    def require(self, legal: Legalization) -> Lir:
        """The LIR of what was decided.

        Raises:
            LoweringError, KernelError: nodes without any implementation, all at once.
        """
        return require_legal(legal, claim=claim_of(self.options.supported_ops))

    def dispatch(self, legal: Legalization) -> KernelDispatchReport:
        """What was decided, as a report."""
        return report_of(legal, self.backend.device, self.options)


def _never(what: object) -> bool:
    """Whether there is a kernel, for a graph that XLA divides over devices."""
    del what
    return False
