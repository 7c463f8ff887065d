"""Finds composites in graphs of primitives, however they were written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final

from rlx.ir.graph import Graph, Node
from rlx.ir.op import Op
from rlx.ops.control_flow import Scan
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.recognize import (
    activations,
    attention,
    attention_backward,
    delta,
    groups,
    losses,
    norms,
    parallel_scans,
    recurrent,
    rope,
    scans,
    scans_near,
    softmax,
    units,
)
from rlx.passes.recognize.apart import take_apart
from rlx.passes.recognize.matcher import Match, Matcher, Search
from rlx.passes.recognize.replace import find
from rlx.recognition_report import NearMiss, RecognitionReport

Table: TypeAlias = "dict[type[Op], tuple[Matcher, ...]]"
Family: TypeAlias = "tuple[Table, tuple[type[Op], ...]]"

STAGES: tuple[tuple[Family, ...], ...] = (
    # Largest first: in a stage, the first matcher that accepts an op's node wins.
    (
        (scans.TABLE, scans.NEEDS),
        (delta.TABLE, delta.NEEDS),
        (recurrent.TABLE, recurrent.NEEDS),
        (parallel_scans.TABLE, parallel_scans.NEEDS),
        # After the loops that match, which come near it.
        (scans_near.TABLE, scans_near.NEEDS),
        (attention_backward.TABLE, attention_backward.NEEDS),
        (attention.TABLE, attention.NEEDS),
        (rope.TABLE, rope.NEEDS),
        # Before the other norms, which come near them.
        (groups.TABLE, groups.NEEDS),
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

    A product with its bias and activation, and a gated unit, are counted and stay their ops.
    ``compiled.report().recognition`` has all of it.
    """

    name: ClassVar[str] = "recognize"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        counts: Counter[str] = Counter()
        misses: dict[NearMiss, None] = {}
        strict = ctx.options.strict
        graph, split = take_apart(graph, lambda inner: self._cells(inner, ctx))
        if split:
            ctx.note(f"{split} loops are taken apart: a loop for each cell, and none for the rest")
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
                has_kernel=ctx.has_kernel,
                trees=ctx.options.fusion_opts.scan_trees,
            )
        found = RecognitionReport(
            dict(sorted((+counts).items())),
            dict(sorted(_units(graph, ctx, misses).items())),
            tuple(misses),
        )
        for line in found.lines():
            ctx.note(line)
        ctx.found = found
        return graph

    @staticmethod
    def _cells(graph: Graph, ctx: PassContext) -> dict[Node, Match]:
        """The scans of a graph that are recurrences."""
        search = Search(graph, ctx.options.strict, {}, ctx.platform, ctx.has_kernel)
        return search.run({Scan: (*scans.TABLE[Scan], *delta.TABLE[Scan], *recurrent.TABLE[Scan])})


def _units(graph: Graph, ctx: PassContext, misses: dict[NearMiss, None]) -> Counter[str]:
    """How often each unit stands in a graph or inside its ops."""
    counts: Counter[str] = Counter()
    for inner in graph.all_graphs():
        if any(isinstance(node.op, units.NEEDS) for node in inner.nodes()):
            search = Search(inner, ctx.options.strict, misses, ctx.platform)
            units.count_units(inner, search, counts)
    return counts


def _useful(families: tuple[Family, ...], graph: Graph) -> Table:
    """The matchers of the families that may find something in a graph or inside its ops."""
    present = {type(node.op) for inner in graph.all_graphs() for node in inner.nodes()}
    merged: Table = {}
    for table, needed in families:
        if not present.isdisjoint(needed):
            for op, matchers in table.items():
                merged[op] = merged.get(op, ()) + matchers
    return merged
