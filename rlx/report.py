"""What a compile decided and what it cost: printed, or shown as HTML in a notebook."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from rlx.ir.plan import Lir
from rlx.passes.base import PassRecord


@final
@dataclass(frozen=True)
class Choice:
    """How the nodes of one op are carried out.

    Attributes:
        op: the op's name.
        kind: ``kernel``, ``rule`` or ``decomposition``.
        implementation: the kernel's name, or the op's.
        count: how many nodes.
        refused: kernels that were not taken, with reasons, each reason once.
    """

    op: str
    kind: str
    implementation: str
    count: int
    refused: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class CompileReport:
    """One compile.

    Attributes:
        name: the graph's name.
        device: what it was compiled for.
        phases: seconds by phase, in order.
        passes: what each pass did.
        choices: how nodes are carried out.
        params: number of params and their bytes.
        memory: bytes by kind, as XLA counts them.
        cost: XLA's estimates.
        external: opaque nodes by name.
    """

    name: str
    device: str
    phases: Mapping[str, float]
    passes: Sequence[PassRecord]
    choices: Sequence[Choice]
    params: tuple[int, int]
    memory: Mapping[str, int]
    cost: Mapping[str, float]
    external: Mapping[str, int]

    @property
    def kernels(self) -> list[Choice]:
        """Only the choices that are kernels."""
        return [c for c in self.choices if c.kind == "kernel"]

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.device}"]
        phases = "  ".join(
            f"{name} {seconds * 1e3:.1f} ms" for name, seconds in self.phases.items()
        )
        lines.append(f"  phases: {phases}")
        count, size = self.params
        lines.append(f"  params: {count}, {size:,} bytes")
        if self.memory:
            lines.append("  memory: " + "  ".join(f"{k} {v:,} B" for k, v in self.memory.items()))
        if self.cost:
            shown = {k: v for k, v in self.cost.items() if k in ("flops", "bytes accessed")}
            lines.append("  cost: " + "  ".join(f"{k} {v:,.0f}" for k, v in shown.items()))
        lines.append("  passes:")
        lines += [f"    {record}" for record in self.passes]
        lines.append("  implementations:")
        for choice in self.choices:
            lines.append(
                f"    {choice.count:>6} × {choice.op:<24} {choice.kind} {choice.implementation}"
            )
            lines += [f"             refused {reason}" for reason in choice.refused]
        if self.external:
            lines.append("  opaque: " + ", ".join(f"{n} × {c}" for n, c in self.external.items()))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def choices_of(lir: Lir) -> list[Choice]:
    """Group the implementations of an LIR by op, most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    reasons: dict[tuple[str, str, str], dict[str, None]] = {}
    for node, made in lir.plan.implementations.items():
        key = (node.op.op_name, made.kind, made.name)
        counts[key] += 1
        reasons.setdefault(key, {}).update(dict.fromkeys(map(str, made.refused)))
    for name, count in lir.plan.decomposed.items():
        counts[name, "decomposition", name] += count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        Choice(op, kind, name, count, tuple(reasons.get((op, kind, name), ())))
        for (op, kind, name), count in ordered
    ]


def external_nodes(lir: Lir) -> dict[str, int]:
    """Opaque nodes of an LIR by name."""
    return dict(
        Counter(
            str(node.op.attributes()["name"])
            for graph in lir.graph.all_graphs()
            for node in graph.nodes()
            if node.op.op_name == "external"
        )
    )
