"""Brings equal meanings to one plain form, by rewrites that are exact for every input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph
from rlx.ir.rewrite import rewrite
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.canonicalize import (
    arithmetic,
    bits,
    choices,
    convolution,
    dot,
    layouts,
    parts,
    reductions,
)

RULES = (
    # Those that hold for every platform.
    *arithmetic.RULES,
    *bits.RULES,
    *choices.RULES,
    *dot.RULES,
    *layouts.RULES,
    *parts.RULES,
    *reductions.RULES,
)


@final
@dataclass(frozen=True, kw_only=True)
class Canonicalize(AbstractPass):
    """Removes what does nothing, and joins chains of layouts and conversions.

    Every rule keeps NaN, Inf and −0; there is no ``x*0 → 0``, no ``x−x → 0`` and no
    reassociation of floats.
    """

    name: ClassVar[str] = "canonicalize"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return rewrite(graph, *RULES, *convolution.rules(ctx.platform))
