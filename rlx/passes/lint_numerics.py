"""Notes constants that hold NaN or infinity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from rlx.ir.graph import Graph, Node
from rlx.ops.io import Constant
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.protect_values import risky_pairs


@final
@dataclass(frozen=True, kw_only=True)
class LintNumerics(AbstractPass):
    """Adds a note for each constant that is not finite everywhere; changes nothing.

    A folded expression shows here too, so that ``log(0)`` in a graph is found before it runs. So
    do pairs of ops that XLA replaces by a form with other values, unless ``strict`` keeps them.
    """

    name: ClassVar[str] = "lint-numerics"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        for inner in graph.all_graphs():
            for node in inner.nodes():
                text = _finding(node)
                if text:
                    ctx.note(text)
        if not ctx.options.strict:
            for node, text in risky_pairs(graph):
                where = f" at {node.location}" if node.location else ""
                ctx.note(f"XLA replaces {text}{where} by a form with other values; strict keeps it")
        return graph


def _finding(node: Node) -> str:
    op = node.op
    if not isinstance(op, Constant):
        return ""
    dtype = node.types[0].dtype
    if not (dtype.is_float or dtype.is_complex):
        return ""
    wide = op.value.array.astype(np.complex128 if dtype.is_complex else np.float64)
    nans, infinities = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    if not nans + infinities:
        return ""
    where = f" at {node.location}" if node.location else ""
    return f"constant {node.types[0]}{where} holds {nans} NaN and {infinities} infinite elements"
