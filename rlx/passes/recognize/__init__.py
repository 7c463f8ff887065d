"""Finds composites in graphs of primitives, however they were written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, final

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

STAGES: tuple[tuple[dict[type[Op], tuple[Matcher, ...]], ...], ...] = (
    # Largest first: in a stage, the first matcher that accepts an op's node wins.
    (
        scans.TABLE,
        recurrent.TABLE,
        attention.TABLE,
        rope.TABLE,
        norms.TABLE,
        softmax.TABLE,
        activations.TABLE,
    ),
    # They are made of what the first stage finds.
    (losses.TABLE,),
)
"""Tables of matchers; a later stage sees the composites that an earlier one left."""


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
        for tables in STAGES:
            merged = _merged(tables)
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


def _merged(
    tables: tuple[dict[type[Op], tuple[Matcher, ...]], ...],
) -> dict[type[Op], tuple[Matcher, ...]]:
    merged: dict[type[Op], tuple[Matcher, ...]] = {}
    for table in tables:
        for op, matchers in table.items():
            merged[op] = merged.get(op, ()) + matchers
    return merged
