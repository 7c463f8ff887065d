"""How each binding of symbolic dims is carried out: padded, exactly, or traced anew."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

from rlx import dims
from rlx.dims import DimExpr
from rlx.dims.buckets import Buckets
from rlx.dims.constraints import Constraint, check_constraints
from rlx.errors import DimError
from rlx.ir.graph import Graph
from rlx.ir.questions import check_answers, may_differ
from rlx.signature import Signature
from rlx.template import AbstractTemplate, TracedAt
from rlx.types import Dim, Shape

if TYPE_CHECKING:
    from rlx.options.compile import CompileOptions
    from rlx.passes.base import PassRecord
    from rlx.passes.pad_dims import PaddedGraph, Unsafe

T = TypeVar("T")

_REMEMBERED = 4096
"""Plans that are kept; each is a few names and numbers."""

_COMPARED = 1 << 20
"""Largest captured array that two traces may hold equal copies of, in bytes."""


@final
@dataclass(frozen=True)
class Plan:
    """How one binding is carried out.

    Attributes:
        binding: what is compiled for: the sizes themselves, or rounded up.
        graph: what is compiled, static; None where binding the symbolic graph gives it.
        padded: the padded graph; None for an exact compile.
        signature: of the caller for this binding.
        own: values of params that only this binding has, by name.
        unsafe: why it is not padded although its symbols have buckets, with op and line.
        note: added to the reason of the compile.
        records: of the passes that ran before padding.
    """

    binding: Mapping[str, int]
    signature: Signature
    graph: Graph | None = None
    padded: PaddedGraph | None = None
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unsafe: str = ""
    note: str = ""
    records: Sequence[PassRecord] = ()

    @property
    def key(self) -> Hashable:
        """What programs are kept by."""
        return (*sorted(self.binding.items()), self.padded is not None)


@final
class Planner:
    """Plans bindings of one graph, and remembers them."""

    def __init__(
        self,
        graph: Graph,
        signature: Signature,
        *,
        buckets: Buckets | None = None,
        template: AbstractTemplate | None = None,
        on_unsafe: str = "exact",
        constraints: Sequence[Constraint] = (),
        captured: Mapping[str, Any] | None = None,
        options: CompileOptions | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Plan for a symbolic graph.

        Args:
            graph: the graph; without a meaning of its own where ``template.why`` is given.
            signature: of the caller.
            buckets: what symbols are rounded up to.
            template: traces the function anew.
            on_unsafe: ``"exact"`` compiles what cannot be padded exactly, ``"error"`` refuses it.
            constraints: checked for every new binding.
            captured: values of the graph's params by name, for comparing traces.
            options: of the compile; None takes the defaults.
            seconds: what the graph's trace took.
        """
        self._graph = graph
        self._signature = signature
        self._template = template
        self._on_unsafe = on_unsafe
        promised = (*constraints, *(template.constraints if template else ()))
        self._constraints = tuple(dict.fromkeys(promised))
        self._captured = dict(captured or {})
        self.buckets = buckets
        self._dims = _dims_of(graph)
        # Binding puts sizes into types and attributes, not into what is only alive in memory.
        self._is_opaque = any(
            node.op.op_name == "external"
            and any(v.type.symbols for v in (*node.inputs, *node.results))
            for inner in graph.all_graphs()
            for node in inner.nodes()
        )
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._answers: dict[Hashable, bool] = {}
        self._padded: dict[Hashable, PaddedGraph | Unsafe] = {}
        self._tidy: tuple[Graph, tuple[PassRecord, ...]] | None = None
        self._options = options
        self._spent = {"trace": seconds, "pad": 0.0}
        self._lock = threading.RLock()

    @property
    def has_graph(self) -> bool:
        """Whether the symbolic graph has a meaning: a function traced anew each time has none."""
        return self._template is None or not self._template.why

    @property
    def is_plain(self) -> bool:
        """Whether every binding is compiled by putting its sizes into the graph."""
        alone = self.buckets is None and self._template is None and not self._constraints
        return alone and not self._graph.asked and not self._graph.keyed

    def declared(self) -> list[tuple[str, Shape]]:
        """Name and shape of each input; a function that can be traced anew takes any size."""
        if self._template is None:
            return [(v.name, v.type.shape) for v in self._graph.inputs]
        free = {name: dims.symbol(name, 0) for name in self._graph.symbols}
        return [
            (
                v.name,
                tuple(
                    dims.parse(str(d), free) if isinstance(d, DimExpr) else d for d in v.type.shape
                ),
            )
            for v in self._graph.inputs
        ]

    def plan(self, binding: Mapping[str, int], feeds: Mapping[str, int] | None = None) -> Plan:
        """How a binding is carried out.

        Args:
            binding: the sizes.
            feeds: resident input → number of the output that replaces it.

        Raises:
            CompileError: traced for these sizes, an output no longer has its resident input's
                type.
            DimError: a size above the last bucket; an op that cannot be padded (with
                ``on_unsafe="error"``); sizes that the function cannot have.
        """
        if self.is_plain:
            return Plan(binding, self._signature)
        feeds = feeds or {}
        key = (tuple(sorted(binding.items())), tuple(sorted(feeds.items())))
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
                return found
            made = self._plans[key] = self._made(binding, feeds)
            if len(self._plans) > _REMEMBERED:
                self._plans.popitem(last=False)
            return made

    def spent(self) -> dict[str, float]:
        """Seconds of traces and padding since this was last asked, by phase."""
        with self._lock:
            found = {name: taken for name, taken in self._spent.items() if taken}
            self._spent = dict.fromkeys(self._spent, 0.0)
            return found

    def _timed(self, phase: str, work: Callable[..., T], *given: Any) -> T:
        started = time.perf_counter()
        try:
            return work(*given)
        finally:
            self._spent[phase] += time.perf_counter() - started

    def _made(self, binding: Mapping[str, int], feeds: Mapping[str, int]) -> Plan:
        made = self._planned(binding, feeds)
        if feeds and made.graph is not None and made.padded is None:
            from rlx.kept import check_feeds

            check_feeds(made.graph, feeds, "resident")
        return made

    def _planned(self, binding: Mapping[str, int], feeds: Mapping[str, int]) -> Plan:
        check_constraints(self._constraints, binding)
        rounded = dict(binding) if self.buckets is None else self.buckets.rounded(binding)
        template = self._template
        if template is not None:
            if template.why:
                why = f"the function is traced anew for every size: {template.why}"
                self._refuse(why)
                return replace(
                    self._traced(binding, "traced for these sizes"),
                    unsafe="" if self.buckets is None else why.split("\n")[0],
                )
            question, names = self._question(binding)
            if question and not self._is_answered(binding, names):
                traced = self._timed("trace", template.at, binding)
                if not self._is_same(traced.graph, traced.params, binding):
                    return self._traced(binding, f"another graph at {question}", traced)
        else:
            check_answers(self._graph, binding)
        if self.buckets is None:
            if self._is_opaque and template is not None:
                return self._traced(binding, "an opaque node is traced for these sizes")
            return Plan(binding, self._signature)
        from rlx.passes.pad_dims import Unsafe  # loads op families

        padded = self._timed("pad", self._pad, binding, rounded)
        if not isinstance(padded, Unsafe) and feeds:
            padded = self._fed(padded, feeds)
        if isinstance(padded, Unsafe):
            if self._on_unsafe == "error":
                raise padded.error()
            if self._is_opaque and template is not None:
                return replace(self._traced(binding, ""), unsafe=str(padded))
            return Plan(binding, self._signature, unsafe=str(padded))
        records = () if self._tidy is None else self._tidy[1]
        return Plan(rounded, self._signature, graph=padded.graph, padded=padded, records=records)

    def _fed(self, padded: PaddedGraph, feeds: Mapping[str, int]) -> PaddedGraph | Unsafe:
        """The padded graph, unless an output lies otherwise than the input that it replaces."""
        from rlx.passes.pad_dims import Unsafe

        inputs = {v.name: v for v in self._graph.inputs}
        for name, output in feeds.items():
            type_ = inputs[name].type
            if padded.outputs[output] != tuple((d,) for d in type_.shape):
                return Unsafe(
                    "output",
                    type_.symbols,
                    self._graph.outputs[output].node.location,
                    f"output {output} is padded otherwise than the resident input {name!r}",
                )
        return padded

    def _refuse(self, why: str) -> None:
        if self._on_unsafe == "error" and self.buckets is not None:
            raise DimError(
                f"DimError [unsafe padding]: one graph for all sizes is required; {why}. Leave "
                "buckets out, or write the function without questions about sizes.",
                label="unsafe padding",
            )

    def _traced(
        self, binding: Mapping[str, int], note: str, traced: TracedAt | None = None
    ) -> Plan:
        """The plan of a trace for these sizes, made here where there is none."""
        assert self._template is not None
        if traced is None:
            traced = self._timed("trace", self._template.at, binding)
        own = {
            name: value
            for name, value in traced.params.items()
            if value is not None and self._captured.get(name) is not value
        }
        named = {v.name for v in self._graph.params}
        own = {n: v for n, v in own.items() if n not in named or n.startswith("captured/")}
        unsafe = note if self.buckets is not None else ""
        return Plan(
            binding, traced.signature, graph=traced.graph, own=own, unsafe=unsafe, note=note
        )

    def _question(self, binding: Mapping[str, int]) -> tuple[str, frozenset[str]]:
        """Sizes at which Python code may have taken another branch, in words, and their symbols.

        The text is empty where there is none; without symbols the sizes are outside the bounds
        that were traced.
        """
        first = ""
        names: set[str] = set()
        sizes: dict[int, Dim] = {}
        for dim in self._dims:
            size = _size(dim, binding)
            if size is None:
                return ", ".join(f"{n} = {binding[n]}" for n in dims.symbols(dim)), frozenset()
            text, other = "", sizes.setdefault(size, dim)
            if isinstance(dim, DimExpr) and size in (0, 1):
                text = f"{dim} = {size}"
            elif other is not dim and (isinstance(dim, DimExpr) or isinstance(other, DimExpr)):
                text = f"{other} = {dim}" if isinstance(other, DimExpr) else f"{dim} = {other}"
                names.update(dims.symbols(other))
            if text:
                names.update(dims.symbols(dim))
                first = first or text
        for dim in self._template.asked if self._template else ():
            if not may_differ(dim, binding):
                continue
            names.update(dims.symbols(dim))
            first = first or f"{dim} = 0"
        for dim in self._template.keyed if self._template else ():
            names.update(dims.symbols(dim))
            first = first or f"{dim} as a key"
        return first, frozenset(names)

    def _is_answered(self, binding: Mapping[str, int], names: frozenset[str]) -> bool:
        """Whether the sizes in question give the graph there is, whatever the others are.

        One trace with the others still symbolic answers for all of them.
        """
        template = self._template
        if template is None or not names or len(names) == len(binding):
            return False
        part = {name: size for name, size in binding.items() if name in names}
        key = tuple(sorted(part.items()))
        if key not in self._answers:
            traced = self._timed("trace", template.part, part)
            self._answers[key] = traced is not None and self._is_same(
                traced.graph, traced.params, part
            )
        return self._answers[key]

    def _is_same(self, graph: Graph, params: Mapping[str, Any], binding: Mapping[str, int]) -> bool:
        """Whether a trace for a binding gives what the symbolic graph gives."""
        from rlx.options.compile import CompileOptions
        from rlx.passes.base import PassContext
        from rlx.passes.bind_dims import bind
        from rlx.passes.known_windows import slices_for_known_windows
        from rlx.passes.pipelines import mir_pipeline, symbolic_pipeline

        whole = len(binding) == len(self._graph.symbols)
        if whole and any(_size(v, binding) is None for v in self._dims):
            return False
        if not _same_values(params, self._captured):
            return False
        # Questions about the other symbols are asked again when those have sizes.
        bound = bind(self._graph, binding).with_questions((), ())
        graph = graph.with_questions((), ())
        if bound.fingerprint() == graph.fingerprint():
            return True
        options = CompileOptions.baseline()
        ctx = PassContext(options)
        pair = [symbolic_pipeline(options).run(one, ctx)[0] for one in (bound, graph)]
        if pair[0].fingerprint() == pair[1].fingerprint():
            return True
        whole = mir_pipeline(options)  # many times the work, so that it comes last
        prints: list[str] = []
        for one in pair:
            folded, _ = whole.run(one, ctx)
            plain, _ = whole.run(slices_for_known_windows(folded), ctx)
            prints.append(plain.fingerprint())
        return prints[0] == prints[1]

    def _shared(self) -> Graph:
        """The graph after the passes that need no sizes; made once for all padded sizes."""
        if self._tidy is None:
            from rlx.options.compile import CompileOptions
            from rlx.passes.base import PassContext
            from rlx.passes.pipelines import padding_pipeline

            options = (self._options or CompileOptions.baseline()).replace(validate=False)
            made, records = padding_pipeline(options).run(self._graph, PassContext(options))
            self._tidy = made, tuple(r for r in records if r.changed or r.notes)
        return self._tidy[0]

    def _pad(self, binding: Mapping[str, int], rounded: Mapping[str, int]) -> PaddedGraph | Unsafe:
        from rlx.passes.bind_dims import bind
        from rlx.passes.pad_dims import pad_dims

        assert self.buckets is not None
        key = tuple(sorted(rounded.items()))
        found = self._padded.get(key)
        if found is None:
            laddered = self.buckets.symbols
            exact = {n: s for n, s in binding.items() if n not in laddered}
            graph = bind(self._shared(), exact) if exact else self._shared()
            found = self._padded[key] = pad_dims(
                graph, {n: s for n, s in rounded.items() if n in laddered}
            )
        return found


