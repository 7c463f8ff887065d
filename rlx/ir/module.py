"""``Module``: a graph at one of three levels, HIR, MIR or LIR."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from rlx.dtypes import DType
from rlx.errors import LoweringError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Level
from rlx.ir.plan import Lir
from rlx.sharding import Mesh, meshes

if TYPE_CHECKING:
    from rlx.ir.builder import GraphBuilder
    from rlx.session import Session


@final
class Stage(enum.Enum):
    """How far a module has been lowered."""

    HIR = "hir"
    MIR = "mir"
    LIR = "lir"


@final
class FusionPolicy(enum.Enum):
    """What the blocks of HIR become."""

    DIRECT = "direct"
    """Fused ops where a block has such a form."""
    FUSABLE = "fusable"
    """Primitives and composites, for passes and derivatives to work on."""

    @staticmethod
    def for_autodiff() -> FusionPolicy:
        """RLX's other name of FUSABLE."""
        return FusionPolicy.FUSABLE


@final
@dataclasses.dataclass(frozen=True)
class Module:
    """A graph and its level.

    A module is no graph: what needs one takes ``module.into_mir().mir()``; a `Session` compiles a
    module of any level.

    Attributes:
        graph: the graph.
        stage: HIR may hold block ops; MIR holds primitive and composite ops; in LIR nothing is
            left to decide.
        lir: the plan, at stage LIR only.
        fusion_policy: what the blocks become when the module is lowered.
    """

    graph: Graph
    stage: Stage
    lir: Lir | None = None
    fusion_policy: FusionPolicy = FusionPolicy.DIRECT

    @staticmethod
    def from_hir(graph: Graph, fusion_policy: FusionPolicy = FusionPolicy.DIRECT) -> Module:
        """A module at HIR."""
        return Module(graph, Stage.HIR, fusion_policy=fusion_policy)

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
    def define(
        name: str,
        build: Callable[[GraphBuilder], Value | tuple[Value, ...]],
        fusion_policy: FusionPolicy = FusionPolicy.DIRECT,
    ) -> Module:
        """Build a module at HIR with a function of a GraphBuilder."""
        from rlx.ir.builder import GraphBuilder

        builder = GraphBuilder(name)
        made = build(builder)
        outputs = made if isinstance(made, tuple) else (made,)
        return Module.from_hir(builder.build(*outputs), fusion_policy)

    def with_fusion_policy(self, fusion_policy: FusionPolicy) -> Module:
        """The same module under another policy."""
        return dataclasses.replace(self, fusion_policy=fusion_policy)

    def hir(self) -> Graph:
        """The graph of a module at HIR.

        Raises:
            LoweringError: the module is at another level.
        """
        return self._graph_at(Stage.HIR, "into_hir()")

    def mir(self) -> Graph:
        """The graph of a module at MIR.

        Raises:
            LoweringError: the module is at another level.
        """
        return self._graph_at(Stage.MIR, "into_mir()")

    def into_hir(self) -> Module:
        """The module at HIR, which may hold whatever MIR holds; blocks do not come back."""
        if self.stage is Stage.HIR:
            return self
        return Module(self.graph, Stage.HIR, fusion_policy=self.fusion_policy)

    def into_mir(self) -> Module:
        """Lower the blocks by the fusion policy; a module at LIR gives its graph back at MIR.

        Nodes made from a block carry the block's label.

        Raises:
            LoweringError: a block has inputs missing or to spare.
        """
        if self.stage is Stage.MIR:
            return self
        if self.stage is Stage.LIR:
            return Module(self.graph, Stage.MIR, fusion_policy=self.fusion_policy)
        from rlx.passes.lower_blocks import lower_blocks

        direct = self.fusion_policy is FusionPolicy.DIRECT
        return dataclasses.replace(
            Module.from_graph(lower_blocks(self.graph, direct=direct)),
            fusion_policy=self.fusion_policy,
        )

    def into_lir(self, session: Session | None = None) -> Module:
        """Run the passes and choose every implementation; a module at LIR stays as it is.

        Args:
            session: the device to choose for; the default session when left out.

        Raises:
            LoweringError: a block's inputs are wrong, or an op has no implementation.
        """
        if self.stage is Stage.LIR:
            return self
        if session is None:
            from rlx.session import Session

            session = Session()
        lowered = Module.from_lir(session.lower(self.into_mir().graph))
        return dataclasses.replace(lowered, fusion_policy=self.fusion_policy)

    def lower(self) -> Module:
        """The module below HIR: MIR for a module at HIR, the module itself for any other."""
        return self.into_mir() if self.stage is Stage.HIR else self

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The meshes of devices that the graph's shardings name, in order."""
        return meshes(self.graph)

    def io_dtypes(self) -> list[tuple[str, DType]]:
        """Names and dtypes of the inputs, then of the params."""
        return [(v.name, v.type.dtype) for v in (*self.graph.inputs, *self.graph.params)]

    def inspect(self) -> str:
        """The level, the policy, how often each op occurs, and the graph; the plan at LIR."""
        nodes = [n for g in self.graph.all_graphs() for n in g.nodes()]
        counts = Counter(node.op.op_name for node in nodes)
        listing = ", ".join(f"{name} ×{count}" for name, count in sorted(counts.items()))
        lines = [
            f"module {self.graph.name!r} at {self.stage.value}, fusion policy "
            f"{self.fusion_policy.value}",
            f"ops: {listing}",
        ]
        if self.lir is not None:
            plan = self.lir.plan
            chosen = Counter(f"{i.kind} {i.name}" for i in plan.implementations.values())
            lines.append(f"platform: {plan.platform}")
            lines += [f"  {name} ×{count}" for name, count in sorted(chosen.items())]
        return "\n".join([*lines, "", str(self.graph)])

    def __repr__(self) -> str:
        return f"<Module at {self.stage.value}: {self.graph!r}>"

    def _graph_at(self, stage: Stage, method: str) -> Graph:
        if self.stage is not stage:
            raise LoweringError(
                f"Module.{stage.value}: a module at {stage.value} is required; this one is at "
                f"{self.stage.value}. Call {method} first."
            )
        return self.graph


def _blocks(graph: Graph) -> list[str]:
    names = {
        node.op.op_name
        for inner in graph.all_graphs()
        for node in inner.nodes()
        if node.op.level is Level.HIR
    }
    return sorted(names)
