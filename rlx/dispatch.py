"""How every node of a graph is carried out on a device, and why: known before a compile and after.

Four paths: *native* is a kernel of our own, *common* is the backend's rule for the op, *rewritten*
is the op's decomposition into others, *unsupported* is none of these.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from rlx.ir.plan import Plan, Refusal
from rlx.options.compile import CompileOptions
from rlx.options.dispatch import KernelDispatch, SupportedOps
from rlx.passes.legalize import Legalization, Unsupported


@final
class DispatchPath(enum.Enum):
    """Where the work of a node goes."""

    NATIVE = "native"
    COMMON = "common"
    REWRITTEN = "rewritten"
    UNSUPPORTED = "unsupported"


_PATHS = {
    "kernel": DispatchPath.NATIVE,
    "rule": DispatchPath.COMMON,
    "decomposition": DispatchPath.REWRITTEN,
}


@final
@dataclass(frozen=True)
class Choice:
    """How the nodes of one op are carried out.

    Attributes:
        op: the op's name.
        kind: ``kernel``, ``rule``, ``decomposition`` or ``none``.
        implementation: the kernel's name, or the op's; empty where there is none.
        count: how many nodes.
        refused: what was not taken, with reasons, each reason once.
    """

    op: str
    kind: str
    implementation: str
    count: int
    refused: tuple[str, ...] = ()

    @property
    def path(self) -> DispatchPath:
        """Where the work goes."""
        return _PATHS.get(self.kind, DispatchPath.UNSUPPORTED)

    def to_dict(self) -> dict[str, Any]:
        """The fields and the path, for JSON."""
        return {
            "op": self.op,
            "path": self.path.value,
            "kind": self.kind,
            "implementation": self.implementation,
            "count": self.count,
            "refused": list(self.refused),
        }


@final
@dataclass(frozen=True, kw_only=True)
class KernelDispatchReport:
    """The dispatch of one graph on one device.

    Attributes:
        backend_name: the device.
        policy: the dispatch that was asked for.
        supported_claim_count: how many op names ``supported_ops`` holds; None where it restricts
            nothing, or is a predicate.
        summaries: one line for each op and way, most frequent first.
        still_unsupported: ``(node, op name)`` of what nothing carries out; the node with its line.
    """

    backend_name: str
    policy: KernelDispatch
    supported_claim_count: int | None
    summaries: tuple[Choice, ...]
    still_unsupported: tuple[tuple[str, str], ...] = ()

    @property
    def compile_ready(self) -> bool:
        """Whether everything can be carried out."""
        return not self.still_unsupported

    def of(self, path: DispatchPath) -> list[Choice]:
        """The lines of one path."""
        return [c for c in self.summaries if c.path is path]

    def count(self, path: DispatchPath) -> int:
        """How many nodes take a path."""
        return sum(c.count for c in self.of(path))

    @property
    def common_lowered_kinds(self) -> list[str]:
        """Names of the ops that were rewritten into others, sorted."""
        return sorted({c.op for c in self.of(DispatchPath.REWRITTEN)})

    def __str__(self) -> str:
        return format_dispatch_report(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "backend_name": self.backend_name,
            "policy": self.policy.policy.value,
            "supported_claim_count": self.supported_claim_count,
            "counts": {path.value: self.count(path) for path in DispatchPath},
            "summaries": [c.to_dict() for c in self.summaries],
            "common_lowered_kinds": self.common_lowered_kinds,
            "still_unsupported": [
                {"node": node, "op": op_name} for node, op_name in self.still_unsupported
            ],
            "compile_ready": self.compile_ready,
        }


def format_dispatch_report(report: KernelDispatchReport) -> str:
    """The report as text: totals, then a line for each op and way, with every refusal."""
    counts = ", ".join(f"{report.count(path)} {path.value}" for path in DispatchPath)
    ready = "ready to compile" if report.compile_ready else "not ready to compile"
    lines = [f"dispatch on {report.backend_name} ({policy_text(report.policy)}): {counts}; {ready}"]
    if report.supported_claim_count is not None:
        lines.append(f"  supported_ops: {report.supported_claim_count} ops")
    lines += [f"  {line}" for line in choice_lines(report.summaries)]
    lines += [f"  unsupported: {node}" for node, _ in report.still_unsupported]
    return "\n".join(lines)


def policy_text(dispatch: KernelDispatch) -> str:
    """The policy and what differs from it, in words: ``prefer_native; common: softmax``."""
    parts = [dispatch.policy.value]
    for what, names in (
        ("native", dispatch.native_ops),
        ("common", dispatch.common_ops),
        ("forced", dispatch.forced),
        ("forbidden", dispatch.forbidden),
    ):
        if names:
            parts.append(f"{what}: {', '.join(sorted(names))}")
    return "; ".join(parts)


def choice_lines(choices: tuple[Choice, ...]) -> Iterator[str]:
    """Lines of text for choices: count, op, path and implementation, then refusals."""
    for choice in choices:
        made = f"{choice.kind} {choice.implementation}" if choice.implementation else ""
        line = f"{choice.count:>6} × {choice.op:<24} {choice.path.value:<11} {made}"
        yield line.rstrip()
        for reason in choice.refused:
            yield f"{'':>9}refused {reason}"


def report_of(
    legal: Legalization, backend_name: str, options: CompileOptions
) -> KernelDispatchReport:
    """The dispatch report of what ``legalize`` decided."""
    return KernelDispatchReport(
        backend_name=backend_name,
        policy=options.kernel_dispatch,
        supported_claim_count=_claim_count(options.supported_ops),
        summaries=_summaries(legal.plan, legal.unsupported),
        still_unsupported=tuple(
            (f"{u.node.op.op_name}{u.where}", u.node.op.op_name) for u in legal.unsupported
        ),
    )


def _claim_count(supported: SupportedOps | None) -> int | None:
    if supported is None or callable(supported):
        return None
    return len(supported) or None


def _summaries(plan: Plan, unsupported: tuple[Unsupported, ...]) -> tuple[Choice, ...]:
    counts: Counter[tuple[str, str, str]] = Counter()
    reasons: dict[tuple[str, str, str], dict[str, None]] = {}

    def add(key: tuple[str, str, str], count: int, refused: tuple[Refusal, ...]) -> None:
        counts[key] += count
        reasons.setdefault(key, {}).update(dict.fromkeys(map(str, refused)))

    for node, made in plan.implementations.items():
        add((node.op.op_name, made.kind, made.name), 1, made.refused)
    for name, count in plan.decomposed.items():
        add((name, "decomposition", name), count, plan.decomposed_refusals.get(name, ()))
    for missing in unsupported:
        add((missing.node.op.op_name, "none", ""), 1, missing.refused)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Choice(op, kind, name, count, tuple(reasons[op, kind, name]))
        for (op, kind, name), count in ordered
    )
