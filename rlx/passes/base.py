"""What a pass is, and how passes run one after another, are timed, recorded and validated."""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, cast, final

from rlx.dtypes import DType
from rlx.errors import PassError, RlxError, VerifyError
from rlx.ir.graph import Graph, Node
from rlx.ir.op import Op
from rlx.ir.questions import still_asking
from rlx.options.compile import CompileOptions


@final
@dataclass(frozen=True)
class PassRecord:
    """What one pass did.

    Attributes:
        name: the pass with its options.
        seconds: wall time.
        before: nodes before, inner graphs included.
        after: nodes after.
        changed: whether another graph came back.
        notes: what the pass said about its work.
        found: what the pass leaves for the report beside its notes.
    """

    name: str
    seconds: float
    before: int
    after: int
    changed: bool
    notes: tuple[str, ...] = ()
    found: object = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        what = f"{self.before} → {self.after} nodes" if self.changed else "unchanged"
        notes = "".join(f"\n    {note}" for note in self.notes)
        return f"{self.name:<40} {self.seconds * 1e3:8.2f} ms  {what}{notes}"


@final
@dataclass
class PassContext:
    """What a pass may look at besides the graph.

    Attributes:
        options: the compile's options.
        platform: what is compiled for, ``"numpy"`` when passes run by hand.
        lacks: dtypes that the device does not compute in.
        has_kernel: whether a kernel of the device carries a node out; None for no device.
        kernel_ops: whether the device has kernels for an op at all; cheaper to ask.
        notes: lines that the running pass adds for the report.
        found: what the running pass leaves for the report beside its notes.
    """

    options: CompileOptions = field(default_factory=CompileOptions)
    platform: str = "numpy"
    lacks: frozenset[DType] = frozenset()
    has_kernel: Callable[[Node], bool] | None = None
    kernel_ops: Callable[[type[Op]], bool] = lambda op: True
    notes: list[str] = field(default_factory=list[str])
    found: object = None

    def note(self, text: str) -> None:
        """Add a line to the running pass's record."""
        self.notes.append(text)


@dataclass(frozen=True, kw_only=True)
class AbstractPass(abc.ABC):
    """A transformation of graphs; options are fields. Same object back means unchanged.

    Attributes:
        name: what it prints as.
        keeps_boundary: whether inputs, params and outputs stay as callers see them; only passes
            that put known values or a hidden param in say no, and ``validate`` starts anew there.
        keeps_values: whether results stay what they are; a pass that rounds on purpose says no,
            and ``validate`` starts anew there too.
    """

    name: ClassVar[str]
    keeps_boundary: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True

    @abc.abstractmethod
    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """Return the transformed graph, or the same object."""

    def __str__(self) -> str:
        shown = ", ".join(
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != _default(f)
        )
        return f"{self.name}{{{shown}}}" if shown else self.name


def _default(declared: dataclasses.Field[object]) -> object:
    made = declared.default_factory
    return declared.default if made is dataclasses.MISSING else made()


@final
@dataclass(frozen=True, kw_only=True)
class Fixpoint(AbstractPass):
    """Runs passes in turn until none changes the graph, at most ``max_steps`` rounds."""

    name: ClassVar[str] = "fixpoint"
    passes: tuple[AbstractPass, ...]
    max_steps: int = 8

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        for _ in range(self.max_steps):
            before = graph
            for inner in self.passes:
                graph = inner.run(graph, ctx)
            if graph is before:
                break
        return graph

    def __str__(self) -> str:
        return f"fixpoint({', '.join(map(str, self.passes))})"


OnPass: TypeAlias = "Callable[[Graph, AbstractPass, Graph], None]"


