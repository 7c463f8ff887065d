"""Makes ordinary ops of random ones, which read the seed of the run from a hidden param."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from rlx.dtypes import DType
from rlx.hidden import SEED
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ir.rewrite import Rule, rewrite, rule, with_graphs, with_inner_graphs
from rlx.ops.io import Input, Param
from rlx.ops.random.seeded import RANDOM_OPS, seed_value, seeded
from rlx.options.rng import RngBackend, RngOptions
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.thread_value import can_take, with_operand


@final
@dataclass(frozen=True, kw_only=True)
class BindRng(AbstractPass):
    """Writes out what random ops mean under a policy.

    With Philox the seed is a hidden param, handed down into calls, choices and loops, so that
    another seed needs no compile. It is a constant inside the graphs of other ops and for the
    other generators: another seed then means another program.

    Attributes:
        rng: the policy.
        hidden: read the seed from the hidden param where that is possible.
    """

    name: ClassVar[str] = "bind-rng"
    keeps_boundary: ClassVar[bool] = False
    rng: RngOptions = field(default_factory=RngOptions)
    hidden: bool = True

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        drawing = _drawing(graph)
        if graph not in drawing:
            return graph
        writing = _Writing(self.rng, drawing)
        if not self.hidden or self.rng.backend is not RngBackend.PHILOX:
            return writing.with_constant(graph)
        seed = Param(name=SEED, dtype=DType.U32, shape=(2,))()
        # Listed first, so that the graph with users of it is one.
        made = writing.with_seed(
            Graph(graph.inputs, [*graph.params, seed], graph.outputs, graph.effects), graph, seed
        )
        used = any(v is seed for node in made.nodes() for v in node.inputs)
        params = made.params if used else made.params[:-1]
        return Graph(made.inputs, params, made.outputs, made.effects, name=graph.name)


@final
class _Writing:
    """One run: each inner graph is written out once with a seed from outside, and once without."""

    def __init__(self, rng: RngOptions, drawing: Collection[Graph]) -> None:
        self._rng = rng
        self._drawing = drawing
        self._constant: dict[Graph, Graph] = {}
        self._taking: dict[Graph, Graph] = {}

    def with_constant(self, graph: Graph) -> Graph:
        """The graph with the seed as a constant, inner graphs too."""
        if graph not in self._constant:
            seed = seed_value(self._rng.seed)
            for inner in graph.all_graphs():
                if inner not in self._constant:
                    whole = with_graphs(inner, self._constant)
                    self._constant[inner] = rewrite(whole, self._written(seed), nested=False)
        return self._constant[graph]

    def with_seed(self, graph: Graph, source: Graph, seed: Value) -> Graph:
        """The graph, which lists ``seed`` among its leaves, with it in place of the policy's.

        Args:
            graph: what is rewritten.
            source: the same without the leaf; its inner graphs are known to draw or not.
            seed: u32[2].
        """
        for inner in source.all_graphs():
            if inner is not source and inner in self._drawing and inner not in self._taking:
                leaf = Input(name=SEED, dtype=DType.U32, shape=(2,))()
                listed = Graph([*inner.inputs, leaf], (), inner.outputs, inner.effects)
                self._taking[inner] = self._rewritten(listed, leaf, inner.name)
        return self._rewritten(graph, seed, source.name)

    def _rewritten(self, graph: Graph, seed: Value, name: str) -> Graph:
        made = rewrite(graph, self._written(seed), self._handed(seed), nested=False)
        return Graph(made.inputs, made.params, made.outputs, made.effects, name=name)

    def _written(self, seed: Value) -> Rule:
        @rule(*RANDOM_OPS)
        def write(node: Node) -> Value | None:
            if not isinstance(node.op, RANDOM_OPS):
                return None
            return seeded(node.op, node.inputs, seed, self._rng.backend)

        return write

    def _handed(self, seed: Value) -> Rule:
        def hand(node: Node) -> tuple[Value, ...] | None:
            inner = inner_graphs(node.op)
            if not any(graph in self._drawing for graph in inner):
                return None
            if can_take(node.op):
                return with_operand(node, seed, [self._taking.get(g, g) for g in inner]).results
            op = with_inner_graphs(node.op, [self.with_constant(g) for g in inner])
            return Node(op, node.inputs, node.types, node.location).results

        return hand


def uses_rng(graph: Graph) -> bool:
    """Whether a graph draws numbers by the policy of the run."""
    return graph in _drawing(graph)


def is_seed_in_program(graph: Graph, rng: RngOptions) -> bool:
    """Whether another seed needs another program: see ``BindRng``."""
    drawing = _drawing(graph)
    if rng.backend is RngBackend.ORT:
        return graph in drawing
    if rng.backend is RngBackend.ZERO:
        return False
    return any(
        inner in drawing and not can_take(node.op)
        for outer in graph.all_graphs()
        for node in outer.nodes()
        for inner in inner_graphs(node.op)
    )


def seed_words(rng: RngOptions) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The value of the hidden param."""
    return np.array([rng.seed & 0xFFFFFFFF, rng.seed >> 32], np.uint32)


def _drawing(graph: Graph) -> set[Graph]:
    """The graphs that draw numbers, themselves or in a graph inside."""
    found: set[Graph] = set()
    for inner in graph.all_graphs():  # inner ones first
        if any(
            isinstance(node.op, RANDOM_OPS) or any(g in found for g in inner_graphs(node.op))
            for node in inner.nodes()
        ):
            found.add(inner)
    return found