def _dims_of(graph: Graph) -> list[Dim]:
    """Every symbolic dim of the graph's types, and every dim of its inputs, each once."""
    found: dict[Dim, None] = {}
    for value in (*graph.inputs, *graph.params):
        found.update(dict.fromkeys(value.type.shape))
    for node in graph.nodes():
        for type_ in node.types:
            if not type_.is_static:
                found.update(dict.fromkeys(d for d in type_.shape if isinstance(d, DimExpr)))
    return list(found)


def _size(dim: Dim, binding: Mapping[str, int]) -> int | None:
    """The size of a dim; None where the binding is outside the bounds that it was traced with."""
    if not isinstance(dim, DimExpr):
        return dim
    for name, symbol in dim.polynomial.symbols.items():
        size = binding[name]
        low, high = symbol.lower, symbol.upper
        if (low is not None and size < low) or (high is not None and size > high):
            return None
    return dims.evaluate(dim, binding)


def _same_values(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if set(mine) != set(other):
        return False
    for name, value in mine.items():
        known = other[name]
        if value is known or value is None or known is None:
            continue
        if not name.startswith("captured/"):
            continue  # the caller's own params: bound once for all sizes
        if value.shape != known.shape or value.dtype != known.dtype or value.nbytes > _COMPARED:
            return False
        if not np.array_equal(np.asarray(value), np.asarray(known)):
            return False
    return True
