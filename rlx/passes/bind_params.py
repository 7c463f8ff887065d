"""Puts known values in place of params, so that what they decide is folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph
from rlx.ir.rewrite import substitute
from rlx.ops.io import Constant
from rlx.passes.base import AbstractPass, PassContext


@final
@dataclass(frozen=True, eq=False)
class KnownValues:
    """Param name → array, printed as the names alone."""

    arrays: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return ",".join(sorted(self.arrays))


NOTHING_KNOWN = KnownValues()


@final
@dataclass(frozen=True, kw_only=True)
class BindParams(AbstractPass):
    """Makes constants of params whose values are known.

    A large value stays a param, which the run binds to it: as a literal it would only swell the
    program. It is then no constant for folding; ``cache_param_invariant`` computes once what
    depends on it.

    Attributes:
        values: param name → array of the param's type.
        max_bytes: largest value that becomes a constant, in bytes.
    """

    name: ClassVar[str] = "bind-params"
    keeps_boundary: ClassVar[bool] = False
    values: KnownValues = NOTHING_KNOWN
    max_bytes: int = 1 << 16

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        known = [v for v in graph.params if v.name in self.values.arrays]
        small = [v for v in known if v.type.nbytes <= self.max_bytes]
        for value in known:
            if value.type.nbytes > self.max_bytes:
                ctx.note(
                    f"{value.name}: {value.type} stays a param with that value; its "
                    f"{value.type.nbytes:,} bytes are more than {self.max_bytes:,}"
                )
        if not small:
            return graph
        constants = {v: Constant(value=Literal(self.values.arrays[v.name]))() for v in small}
        made = substitute(graph, constants)
        gone = set(small)
        rest = [p for p in graph.params if p not in gone]
        return Graph(made.inputs, rest, made.outputs, made.effects, name=graph.name)
