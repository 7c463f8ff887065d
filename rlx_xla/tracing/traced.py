"""What a trace gives: the graph, its signature, the params, and what was modelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from rlx.ir.graph import Graph
from rlx.signature import Signature
from rlx.template import AbstractTemplate
from rlx_xla.tracing.arguments import Arguments


@final
@dataclass(frozen=True)
class Coverage:
    """How many equations of a trace became ops; printed as a table.

    Attributes:
        modelled: equations that became ops.
        external: equations that became opaque nodes.
        by_primitive: primitive → (modelled, external).
    """

    modelled: int
    external: int
    by_primitive: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        width = max([len(n) for n in self.by_primitive] + [len("primitive")])
        lines = [f"{'primitive':<{width}}  modelled  external"]
        for name, (modelled, opaque) in sorted(
            self.by_primitive.items(), key=lambda item: (-sum(item[1]), item[0])
        ):
            lines.append(f"{name:<{width}}  {modelled:>8}  {opaque:>8}")
        lines.append(f"{'total':<{width}}  {self.modelled:>8}  {self.external:>8}")
        return "\n".join(lines)


@final
@dataclass(frozen=True, eq=False)
class Traced:
    """A JAX function as an RLX graph.

    Attributes:
        graph: the graph; its params are those that the caller named, and captured arrays.
        signature: how arguments become inputs and outputs the caller's structure.
        params: param name → array, or None for an abstract leaf that is still to be set.
        seconds: wall time of JAX's own trace and of the walk, in seconds, by phase.
        modelled: how many equations became ops, by primitive.
        opaque: how many became opaque nodes, by primitive.
        arguments: every leaf of the traced function's arguments, params included.
        template: traces again for given sizes; None where there are no symbols.
    """

    graph: Graph
    signature: Signature
    params: Mapping[str, Any]
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    modelled: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)
    opaque: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)
    arguments: Arguments | None = field(default=None, repr=False)
    template: AbstractTemplate | None = field(default=None, repr=False)

    def coverage(self) -> Coverage:
        """Count the equations that became ops and those that became opaque nodes."""
        names = sorted({*self.modelled, *self.opaque})
        table = {n: (self.modelled.get(n, 0), self.opaque.get(n, 0)) for n in names}
        return Coverage(sum(self.modelled.values()), sum(self.opaque.values()), table)

    def __repr__(self) -> str:
        return f"<Traced {self.graph!r}>"
