"""Finds composites in graphs of primitives, however they were written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final

from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.recognize import (
    activations,
    attention,
    losses,
    norms,
    recurrent,
    rope,
    scans,
    softmax,
)
from rlx.passes.recognize.matcher import Matcher, find

Table: TypeAlias = "dict[type[Op], tuple[Matcher, ...]]"
Family: TypeAlias = "tuple[Table, tuple[type[Op], ...]]"

STAGES: tuple[tuple[Family, ...], ...] = (
    # Largest first: in a stage, the first matcher that accepts an op's node wins.
    (
        (scans.TABLE, scans.NEEDS),
        (recurrent.TABLE, recurrent.NEEDS),
        (attention.TABLE, attention.NEEDS),
        (rope.TABLE, rope.NEEDS),
        (norms.TABLE, norms.NEEDS),
        (softmax.TABLE, softmax.NEEDS),
        (activations.TABLE, activations.NEEDS),
    ),
    # They are made of what the first stage finds.
    ((losses.TABLE, losses.NEEDS),),
)
"""Matchers by op, with ops of which a graph has one where they find anything."""


@final
@dataclass(frozen=True, kw_only=True)
class Recognize(AbstractPass):
    """Replaces what primitives write out by the composite op that it is.

    A match gives the same NaN and Inf as its source, and an error that is no larger up to 2 ulp;
    where an attribute says how a source differs (``eps``, ``masked_rows``), the match sets it.
    What comes near is left alone and noted, with what differed and the user's line. With
    ``CompileOptions(strict=True)`` only a source that rounds no step below f32 matches.
    """

    name: ClassVar[str] = "recognize"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        counts: Counter[str] = Counter()
        misses: dict[str, None] = {}
        strict = ctx.options.strict
        for families in STAGES:
            merged = _useful(families, graph)
            if not merged:
                continue
            graph = find(
                graph,
                merged,
                strict=strict,
                platform=ctx.platform,
                counts=counts,
                misses=misses,
            )
        for what, count in sorted((+counts).items()):
            ctx.note(f"{what} × {count}")
        for text in misses:
            ctx.note(text)
        return graph


def _useful(families: tuple[Family, ...], graph: Graph) -> Table:
    """The matchers of the families that may find something in a graph or inside its ops."""
    present = {type(node.op) for inner in graph.all_graphs() for node in inner.nodes()}
    merged: Table = {}
    for table, needed in families:
        if not present.isdisjoint(needed):
            for op, matchers in table.items():
                merged[op] = merged.get(op, ()) + matchers
    return merged
