"""The shards of a ``shard_map`` in NumPy: one thread for each, which meet at collectives."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from rlx.errors import RunError
from rlx.ir.attributes import Array
from rlx.sharding import MeshAxes, axes_size

Coordinates: TypeAlias = "Mapping[str, int]"
Group: TypeAlias = "tuple[tuple[str, ...], tuple[tuple[str, int], ...]]"
"""Axes along which shards meet, and where they are on the others."""


@final
@dataclass(slots=True)
class _Meeting:
    """One exchange of one group.

    Attributes:
        brought: position in the group → what that shard brought.
        left: how many have taken what was brought.
    """

    brought: dict[int, Array] = field(default_factory=dict[int, Array])
    left: int = 0


@final
class _Venue:
    """Where the shards of one computation meet.

    Attributes:
        alone: errors of shards that waited in vain.
    """

    def __init__(self) -> None:
        self.alone: list[BaseException] = []
        self._changed = threading.Condition()
        self._meetings: dict[tuple[Group, int], _Meeting] = {}
        self._gone: list[Coordinates] = []

    def meet(self, group: Group, turn: int, position: int, count: int, value: Array) -> list[Array]:
        """Bring a value; return everybody's, by position, when all have come."""
        with self._changed:
            key = (group, turn)
            meeting = self._meetings.setdefault(key, _Meeting())
            meeting.brought[position] = value
            self._changed.notify_all()
            while len(meeting.brought) < count:
                if any(_belongs(shard, group) for shard in self._gone):
                    alone = RunError(
                        "shard_map: every shard is required to take part in each collective over "
                        f"{', '.join(map(repr, group[0]))}; one ended without it. Let no shard "
                        "skip a collective in a branch or a loop."
                    )
                    self.alone.append(alone)
                    raise alone
                self._changed.wait()
            meeting.left += 1
            if meeting.left == count:
                del self._meetings[key]
            return [meeting.brought[i] for i in range(count)]

    def leave(self, shard: Coordinates) -> None:
        """Say that a shard comes to no further meeting."""
        with self._changed:
            self._gone.append(shard)
            self._changed.notify_all()


def _belongs(shard: Coordinates, group: Group) -> bool:
    return all(shard.get(name, at) == at for name, at in group[1])


@final
@dataclass(slots=True)
class _Shard:
    """Where a thread stands.

    Attributes:
        at: its coordinate on each axis that is manual.
        venue: where it meets others.
        turns: how often it has met each group.
    """

    at: dict[str, int]
    venue: _Venue
    turns: dict[Group, int] = field(default_factory=dict[Group, int])


_current: contextvars.ContextVar[_Shard | None] = contextvars.ContextVar("shard", default=None)


def run_shards(
    axes: MeshAxes, compute: Callable[[Coordinates], Sequence[Array]]
) -> list[tuple[dict[str, int], Sequence[Array]]]:
    """Compute every shard, all at once, so that they can exchange values.

    Args:
        axes: the axes over which there are shards.
        compute: coordinates → the results of that shard.

    Returns:
        Coordinates and results of each, the last axis fastest.

    Raises:
        RunError: a shard waits for one that has ended.
    """
    outer = _current.get()
    venue = _Venue() if outer is None else outer.venue
    base = {} if outer is None else outer.at
    names = [name for name, _ in axes]
    places = [
        dict(zip(names, at, strict=True))
        for at in itertools.product(*(range(size) for _, size in axes))
    ]

    def work(at: dict[str, int]) -> Sequence[Array]:
        shard = _Shard({**base, **at}, venue)
        _current.set(shard)
        try:
            return compute(at)
        finally:
            venue.leave(shard.at)

    with ThreadPoolExecutor(max(1, len(places))) as pool:
        running = [pool.submit(contextvars.copy_context().run, work, at) for at in places]
    errors = [error for error in (future.exception() for future in running) if error is not None]
    if errors:
        # A shard that waits in vain says so; what ended the other one says more.
        raise next((e for e in errors if e not in venue.alone), errors[0])
    return [(at, future.result()) for at, future in zip(places, running, strict=True)]


def exchange(
    op_name: str, mesh: MeshAxes, axes: Sequence[str], value: Array
) -> tuple[list[Array], int]:
    """What the shards of the group along some axes bring, in order, and the own position.

    Args:
        op_name: what exchanges, for messages.
        mesh: the mesh's axes.
        axes: those along which shards exchange; the first is the slowest.
        value: what this shard brings.

    Raises:
        RunError: no ``shard_map`` over these axes is being computed.
    """
    sizes = dict(mesh)
    count = axes_size((name, sizes[name]) for name in axes)
    shard = _current.get()
    if shard is None or any(name not in shard.at for name in axes):
        position = index_along(op_name, mesh, axes)
        return [value], position
    others = tuple(sorted((name, at) for name, at in shard.at.items() if name not in axes))
    group: Group = (tuple(axes), others)
    turn = shard.turns[group] = shard.turns.get(group, 0) + 1
    position = index_along(op_name, mesh, axes)
    return shard.venue.meet(group, turn, position, count, value), position


def index_along(op_name: str, mesh: MeshAxes, axes: Sequence[str]) -> int:
    """This shard's position in its group along some axes; 0 where there is one shard alone.

    Raises:
        RunError: no ``shard_map`` over these axes is being computed.
    """
    sizes = dict(mesh)
    shard = _current.get()
    at: Mapping[str, Any] = {} if shard is None else shard.at
    position = 0
    for name in axes:
        if name not in at and sizes[name] > 1:
            raise RunError(
                f"{op_name}: a place inside of a shard_map over {name!r} is required, which has "
                f"{sizes[name]} shards. Put it into the body of a shard_map."
            )
        position = position * sizes[name] + at.get(name, 0)
    return position
