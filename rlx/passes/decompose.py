"""Replaces composite ops by what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Level, Op
from rlx.ir.rewrite import rewrite
from rlx.passes.base import AbstractPass, PassContext


@final
@dataclass(frozen=True, kw_only=True)
class Decompose(AbstractPass):
    """Decomposes ops until none is left that should be.

    Attributes:
        ops: names of the ops to decompose; empty means every composite.
        level: only ops of this level, or None for all.
    """

    name: ClassVar[str] = "decompose"
    ops: tuple[str, ...] = ()
    level: Level | None = None

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        def wanted(op: Op) -> bool:
            named = not self.ops or op.op_name in self.ops
            return named and (self.level is None or op.level is self.level)

        return decompose(graph, wanted)


def decompose(graph: Graph, wanted: Callable[[Op], bool]) -> Graph:
    """Decompose every op for which ``wanted`` holds, and what comes out of it, to the end."""

    def step(node: Node) -> Value | tuple[Value, ...] | None:
        if not node.op.has_decompose or not wanted(node.op):
            return None
        made: Value | tuple[Value, ...] = node.op.decompose(*node.inputs)
        return made

    return rewrite(graph, step)