@final
@dataclass(frozen=True)
class Pipeline:
    """Passes in order.

    Attributes:
        passes: what runs, first to last.
        verify: run the verifier after every pass.
    """

    passes: tuple[AbstractPass, ...]
    verify: bool = False

    def run(
        self, graph: Graph, ctx: PassContext, on_pass: OnPass | None = None
    ) -> tuple[Graph, list[PassRecord]]:
        """Run every pass; return the graph and a record of each.

        Raises:
            PassError: a pass failed (the cause is chained), or with ``options.validate`` changed
                what the graph computes.
        """
        records: list[PassRecord] = []
        checker = None
        if ctx.options.validate:
            from rlx.passes.validate import Validator

            checker = Validator(graph)
        for current in self.passes:
            before = graph
            ctx.notes, ctx.found = [], None
            started = time.perf_counter()
            try:
                graph = current.run(graph, ctx)
                seconds = time.perf_counter() - started
                changed = graph is not before
                if changed:
                    graph = still_asking(before, graph)
                    if current.keeps_boundary:
                        _check_boundary(before, graph)
                    if self.verify:
                        from rlx.ir.verify import verify

                        verify(graph)
            except RlxError as error:
                raise _failure(current, records, before, error) from error
            records.append(
                PassRecord(
                    str(current),
                    seconds,
                    before.node_count(nested=True),
                    graph.node_count(nested=True),
                    changed,
                    tuple(ctx.notes),
                    ctx.found,
                )
            )
            if changed and checker is not None:
                if current.keeps_boundary and current.keeps_values:
                    checker.check(graph, str(current), [r.name for r in records[:-1]])
                else:
                    checker = type(checker)(graph)
            if on_pass is not None:
                on_pass(before, current, graph)
        return graph, records


def run(graph: Graph, passes: Sequence[AbstractPass], *, quiet: bool = False) -> Graph:
    """Apply passes by hand, and print what each changed.

    Args:
        graph: any graph.
        passes: what to run, in order.
        quiet: print nothing.

    Raises:
        PassError: this is no graph, something in ``passes`` is not a pass, or a pass failed.
    """
    if not isinstance(cast("object", graph), Graph):
        raise PassError(
            f"run: a Graph is required; got {type(graph).__name__}. For a traced function give "
            "traced.graph.",
            pass_name="run",
        )
    if not isinstance(cast("object", passes), Sequence):
        raise PassError(
            f"run: a list of passes is required; got {type(passes).__name__}.",
            pass_name="run",
            earlier=[],
        )
    for position, given in enumerate(cast("Sequence[object]", passes), 1):
        if not isinstance(given, AbstractPass):
            raise PassError(
                f"run: passes are required to be instances of passes; number {position} is "
                f"{given!r}. Pass an object, such as rlx.passes.Canonicalize().",
                pass_name=str(given),
                earlier=[],
            )
    result, records = Pipeline(tuple(passes), verify=True).run(graph, PassContext())
    if not quiet:
        for record in records:
            print(record)
    return result


def _check_boundary(before: Graph, after: Graph) -> None:
    """A pass keeps what callers see: names and types of inputs and params, types of outputs."""
    findings: list[str] = []
    for role in ("inputs", "params", "outputs", "effects"):
        if getattr(before, role) == getattr(after, role):  # the same values
            continue
        wanted = [f"{v.name} {v.type}".strip() for v in getattr(before, role)]
        found = [f"{v.name} {v.type}".strip() for v in getattr(after, role)]
        if role == "outputs":
            wanted, found = ([str(v.type) for v in g.outputs] for g in (before, after))
        if found != wanted:
            findings.append(
                f"{role} are required to stay ({', '.join(wanted)}); got ({', '.join(found)})."
            )
    if findings:
        raise VerifyError(findings)


def _failure(
    current: AbstractPass, records: Sequence[PassRecord], graph: Graph, error: RlxError
) -> PassError:
    earlier = [r.name for r in records]
    failure = PassError(
        f"pass {str(current)!r} (number {len(records) + 1}) failed: {error}",
        pass_name=str(current),
        earlier=earlier,
    )
    if earlier:
        failure.add_note(f"  after: {', '.join(earlier)}")
    failure.add_note(f"  on: {graph!r}")
    return failure
