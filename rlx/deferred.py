"""Specialisations: one compiled program per binding of the symbolic dims, least recent dropped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from rlx.backend import AbstractExecutable
from rlx.report import CompileReport

Key = tuple[tuple[str, int], ...]


@final
@dataclass
class Specialization:
    """One compiled program.

    Attributes:
        binding: symbol → size; empty for a static graph.
        reason: why it was compiled, in words.
        seconds: wall time by phase.
        executable: the program.
        call: function of the caller's arguments.
        report: what was decided.
        params: names of the params that the program takes, hidden ones included.
        refresh: runs the stage before the program if it is stale; None where there is none.
        hits: calls that used it after the one that compiled it.
        number: 1 for the first program that was compiled, 2 for the second …
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


@final
class Specializations(list[Specialization]):
    """The records in the order of their compiles, with counts.

    Attributes:
        hits: calls that found their program.
        misses: calls that compiled one.
        evictions: programs dropped because the cache was full.
    """

    def __init__(self, records: list[Specialization], hits: int, misses: int, evictions: int):
        """Hold a snapshot."""
        super().__init__(records)
        self.hits = hits
        self.misses = misses
        self.evictions = evictions


@final
class SpecializationCache:
    """Programs by binding; at most ``capacity``, the least recently used is dropped."""

    def __init__(
        self,
        build: Callable[[Mapping[str, int], str], Specialization],
        capacity: int,
        *,
        publish: Callable[[Specialization], None],
    ) -> None:
        """Compile with ``build(binding, reason)`` on a miss; ``publish`` what joins the cache."""
        self._build = build
        self._publish = publish
        self._capacity = capacity
        self._programs: OrderedDict[Key, Specialization] = OrderedDict()
        self._building: dict[Key, threading.Lock] = {}
        self._last: Mapping[str, int] | None = None
        self._why = ""
        self._lock = threading.RLock()
        self.hits = self.misses = self.evictions = 0

    def get(self, binding: Mapping[str, int]) -> Specialization:
        """Return the program for a binding, compiled when it is not there.

        A compile holds up only the callers of the same binding.
        """
        key = tuple(sorted(binding.items()))
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
                made = build(binding, reason)
                with self._lock:
                    self._publish(made)
                    if build is self._build:  # else: meanwhile all programs were dropped
                        self._keep(key, binding, made)
            finally:
                with self._lock:
                    self._building.pop(key, None)
            return made

    def _hit(self, key: Key) -> Specialization | None:
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
            self.hits += 1
            found.hits += 1
        return found

    def _keep(self, key: Key, binding: Mapping[str, int], made: Specialization) -> None:
        self.misses += 1
        made.number = self.misses
        self._why = ""
        self._last = dict(binding)
        self._programs[key] = made
        if len(self._programs) > self._capacity:
            self._programs.popitem(last=False)
            self.evictions += 1

    def rebuild(self, build: Callable[[Mapping[str, int], str], Specialization], why: str) -> None:
        """Drop every program; the next one is compiled by ``build``, for the reason ``why``."""
        with self._lock:
            self._build, self._why = build, why
            self._programs.clear()

    def adopt(self, programs: list[Specialization]) -> None:
        """Take programs that another cache compiled; they count neither as hits nor misses."""
        with self._lock:
            for program in programs:
                self._publish(program)
                self._programs[tuple(sorted(program.binding.items()))] = program
                self._last = dict(program.binding)

    def programs(self) -> list[Specialization]:
        """Every program that is kept, least recently used first."""
        with self._lock:
            return list(self._programs.values())

    def snapshot(self) -> Specializations:
        """The records and counts of now."""
        with self._lock:
            records = sorted(self._programs.values(), key=lambda program: program.number)
            return Specializations(records, self.hits, self.misses, self.evictions)

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
            f"{name}: {self._last[name]} → {size}"
            for name, size in sorted(binding.items())
            if self._last.get(name) != size
        ]
        return ", ".join(changes) or "dropped earlier"
