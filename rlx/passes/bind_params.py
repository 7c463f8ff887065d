"""Puts known values in place of params, so that what they decide is folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from rlx.ir.attributes import Literal
from rlx.ir.graph import Graph, Value
from rlx.ir.rewrite import substitute
from rlx.ops.io import Constant, Param
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

    A large value stays a param, which the run binds to it. It is then no constant for folding;
    ``cache_param_invariant`` computes once what depends on it.

    Attributes:
        values: param name → array of the param's type.
        max_bytes: largest value that becomes a constant, in bytes: what folding reads at most.
    """

    name: ClassVar[str] = "bind-params"
    keeps_boundary: ClassVar[bool] = False
    values: KnownValues = NOTHING_KNOWN
    max_bytes: int = 1 << 20

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


@final
@dataclass(frozen=True, kw_only=True)
class LiftBoundParams(AbstractPass):
    """Makes params again of the known values that folding has left as large constants.

    A literal of that size would only swell the program; the run binds the param to the value.

    Attributes:
        values: what ``BindParams`` put in.
        min_bytes: constants of more bytes than this are lifted.
    """

    name: ClassVar[str] = "lift-bound-params"
    keeps_boundary: ClassVar[bool] = False
    values: KnownValues = NOTHING_KNOWN
    min_bytes: int = 1024

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        listed = {p.name for p in graph.params}
        names = {
            Literal(array): name
            for name, array in self.values.arrays.items()
            if name not in listed and array.nbytes > self.min_bytes
        }
        lifted: dict[Value, Value] = {}
        params: dict[str, Value] = {}
        for node in graph.nodes() if names else ():
            op = node.op
            name = names.get(op.value) if isinstance(op, Constant) else None
            if name is not None:
                type_ = node.types[0]
                if name not in params:
                    params[name] = Param(name=name, dtype=type_.dtype, shape=type_.shape)()
                    ctx.note(f"{name}: {type_} is read as it is, from a param with that value")
                lifted[node.results[0]] = params[name]
        if not lifted:
            return graph
        # Listed first, so that the graph with users of them is one.
        known = Graph(graph.inputs, [*graph.params, *params.values()], graph.outputs, graph.effects)
        made = substitute(known, lifted)
        return Graph(made.inputs, made.params, made.outputs, made.effects, name=graph.name)
