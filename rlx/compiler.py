"""From a graph and a binding to a program: passes, choices, the backend's compile, the report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import final

from rlx.backend import AbstractBackend
from rlx.deferred import Specialization
from rlx.dispatch import KernelDispatchReport, report_of
from rlx.ir.graph import Graph
from rlx.ir.plan import Lir
from rlx.options.compile import CompileOptions
from rlx.options.dispatch import claim_of
from rlx.passes.base import PassContext, PassRecord
from rlx.passes.bind_dims import bind
from rlx.passes.legalize import Legalization, examine, require_legal
from rlx.report import CompileReport, external_nodes
from rlx.signature import Signature


@final
class Compiler:
    """Compiles one graph for bindings, and keeps what does not depend on them."""

    def __init__(
        self,
        backend: AbstractBackend,
        graph: Graph,
        signature: Signature,
        options: CompileOptions,
        lir: Lir | None = None,
    ) -> None:
        """Compile ``graph``, or the LIR that is given."""
        self._backend = backend
        self._graph = graph
        self._signature = signature
        self._options = options
        self._lir = lir

    def build(self, binding: Mapping[str, int], reason: str) -> Specialization:
        """Compile for one binding."""
        started = time.perf_counter()
        if self._lir is not None:
            lir, records, phases = self._lir, [], {}
            dispatch = self.dispatch(Legalization(lir.graph, lir.plan, ()))
        else:
            graph = bind(self._graph, binding) if binding else self._graph
            legal, records, phases = self.examine(graph)
            dispatch = self.dispatch(legal)
            if self._options.dispatch_report or self._options.verbose:
                print(dispatch)
            lir = self.require(legal)
        executable = self._backend.compile(lir, self._signature, self._options)
        phases = {**phases, **executable.phases}
        report = CompileReport(
            name=self._graph.name,
            device=self._backend.device,
            phases=phases,
            passes=records,
            dispatch=dispatch,
            params=(
                len(lir.graph.params),
                sum(v.type.nbytes for v in lir.graph.params),
            ),
            memory=executable.memory(),
            cost=executable.cost(),
            external=external_nodes(lir),
            lir=lir,
            ineffective=self._options.without_effect(),
        )
        seconds = {**phases, "total": time.perf_counter() - started}
        return Specialization(
            dict(binding), reason, seconds, executable, executable.caller(self._signature), report
        )

    def lower(self, graph: Graph) -> Lir:
        """Run the passes, then choose implementations.

        Raises:
            LoweringError, KernelError: nodes without any implementation, all at once.
        """
        return self.require(self.examine(graph)[0])

    def examine(self, graph: Graph) -> tuple[Legalization, list[PassRecord], dict[str, float]]:
        """Run the passes, then choose implementations where there are any."""
        from rlx.passes.pipelines import mir_pipeline  # loads op families

        started = time.perf_counter()
        ctx = PassContext(self._options, self._backend.platform)
        optimised, records = mir_pipeline(self._options).run(graph, ctx)
        if self._options.verbose:
            for record in records:
                print(record)
        middle = time.perf_counter()
        legal = self.legalize(optimised)
        phases = {"passes": middle - started, "legalize": time.perf_counter() - middle}
        return legal, records, phases

    def legalize(self, graph: Graph) -> Legalization:
        """Choose implementations where there are any; no pass runs."""
        return examine(
            graph,
            lambda node: self._backend.choose(node, self._options),
            self._backend.platform,
            claim=claim_of(self._options.supported_ops),
        )

    def require(self, legal: Legalization) -> Lir:
        """The LIR of what was decided.

        Raises:
            LoweringError, KernelError: nodes without any implementation, all at once.
        """
        return require_legal(legal, claim=claim_of(self._options.supported_ops))

    def dispatch(self, legal: Legalization) -> KernelDispatchReport:
        """What was decided, as a report."""
        return report_of(legal, self._backend.device, self._options)
