"""Lowers HIR to MIR: blocks become fused ops, or primitives and composites."""

from __future__ import annotations

from rlx.ir import location as loc
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Level
from rlx.ir.rewrite import rewrite


def lower_blocks(graph: Graph, *, direct: bool = True) -> Graph:
    """Replace every block, inner graphs included, and the blocks that come out of one.

    Nodes made from a block carry its label after that of the scope in which it stands.

    Args:
        graph: HIR.
        direct: whether a block that has a form made of fused ops takes it.

    Raises:
        LoweringError: a block has inputs missing or to spare, in RLX's words.
    """
    from rlx.ops.blocks.forms import direct_form

    def step(node: Node) -> Value | tuple[Value, ...] | None:
        block = node.op
        if block.level is not Level.HIR:
            return None
        form = direct_form(block) if direct else None
        with loc.at(_labelled(node)):
            made: Value | tuple[Value, ...] = (
                block.decompose(*node.inputs) if form is None else form(block, *node.inputs)
            )
        return made

    return rewrite(graph, step)


def _labelled(node: Node) -> loc.Location:
    where = node.location
    label = f"{where.label}/{node.op.op_name}" if where.label else node.op.op_name
    return loc.intern(where.file, where.line, label)
