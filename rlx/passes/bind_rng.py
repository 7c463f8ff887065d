"""Makes ordinary ops of random ones, which read the seed of the run from a hidden param."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from rlx.dtypes import DType
from rlx.hidden import SEED
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.rewrite import Rule, rewrite, rule, with_graphs
from rlx.ops.io import Param
from rlx.ops.random.seeded import RANDOM_OPS, seed_value, seeded
from rlx.options.rng import RngBackend, RngOptions
from rlx.passes.base import AbstractPass, PassContext


@final
@dataclass(frozen=True, kw_only=True)
class BindRng(AbstractPass):
    """Writes out what random ops mean under a policy.

    With Philox the seed is a hidden param, so that another seed needs no compile. Inside loops,
    choices and calls it is a constant, and so it is for the other generators: another seed then
    means another program.

    Attributes:
        rng: the policy.
        hidden: read the seed from the hidden param where that is possible.
    """

    name: ClassVar[str] = "bind-rng"
    keeps_boundary: ClassVar[bool] = False
    rng: RngOptions = field(default_factory=RngOptions)
    hidden: bool = True

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if not uses_rng(graph):
            return graph
        fixed = seed_value(self.rng.seed)
        outer = fixed
        if self.hidden and self.rng.backend is RngBackend.PHILOX:
            outer = Param(name=SEED, dtype=DType.U32, shape=(2,))()
            # Listed first, so that the graph with users of it is one.
            graph = Graph(
                graph.inputs, [*graph.params, outer], graph.outputs, graph.effects, name=graph.name
            )
        done: dict[Graph, Graph] = {}
        for inner in graph.all_graphs():
            seed = outer if inner is graph else fixed
            done[inner] = rewrite(with_graphs(inner, done), self._writer(seed), nested=False)
        made = done[graph]
        if outer is fixed or any(v is outer for node in made.nodes() for v in node.inputs):
            return made
        return Graph(made.inputs, made.params[:-1], made.outputs, made.effects, name=made.name)

    def _writer(self, seed: Value) -> Rule:
        @rule(*RANDOM_OPS)
        def write(node: Node) -> Value | None:
            if not isinstance(node.op, RANDOM_OPS):
                return None
            return seeded(node.op, node.inputs, seed, self.rng.backend)

        return write


def uses_rng(graph: Graph) -> bool:
    """Whether a graph draws numbers by the policy of the run."""
    return any(_draws(inner) for inner in graph.all_graphs())


def is_seed_in_program(graph: Graph, rng: RngOptions) -> bool:
    """Whether another seed needs another program: see ``BindRng``."""
    if rng.backend is RngBackend.ORT:
        return uses_rng(graph)
    if rng.backend is RngBackend.ZERO:
        return False
    return any(_draws(inner) for inner in graph.all_graphs() if inner is not graph)


def seed_words(rng: RngOptions) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The value of the hidden param."""
    return np.array([rng.seed & 0xFFFFFFFF, rng.seed >> 32], np.uint32)


def _draws(graph: Graph) -> bool:
    return any(isinstance(node.op, RANDOM_OPS) for node in graph.nodes())
