"""LIR: a graph in which nothing is left to decide, with the decisions that were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from rlx.ir.graph import Graph, Node
from rlx.types import TensorType


@final
@dataclass(frozen=True)
class Refusal:
    """Why an implementation was not chosen."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@final
@dataclass(frozen=True)
class Implementation:
    """How a node is carried out.

    Attributes:
        kind: ``kernel``, ``rule`` or ``decomposition``.
        name: the kernel's name, or the op's.
        emit: what the backend calls to carry it out; None for a decomposition.
        refused: kernels that were not taken, with reasons.
    """

    kind: str
    name: str
    emit: Any = None
    refused: tuple[Refusal, ...] = ()


@final
@dataclass(frozen=True)
class Refusals:
    """No implementation exists; every refusal is listed."""

    refused: tuple[Refusal, ...]


@final
@dataclass(frozen=True)
class Plan:
    """The decisions of one LIR.

    Attributes:
        implementations: node → how it is carried out (inputs, params and constants left out).
        decomposed: op name → how many nodes were replaced by their decomposition.
        inputs, params, outputs: names and types at the boundary.
        platform: what was decided for.
    """

    implementations: Mapping[Node, Implementation]
    decomposed: Mapping[str, int]
    inputs: tuple[tuple[str, TensorType], ...]
    params: tuple[tuple[str, TensorType], ...]
    outputs: tuple[TensorType, ...]
    platform: str


@final
@dataclass(frozen=True)
class Lir:
    """A graph with its plan.

    Attributes:
        graph: MIR in which every node has a kernel or a rule.
        plan: which.
    """

    graph: Graph
    plan: Plan

    def fingerprint(self) -> str:
        """Digest of the graph and of the names of the chosen kernels."""
        import hashlib

        chosen = [
            self.plan.implementations[n].name
            for n in self.graph.nodes()
            if n in self.plan.implementations
        ]
        text = "\n".join([self.graph.fingerprint(), self.plan.platform, *chosen])
        return hashlib.sha256(text.encode()).hexdigest()
