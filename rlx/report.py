"""What a compile decided and what it cost: printed, shown as HTML in a notebook, or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from rlx.dispatch import Choice, DispatchPath, KernelDispatchReport, choice_lines, policy_text
from rlx.fusion_report import FusionReport, fusion_lines, fusion_of
from rlx.ir.memory_plan import Buffer, MemoryEstimate
from rlx.ir.plan import Lir
from rlx.passes.base import PassRecord
from rlx.recognition_report import RecognitionReport, recognition_of
from rlx.sharding import mesh_of

_COSTS = ("flops", "bytes accessed")
_LARGEST = 5
"""How many buffers are named."""


@final
@dataclass(frozen=True)
class CompileReport:
    """One compile.

    Attributes:
        name: the graph's name.
        device: what it was compiled for.
        phases: seconds by phase, in order.
        passes: what each pass did.
        dispatch: how nodes are carried out, with the reason of every refusal.
        params: number of params and their bytes.
        memory: bytes by kind, as XLA counts them.
        cost: XLA's estimates.
        external: opaque nodes by name.
        lir: the graph with its plan, from which schedule and memory are estimated.
        ineffective: options that were set and change nothing here, each with its reason.
        staging: what is computed once per binding of params, in lines of text; empty where
            nothing is.
        decisions: what the backend chose by itself for this program, such as a flag of its
            compiler, each with its reason.
    """

    name: str
    device: str
    phases: Mapping[str, float]
    passes: Sequence[PassRecord]
    dispatch: KernelDispatchReport
    params: tuple[int, int]
    memory: Mapping[str, int]
    cost: Mapping[str, float]
    external: Mapping[str, int]
    lir: Lir = field(repr=False)
    ineffective: Sequence[str] = ()
    staging: Sequence[str] = ()
    decisions: Sequence[str] = ()

    @property
    def choices(self) -> list[Choice]:
        """How the nodes of each op are carried out, most frequent first."""
        return list(self.dispatch.summaries)

    @property
    def kernels(self) -> list[Choice]:
        """Only the choices that are kernels."""
        return self.dispatch.of(DispatchPath.NATIVE)

    @property
    def fusion(self) -> FusionReport:
        """What was fused, and which patterns were missed and why."""
        return fusion_of(self.passes) or FusionReport.scan(self.lir.graph)

    @property
    def recognition(self) -> RecognitionReport:
        """Which composites were found among primitives, and what came near and differed."""
        return recognition_of(self.passes)

    @property
    def unused(self) -> list[str]:
        """Names of inputs and params that the program never reads."""
        from rlx.show.summary import unused_leaves

        return [leaf.name for leaf in unused_leaves(self.lir.graph)]

    @property
    def estimate(self) -> MemoryEstimate:
        """What the schedule needs by the graph alone: peak bytes and the largest buffers."""
        return self.lir.memory()

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.device}"]
        for title, rows in self.sections():
            if len(rows) == 1:
                lines.append(f"  {title}: {rows[0].strip()}")
            elif rows:
                lines.append(f"  {title}:")
                lines += [f"    {row}" for row in rows]
        return "\n".join(lines)

    def sections(self) -> list[tuple[str, list[str]]]:
        """Titles with their lines of text, in the order of the page; a section may be empty."""
        phases = "  ".join(
            f"{name} {seconds * 1e3:.1f} ms" for name, seconds in self.phases.items()
        )
        count, size = self.params
        memory = "  ".join(f"{kind} {size:,} B" for kind, size in self.memory.items())
        # XLA says −1 where it does not know, as for a custom call.
        shown = {k: v for k, v in self.cost.items() if k in _COSTS and v >= 0}
        cost = "  ".join(f"{name} {value:,.0f}" for name, value in shown.items())
        opaque = ", ".join(f"{name} × {count}" for name, count in self.external.items())
        mesh = mesh_of(self.lir.graph)
        devices = [] if mesh is None or mesh.size == 1 else [f"{mesh.size}, {mesh}"]
        return [
            ("devices", devices),
            ("phases", [phases] if phases else []),
            ("params", [f"{count}, {size:,} bytes"]),
            ("memory", [memory] if memory else []),
            ("estimate", self._estimate_lines()),
            ("cost", [cost] if cost else []),
            ("passes", [line for record in self.passes for line in str(record).split("\n")]),
            ("fusion", fusion_lines(self.passes)),
            ("dispatch", [policy_text(self.dispatch.policy)]),
            ("implementations", list(choice_lines(self.dispatch.summaries))),
            ("staging", list(self.staging)),
            ("decisions", list(self.decisions)),
            ("opaque", [opaque] if opaque else []),
            ("unused", [", ".join(self.unused)] if self.unused else []),
            ("without effect", list(self.ineffective)),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, texts and numbers."""
        count, size = self.params
        return {
            "name": self.name,
            "device": self.device,
            "phases": dict(self.phases),
            "passes": [_pass_dict(record) for record in self.passes],
            "dispatch": self.dispatch.to_dict(),
            "params": {"count": count, "bytes": size},
            "memory": dict(self.memory),
            "estimate": _estimate_dict(self.estimate),
            "cost": dict(self.cost),
            "external": dict(self.external),
            "unused": list(self.unused),
            "staging": list(self.staging),
            "decisions": list(self.decisions),
            "fusion": self.fusion.to_dict(),
            "recognition": self.recognition.to_dict(),
            "without_effect": list(self.ineffective),
            "fingerprint": self.lir.fingerprint(),
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """``to_dict`` as JSON text.

        Args:
            indent: blanks per level, None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def _repr_html_(self) -> str:
        from rlx.show.report_page import report_html

        return report_html(self)

    def _estimate_lines(self) -> list[str]:
        found = self.estimate
        if not found.buffers:
            return []
        lines = [str(found)]
        lines += [f"{b.nbytes:>14,} B  {b.kind:<8} {b.type} {b.name}" for b in self.largest()]
        return lines

    def largest(self, count: int = _LARGEST) -> list[Buffer]:
        """The largest buffers of the estimate."""
        return self.estimate.largest(count)


def _pass_dict(record: PassRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "seconds": record.seconds,
        "before": record.before,
        "after": record.after,
        "changed": record.changed,
        "notes": list(record.notes),
    }


def _estimate_dict(found: MemoryEstimate) -> dict[str, Any]:
    return {
        "peak": found.peak,
        "total": found.total,
        "by_kind": dict(found.by_kind),
        "views": len(found.views),
        "nested": found.nested,
        "largest": [
            {"name": b.name, "type": str(b.type), "bytes": b.nbytes, "kind": b.kind}
            for b in found.largest(_LARGEST)
        ],
    }


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
