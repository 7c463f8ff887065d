"""``Module``: a graph at one of three levels, HIR, MIR or LIR."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from rlx.errors import LoweringError
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Level
from rlx.ir.plan import Lir


@final
class Stage(enum.Enum):
    """How far a module has been lowered."""

    HIR = "hir"
    MIR = "mir"
    LIR = "lir"


@final
@dataclass(frozen=True)
class Module:
    """A graph and its level.

    Attributes:
        graph: the graph.
        stage: HIR may hold block ops; MIR holds primitive and composite ops; in LIR nothing is
            left to decide.
        lir: the plan, at stage LIR only.
    """

    graph: Graph
    stage: Stage
    lir: Lir | None = None

    @staticmethod
    def from_hir(graph: Graph) -> Module:
        """A module at HIR."""
        return Module(graph, Stage.HIR)

    @staticmethod
    def from_graph(graph: Graph) -> Module:
        """A module at MIR.

        Raises:
            LoweringError: the graph holds HIR blocks; all are named.
        """
        blocks = _blocks(graph)
        if blocks:
            raise LoweringError(
                f"Module: MIR is required to hold no blocks; found {', '.join(blocks)}. "
                "Use Module.from_hir(graph)."
            )
        return Module(graph, Stage.MIR)

    @staticmethod
    def from_lir(lir: Lir) -> Module:
        """A module at LIR."""
        return Module(lir.graph, Stage.LIR, lir)

    @staticmethod
    def define(name: str, build: Callable[[GraphBuilder], Value | tuple[Value, ...]]) -> Module:
        """Build a module at HIR with a function of a GraphBuilder."""
        builder = GraphBuilder(name)
        made = build(builder)
        outputs = made if isinstance(made, tuple) else (made,)
        return Module.from_hir(builder.build(*outputs))

    def into_mir(self) -> Module:
        """Decompose the blocks; a module at LIR gives its graph back at MIR."""
        if self.stage is Stage.MIR:
            return self
        if self.stage is Stage.LIR:
            return Module(self.graph, Stage.MIR)
        from rlx.passes.decompose import decompose

        return Module.from_graph(decompose(self.graph, lambda op: op.level is Level.HIR))

    def __repr__(self) -> str:
        return f"<Module at {self.stage.value}: {self.graph!r}>"


def _blocks(graph: Graph) -> list[str]:
    names = {
        node.op.op_name
        for inner in graph.all_graphs()
        for node in inner.nodes()
        if node.op.level is Level.HIR
    }
    return sorted(names)
