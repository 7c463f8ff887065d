"""LIR: a graph in which nothing is left to decide, with the decisions that were made."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from rlx.ir.graph import Graph, Node, Value
from rlx.ir.memory_plan import ALIGNMENT, ArenaPlan, MemoryEstimate, estimate, plan_arena
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
    """No implementation exists, or none that the options allow; every refusal is listed.

    Attributes:
        refused: what was not taken, with reasons.
        demanded: whether an option demands a kernel, and every one refuses.
    """

    refused: tuple[Refusal, ...]
    demanded: bool = False


@final
@dataclass(frozen=True)
class Plan:
    """The decisions of one LIR.

    Attributes:
        implementations: node → how it is carried out (inputs and params left out).
        decomposed: op name → how many nodes were replaced by their decomposition.
        inputs, params, outputs: names and types at the boundary.
        platform: what was decided for.
        decomposed_refusals: op name → why those nodes were not carried out as they were.
    """

    implementations: Mapping[Node, Implementation]
    decomposed: Mapping[str, int]
    inputs: tuple[tuple[str, TensorType], ...]
    params: tuple[tuple[str, TensorType], ...]
    outputs: tuple[TensorType, ...]
    platform: str
    decomposed_refusals: Mapping[str, tuple[Refusal, ...]] = field(
        default_factory=dict[str, "tuple[Refusal, ...]"]
    )


@final
@dataclass(frozen=True)
class ManifestEntry:
    """One value at the boundary.

    Attributes:
        id: position in the schedule of the node that makes it.
        name: the input's or param's; ``output_0`` and so on for outputs.
        type: dtype and shape.
    """

    id: int
    name: str
    type: TensorType


@final
@dataclass(frozen=True)
class Manifest:
    """Everything that crosses the boundary, in order."""

    inputs: tuple[ManifestEntry, ...]
    params: tuple[ManifestEntry, ...]
    outputs: tuple[ManifestEntry, ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for role in ("inputs", "params", "outputs"):
            entries: tuple[ManifestEntry, ...] = getattr(self, role)
            lines.append(f"{role}:")
            lines += [f"  #{e.id} {e.name}: {e.type}" for e in entries]
        return "\n".join(lines)


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

    @property
    def schedule(self) -> tuple[Node, ...]:
        """The nodes in the order in which they are carried out; inner graphs have their own."""
        return self.graph.nodes()

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Inputs, params and outputs with their ids, names and types."""
        position = {id(node): i for i, node in enumerate(self.schedule)}

        def entries(values: Iterable[tuple[str, Value]]) -> tuple[ManifestEntry, ...]:
            return tuple(ManifestEntry(position[id(v.node)], n, v.type) for n, v in values)

        graph = self.graph
        return Manifest(
            entries((v.name, v) for v in graph.inputs),
            entries((v.name, v) for v in graph.params),
            entries((f"output_{i}", v) for i, v in enumerate(graph.outputs)),
        )

    @property
    def dynamic_symbols(self) -> tuple[str, ...]:
        """Names of the symbolic dims that are left, sorted."""
        return tuple(
            sorted({s for node in self.schedule for type_ in node.types for s in type_.symbols})
        )

    @property
    def has_dynamic_dims(self) -> bool:
        """Whether a type holds a symbolic dim."""
        return bool(self.dynamic_symbols)

    @property
    def is_fully_static(self) -> bool:
        """Whether every type has numbers for dims."""
        return not self.has_dynamic_dims

    @functools.cached_property
    def _memory(self) -> MemoryEstimate:
        return estimate(self.graph)

    def memory(self, binding: Mapping[str, int] | None = None) -> MemoryEstimate:
        """Estimate what the schedule needs: live ranges, peak bytes, the largest buffers, views.

        Args:
            binding: symbol → size, where dims are symbolic.

        Raises:
            UnboundDimError: a size is needed that is not bound.
        """
        return estimate(self.graph, binding) if binding else self._memory

    def arena(
        self, binding: Mapping[str, int] | None = None, *, alignment: int = ALIGNMENT
    ) -> ArenaPlan:
        """Place every buffer in one arena, for information: XLA makes its own plan.

        Args:
            binding: symbol → size, where dims are symbolic.
            alignment: bytes that offsets are multiples of.

        Raises:
            UnboundDimError: a size is needed that is not bound.
            CompileError: the alignment is no power of two.
        """
        return plan_arena(self.memory(binding), alignment)

    @property
    def bytes_saved(self) -> int:
        """How much smaller the arena is than all buffers side by side, in bytes."""
        return self.arena().bytes_saved

    def fingerprint(self) -> str:
        """Digest of the graph and of the names of the chosen kernels, inner graphs included."""
        chosen = [
            f"{made.kind} {made.name}"
            for graph in self.graph.all_graphs()
            for node in graph.nodes()
            if (made := self.plan.implementations.get(node)) is not None
        ]
        text = "\n".join([self.graph.fingerprint(), self.plan.platform, *chosen])
        return hashlib.sha256(text.encode()).hexdigest()

    def __repr__(self) -> str:
        return f"<Lir for {self.plan.platform!r}: {self.graph!r}>"
