"""Specialisations: one compiled program per binding of the symbolic dims, least recent dropped."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from rlx.backend import AbstractExecutable
from rlx.dims.buckets import proposal
from rlx.errors import CompileStormWarning
from rlx.report import CompileReport
from rlx.signature import Signature

if TYPE_CHECKING:
    from rlx.padded_call import PaddedCall
    from rlx.specializing import Plan

STORM = 12
"""Programs after which a cache that is rarely hit is worth a warning."""

Build = Callable[..., "Specialization"]


@final
@dataclass
class Specialization:
    """One compiled program.

    Attributes:
        binding: symbol → size; empty for a static graph.
        reason: why it was compiled, in words.
        seconds: wall time by phase: ``trace`` and ``pad`` (those since the compile before it),
            ``passes``, ``legalize``, ``lower``, ``xla`` and ``total``.
        executable: the program.
        call: function of the caller's arguments.
        report: what was decided.
        params: names of the params that the program takes, hidden ones included.
        refresh: runs the stage before the program if it is stale; None where there is none.
        hits: calls that used it after the one that compiled it.
        number: 1 for the first program that was compiled, 2 for the second …
        padded: runs the program on smaller sizes; None where it takes exactly its binding.
        signature: of the caller, for this binding.
        unsafe: why it was compiled exactly although its symbols have buckets: op, line, reason.
        own: values of params that only this program has.
        elements: elements of the inputs of the calls of a padded program: actual ones, and all.
        started: when its compile began, in seconds of ``time.perf_counter``.
    """

    binding: Mapping[str, int]
    reason: str
    seconds: Mapping[str, float]
    executable: AbstractExecutable = field(repr=False)
    call: Callable[..., Any] = field(repr=False)
    report: CompileReport = field(repr=False)
    params: frozenset[str] = field(default=frozenset(), repr=False)
    refresh: Callable[[], None] | None = field(default=None, repr=False)
    hits: int = 0
    number: int = 0
    padded: PaddedCall | None = field(default=None, repr=False)
    signature: Signature | None = field(default=None, repr=False)
    unsafe: str = ""
    own: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    elements: tuple[int, int] = (0, 0)
    started: float = 0.0

    @property
    def is_padded(self) -> bool:
        """Whether the program takes every size up to its binding."""
        return self.padded is not None

    @property
    def wasted(self) -> float:
        """Which part of the inputs' elements was padding, over all calls; 0 for an exact one."""
        actual, whole = self.elements
        return 1 - actual / whole if whole else 0.0

    def run(self, arrays: Sequence[Any], binding: Mapping[str, int]) -> list[Any]:
        """Run with one value per input; ``binding`` holds the actual sizes."""
        if self.padded is None:
            return self.executable.fast_call(*arrays)
        actual, whole = self.padded.counts(binding)
        self.elements = self.elements[0] + actual, self.elements[1] + whole
        return self.padded(arrays, binding)

    def row(self) -> str:
        """One line of the ledger."""
        sizes = ", ".join(f"{n} = {s}" for n, s in sorted(self.binding.items())) or "static"
        kind = "up to" if self.is_padded else "exact"
        phases = "  ".join(
            f"{name} {self.seconds[name] * 1e3:.1f} ms"
            for name in ("trace", "pad", "passes", "xla", "total")
            if name in self.seconds
        )
        waste = f"  {self.wasted:.0%} padding" if self.is_padded else ""
        unsafe = f"\n      not padded: {self.unsafe}" if self.unsafe else ""
        return (
            f"{self.number:>4}  {kind} {sizes:<20} {self.hits:>6} hits{waste}  "
            f"{phases}  {self.reason}{unsafe}"
        )


