"""From a graph and a binding to a program: passes, choices, the backend's compile, the report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import final

from rlx.backend import AbstractBackend
from rlx.deferred import Specialization
from rlx.ir.graph import Graph
from rlx.ir.plan import Lir
from rlx.options.compile import CompileOptions
from rlx.passes.base import PassContext, PassRecord
from rlx.passes.bind_dims import bind
from rlx.passes.legalize import legalize
from rlx.report import CompileReport, choices_of, external_nodes
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
        else:
            graph = bind(self._graph, binding) if binding else self._graph
            lir, records, phases = self.lower(graph)
        executable = self._backend.compile(lir, self._signature, self._options)
        phases = {**phases, **executable.phases}
        report = CompileReport(
            name=self._graph.name,
            device=self._backend.device,
            phases=phases,
            passes=records,
            choices=choices_of(lir),
            params=(
                len(lir.graph.params),
                sum(v.type.nbytes for v in lir.graph.params),
            ),
            memory=executable.memory(),
            cost=executable.cost(),
            external=external_nodes(lir),
        )
        seconds = {**phases, "total": time.perf_counter() - started}
        return Specialization(
            dict(binding), reason, seconds, executable, executable.caller(self._signature), report
        )

    def lower(self, graph: Graph) -> tuple[Lir, list[PassRecord], dict[str, float]]:
        """Run the passes, then choose implementations."""
        from rlx.passes.pipelines import mir_pipeline  # loads op families

        started = time.perf_counter()
        ctx = PassContext(self._options, self._backend.platform)
        optimised, records = mir_pipeline(self._options).run(graph, ctx)
        if self._options.verbose:
            for record in records:
                print(record)
        middle = time.perf_counter()
        lir = legalize(
            optimised, lambda node: self._backend.choose(node, self._options), ctx.platform
        )
        phases = {"passes": middle - started, "legalize": time.perf_counter() - middle}
        return lir, records, phases
