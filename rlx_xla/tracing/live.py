"""Calls whose JAX equation is kept, because it holds more than the body: a rule of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rlx.ir.graph import Graph
from rlx_xla.tracing.external import LiveEquation


@final
@dataclass(frozen=True, eq=False)
class LiveCall:
    """The equation behind a call of a checkpointed function, or one with a rule of its own.

    Attributes:
        equation: the equation; binding it again keeps its rules and policies.
        body: the graph that was made of its body. The equation stands for the call only as long
            as this is the call's body.
        captured: whether the body takes arrays that the function closes over; they are params of
            the graph, and the equation would use their old values.
    """

    equation: LiveEquation
    body: Graph
    captured: bool
