"""Which nodes a pass may merge or compute ahead of time."""

from __future__ import annotations

from typing import final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, inner_first, inner_graphs
from rlx.ops.collective import COLLECTIVES, ShardingConstraint, ShardMap
from rlx.ops.control_flow import Call, CallKind, PlatformIndex
from rlx.ops.convert import OptimizationBarrier
from rlx.ops.external import External
from rlx.ops.random import RANDOM_OPS, RngBitGenerator, Threefry2x32

_PINNED = (External, OptimizationBarrier, ShardingConstraint, ShardMap)
_LEFT_TO_DEVICE = (PlatformIndex, RngBitGenerator, Threefry2x32, *RANDOM_OPS, *COLLECTIVES)


@final
class Purity:
    """Answers for the nodes of one run of a pass; remembers inner graphs."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._pinned: dict[Graph, bool] = {}

    def is_pinned(self, node: Node) -> bool:
        """Whether a node stands for itself: it has an effect, is opaque or kept apart.

        A barrier and a rematerialised call exist to be computed again; an opaque computation may
        do anything; tokens order effects; a sharding says where its value lies.
        """
        op = node.op
        if isinstance(op, _PINNED) or (isinstance(op, Call) and op.kind is CallKind.REMAT):
            return True
        for kind in node.types:
            if kind.dtype is DType.TOKEN:
                return True
        for value in node.inputs:
            if value.node.types[value.index].dtype is DType.TOKEN:
                return True
        return op.holds_graphs and any(self._holds_pinned(inner) for inner in inner_graphs(op))

    def is_left_to_device(self, node: Node) -> bool:
        """Whether the result may depend on the device, or is drawn: not to be computed ahead."""
        return isinstance(node.op, _LEFT_TO_DEVICE) or self.is_pinned(node)

    def _holds_pinned(self, graph: Graph) -> bool:
        # Inner ones first, so that the question does not nest; a known one is not entered again.
        for inner in inner_first(graph, lambda inner: inner not in self._pinned):
            if inner not in self._pinned:
                self._pinned[inner] = any(self.is_pinned(node) for node in inner.nodes())
        return self._pinned[graph]
