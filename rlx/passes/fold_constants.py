"""Computes constant parts of the graph ahead of time, within a budget of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.attributes import Array, Literal
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.interpret import evaluate_node
from rlx.ir.rewrite import rewrite
from rlx.ops.io import Constant
from rlx.ops.shape import BroadcastInDim, DimValue
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.purity import Purity


@final
@dataclass(frozen=True, kw_only=True)
class FoldConstants(AbstractPass):
    """Replaces a node whose inputs are all constants by what it computes.

    The budgets are in bytes, not in seconds, so that one graph always folds the same way. A node
    that makes more bytes than it reads (a pad, say) is folded only while its result is tiny, and
    a broadcast only as part of its users, since both say the same in fewer words. Loops, calls,
    opaque nodes, effects and random bits are never folded.

    Attributes:
        max_bytes: largest result that is folded, in bytes.
        max_input_bytes: most bytes of inputs that are read for one result.
        max_growth_bytes: largest result that may be larger than the inputs, in bytes.
    """

    name: ClassVar[str] = "fold-constants"
    max_bytes: int = 1024
    max_input_bytes: int = 1 << 20
    max_growth_bytes: int = 64

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        purity = Purity()

        def fold(node: Node) -> tuple[Value, ...] | None:
            arrays = self._arrays(node, purity)
            if arrays is None:
                return None
            results = evaluate_node(node, arrays)
            return tuple(Constant(value=Literal(array))() for array in results)

        return rewrite(graph, fold)

    def _arrays(self, node: Node, purity: Purity) -> list[Array] | None:
        """The arrays that a node reads, if it may be folded."""
        op = node.op
        if not node.inputs:
            return [] if isinstance(op, DimValue) and isinstance(op.dim, int) else None
        if not all(self._is_known(value) for value in node.inputs):
            return None
        if isinstance(op, BroadcastInDim) or inner_graphs(op) or purity.is_left_to_device(node):
            return None
        read = sum(value.type.nbytes for value in node.inputs)
        if read > self.max_input_bytes or not all(t.is_static for t in node.types):
            return None
        made = sum(t.nbytes for t in node.types)
        if made > min(self.max_bytes, max(read, self.max_growth_bytes)):
            return None
        return [_known(value) for value in node.inputs]

    def _is_known(self, value: Value) -> bool:
        """A constant, or the broadcast of one to no more than a result may have."""
        if isinstance(value.node.op, Constant):
            return True
        if not isinstance(value.node.op, BroadcastInDim) or not value.type.is_static:
            return False
        source = value.node.inputs[0].node.op
        return isinstance(source, Constant) and value.type.nbytes <= self.max_bytes


def _known(value: Value) -> Array:
    node = value.node
    array: Array = node.op.evaluate(*(_known(x) for x in node.inputs))
    return array
