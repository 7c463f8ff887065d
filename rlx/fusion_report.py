"""What fusion did with a graph, and what it missed and why."""

from __future__ import annotations

import enum
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from rlx.errors import CompileError
from rlx.options.compile import CompileOptions
from rlx.passes.base import PassRecord

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

FUSED = (
    "fused_matmul_bias_act", "fused_matmul_residual", "fused_conv_bias_act", "fused_swiglu",
    "fused_residual_ln", "fused_residual_rms_norm", "fused_attention_block",
    "fused_transformer_layer", "elementwise_region",
)  # fmt: skip
"""The ops that a report counts, by name."""


@final
class MissKind(enum.Enum):
    """Why a pattern was not fused: the text of the reason and what to do about it."""

    MULTI_CONSUMER = (
        "more than one node reads the value, or it is an output",
        "compute it twice, or do not return it",
    )
    NON_ADD_BIAS_CONSUMER = (
        "what reads the product is no bias add",
        "add the bias directly after the product",
    )
    BIAS_RANK_TOO_HIGH = ("the bias has rank {rank}", "use a bias of rank 1")
    UNSUPPORTED_EPILOGUE_ACTIVATION = (
        "the activation {activation} is no epilogue",
        "use gelu, silu or relu, or leave it apart",
    )
    SHARED_MATMUL_COUNT = (
        "{count} products read one input",
        "join their weights, or bind them and compile with cache_param_invariant=True",
    )
    SWIGLU_GATE_BEFORE_UP = ("the gate stands before up", "put up first, or fuse for a target")
    SWIGLU_NOT_SHARED_INPUT = (
        "gate and up are not halves of one value",
        "project both with one product",
    )
    NOT_FUSED = ("it was not fused", "name a fusion_target that has the fused op")


@final
@dataclass(frozen=True)
class MissReason:
    """A reason with its facts.

    Attributes:
        kind: which reason.
        facts: ``rank``, ``activation`` or ``count``, where the kind has one.
    """

    kind: MissKind
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def hint(self) -> str:
        """What to do about it, in one line."""
        return self.kind.value[1]

    def __str__(self) -> str:
        return self.kind.value[0].format(**self.facts)


@final
@dataclass(frozen=True)
class MissedFusion:
    """A pattern that is still there.

    Attributes:
        pattern: ``matmul_bias_act``, ``swiglu`` or ``shared_input_matmul``.
        node: the op and the user's line.
        reason: why it was not fused.
        context: the types of what it reads.
    """

    pattern: str
    node: str
    reason: MissReason
    context: str = ""

    @property
    def hint(self) -> str:
        """What to do about it, in one line."""
        return self.reason.hint

    def __str__(self) -> str:
        context = f" ({self.context})" if self.context else ""
        return f"{self.pattern} @ {self.node}{context} — {self.reason} → {self.hint}"


@final
@dataclass(frozen=True)
class FusionReport:
    """What fusion did.

    Attributes:
        nodes: how many nodes there were before and after, bodies included.
        matmuls: how many products on their own.
        counts: how often each fused op stands in the graph now, by op name.
        missed: patterns that are still there.
    """

    nodes: tuple[int, int]
    matmuls: tuple[int, int]
    counts: Mapping[str, int]
    missed: tuple[MissedFusion, ...]

    @staticmethod
    def analyze(before: Graph, after: Graph) -> FusionReport:
        """Compare a graph with what fusion made of it."""
        from rlx.passes.fuse.misses import find_missed

        kinds = _kinds(after)
        return FusionReport(
            nodes=(before.node_count(nested=True), after.node_count(nested=True)),
            matmuls=(_matmuls(_kinds(before)), _matmuls(kinds)),
            counts={name: kinds[name] for name in FUSED},
            missed=tuple(find_missed(after)),
        )

    @staticmethod
    def scan(after: Graph) -> FusionReport:
        """Look at a graph alone: what is fused in it, and what could be."""
        return FusionReport.analyze(after, after)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was missed."""
        return not self.missed

    def summary_line(self) -> str:
        """The counts on one line."""
        lost = sum(m.pattern == "matmul_bias_act" for m in self.missed)
        return (
            f"nodes={self.nodes[0]}→{self.nodes[1]} matmul={self.matmuls[0]}→{self.matmuls[1]} "
            f"fused_mm_act={self.counts['fused_matmul_bias_act']} "
            f"fused_swiglu={self.counts['fused_swiglu']} "
            f"elementwise_region={self.counts['elementwise_region']} missed_mm_act={lost}"
        )

    def lines(self) -> list[str]:
        """The report, line by line."""
        made = [f"{name} × {count}" for name, count in self.counts.items() if count]
        found = [self.summary_line(), *(f"  {line}" for line in made)]
        if self.missed:
            found.append("  missed patterns:")
            found += [f"    {miss}" for miss in self.missed]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, texts and numbers."""
        return {
            "nodes": list(self.nodes),
            "matmuls": list(self.matmuls),
            "counts": dict(self.counts),
            "missed": [
                {
                    "pattern": m.pattern,
                    "node": m.node,
                    "reason": str(m.reason),
                    "context": m.context,
                    "hint": m.hint,
                }
                for m in self.missed
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())


@final
class Fusion:
    """What a compile keeps of fusion: the graphs, which are looked at when a report is read.

    Attributes:
        asked: whether a target was named, so that the page of the compile shows the report.
    """

    def __init__(self, before: Graph, after: Graph, *, asked: bool) -> None:
        """Hold both graphs."""
        self._before = before
        self._after = after
        self.asked = asked or before is not after

    @functools.cached_property
    def report(self) -> FusionReport:
        """The comparison."""
        return FusionReport.analyze(self._before, self._after)


def fusion_of(records: Sequence[PassRecord]) -> FusionReport | None:
    """The report that the passes of a compile left, if fusion was among them."""
    found = _left(records)
    return None if found is None else found.report


def fusion_lines(records: Sequence[PassRecord]) -> list[str]:
    """The lines for a compile's page; none where nothing was fused and nobody asked for it."""
    found = _left(records)
    return found.report.lines() if found is not None and found.asked else []


def check_fusion(records: Sequence[PassRecord], options: CompileOptions) -> None:
    """Print the report, and hold the graph to it, as the options say.

    Raises:
        CompileError: ``assert_fusion_clean`` is set and patterns were missed.
    """
    if not (options.fusion_report or options.assert_fusion_clean):
        return
    report = fusion_of(records)
    if report is None:
        return
    if options.fusion_report:
        print(report)
    if options.assert_fusion_clean and not report.is_clean:
        raise CompileError(
            f"fusion contract violated: {len(report.missed)} missed patterns\n{report}"
        )


def _left(records: Sequence[PassRecord]) -> Fusion | None:
    return next((r.found for r in records if isinstance(r.found, Fusion)), None)


def _kinds(graph: Graph) -> Counter[str]:
    return Counter(n.op.op_name for g in graph.all_graphs() for n in g.nodes())


def _matmuls(kinds: Counter[str]) -> int:
    return kinds["matmul"] + kinds["dot_general"]