@final
class Specializations(list[Specialization]):
    """The records in the order of their compiles, with counts; printed as a ledger.

    Attributes:
        hits: calls that found their program.
        misses: calls that compiled one.
        evictions: programs dropped because the cache was full.
        evicted: the bindings of those, the last 32.
    """

    def __init__(
        self,
        records: list[Specialization],
        hits: int,
        misses: int,
        evictions: int,
        evicted: Sequence[Mapping[str, int]] = (),
    ):
        """Hold a snapshot."""
        super().__init__(records)
        self.hits = hits
        self.misses = misses
        self.evictions = evictions
        self.evicted = list(evicted)

    @property
    def exact(self) -> list[Specialization]:
        """Those that were compiled exactly although their symbols have buckets."""
        return [record for record in self if record.unsafe]

    def __str__(self) -> str:
        dropped = "; ".join(
            ", ".join(f"{n} = {s}" for n, s in sorted(sizes.items())) for sizes in self.evicted
        )
        evictions = _count(self.evictions, "eviction") + (f" ({dropped})" if dropped else "")
        head = f"{_count(self.misses, 'compile')}, {_count(self.hits, 'hit')}, {evictions}"
        return "\n".join([head, *(record.row() for record in self)])

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@final
class SpecializationCache:
    """Programs by binding; at most ``capacity``, the least recently used is dropped."""

    def __init__(
        self,
        build: Build,
        capacity: int,
        *,
        publish: Callable[[Specialization], None],
        name: str = "",
        axes: Mapping[str, str] | None = None,
    ) -> None:
        """Compile with ``build(binding, reason)`` on a miss; ``publish`` what joins the cache.

        Args:
            build: compiles; gets the plan as a third argument where there is one.
            capacity: how many programs are kept.
            publish: called with each new program.
            name: of the graph, for warnings.
            axes: symbol → where callers see it, as ``x axis 0``.
        """
        self._build = build
        self._publish = publish
        self._capacity = capacity
        self._name = name
        self._axes = dict(axes or {})
        self._programs: OrderedDict[Hashable, Specialization] = OrderedDict()
        self._building: dict[Hashable, threading.Lock] = {}
        self._last: Mapping[str, int] | None = None
        self._why = ""
        self._lock = threading.RLock()
        self._evicted: list[Mapping[str, int]] = []
        self._sizes: dict[str, set[int]] = {}
        self._warned = False
        self.hits = self.misses = self.evictions = 0

    def get(self, binding: Mapping[str, int], plan: Plan | None = None) -> Specialization:
        """Return the program for a binding, compiled when it is not there.

        A compile holds up only the callers of the same binding.

        Args:
            binding: the sizes of the call.
            plan: how it is carried out; None compiles the sizes as they are.
        """
        key: Hashable = tuple(sorted(binding.items())) if plan is None else plan.key
        with self._lock:
            found = self._hit(key)
            if found is not None:
                return found
            building = self._building.setdefault(key, threading.Lock())
        with building:
            with self._lock:
                found = self._hit(key)  # another caller compiled it meanwhile
                if found is not None:
                    return found
                reason = self._reason(binding)
                build = self._build
            try:
                made = build(binding, reason) if plan is None else build(binding, reason, plan)
                with self._lock:
                    self._publish(made)
                    if build is self._build:  # else: meanwhile all programs were dropped
                        self._keep(key, binding, made)
            finally:
                with self._lock:
                    self._building.pop(key, None)
            self._warn()
            return made

    def holds(self, key: Hashable) -> bool:
        """Whether a program is there; counts as no call."""
        with self._lock:
            return key in self._programs

    def _hit(self, key: Hashable) -> Specialization | None:
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
            self.hits += 1
            found.hits += 1
        return found

    def _keep(self, key: Hashable, binding: Mapping[str, int], made: Specialization) -> None:
        self.misses += 1
        made.number = self.misses
        self._why = ""
        self._last = dict(binding)
        for name, size in binding.items():
            self._sizes.setdefault(name, set()).add(size)
        # Two callers may build one: the first one's program was dropped before the second looked.
        dropped = self._programs.pop(key, None)
        self._programs[key] = made
        if len(self._programs) > self._capacity:
            _, dropped = self._programs.popitem(last=False)
        if dropped is not None:
            self.evictions += 1
            self._evicted = [*self._evicted[-31:], dict(dropped.binding)]

    def _warn(self) -> None:
        """Warn once where most calls compile."""
        with self._lock:
            if self._warned or self.misses < STORM or self.hits >= self.misses:
                return
            self._warned = True
            varying = max(self._sizes, key=lambda n: len(self._sizes[n]), default="")
            sizes = self._sizes.get(varying, set[int]())
            text = (
                f"compile of {self._name!r}: few compiles for many calls are expected; "
                f"{self.misses} programs were compiled and {self.hits} calls found theirs. "
                f"{varying}{self._place(varying)} had {len(sizes)} sizes, {min(sizes)} to "
                f"{max(sizes)}. Round it up with buckets={{{varying!r}: {proposal(sizes)}}}, or "
                "raise specialization_cache_size where sizes come back."
            )
        warnings.warn(text, CompileStormWarning, stacklevel=2)

    def _place(self, name: str) -> str:
        return f" ({self._axes[name]})" if name in self._axes else ""

    def rebuild(self, build: Build, why: str) -> None:
        """Drop every program; the next one is compiled by ``build``, for the reason ``why``."""
        with self._lock:
            self._build, self._why = build, why
            self._programs.clear()

    def adopt(self, programs: Mapping[Hashable, Specialization]) -> None:
        """Take programs that another cache compiled; they count neither as hits nor misses."""
        with self._lock:
            for key, program in programs.items():
                self._publish(program)
                self._programs[key] = program
                self._last = dict(program.binding)

    def kept(self) -> dict[Hashable, Specialization]:
        """Every program that is kept with its key, least recently used first."""
        with self._lock:
            return dict(self._programs)

    def programs(self) -> list[Specialization]:
        """Every program that is kept, least recently used first."""
        with self._lock:
            return list(self._programs.values())

    def snapshot(self) -> Specializations:
        """The records and counts of now."""
        with self._lock:
            records = sorted(self._programs.values(), key=lambda program: program.number)
            return Specializations(records, self.hits, self.misses, self.evictions, self._evicted)

    def latest(self) -> Specialization | None:
        """The program that was used last."""
        with self._lock:
            return next(reversed(self._programs.values()), None)

    def _reason(self, binding: Mapping[str, int]) -> str:
        if self._why:
            return self._why
        if self._last is None:
            return "first call" if binding else "static graph"
        changes = [
            f"{self._axes.get(name, name)}: {self._last[name]} → {size}"
            for name, size in sorted(binding.items())
            if self._last.get(name) != size
        ]
        return ", ".join(changes) or "dropped earlier"
