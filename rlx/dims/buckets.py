"""Sizes that symbols are rounded up to, so that few programs serve many sizes."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, final

from rlx.errors import DimError, SizesError, did_you_mean

LEARNING = 16
"""Sizes that ``"auto"`` sees before it chooses steps by what it saw."""


@final
class Buckets:
    """Ladders of sizes by symbol.

    A ladder is a list of sizes (the last is the greatest that is taken), ``"pow2"`` (powers of
    two) or ``"auto"``: the smallest size in use that wastes at most half, else a power of two;
    after 16 calls a new step stands below which a quarter, a half … of the calls were.
    """

    def __init__(self, ladders: Mapping[str, Sequence[int] | str]) -> None:
        """Hold one ladder for each symbol that is rounded up."""
        self._ladders = dict(ladders)
        self._seen: dict[str, Counter[int]] = {name: Counter() for name in ladders}
        self._steps: dict[str, list[int]] = {name: [] for name in ladders}
        self._lock = threading.Lock()

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that are rounded up."""
        return tuple(self._ladders)

    def greatest(self, name: str) -> int | None:
        """The greatest size of a symbol; None where any is taken."""
        ladder = self._ladders.get(name)
        return None if ladder is None or isinstance(ladder, str) else ladder[-1]

    def declared(self) -> list[dict[str, int]]:
        """Every combination of declared sizes.

        Raises:
            DimError: a ladder is not a list of sizes.
        """
        open_ended = [name for name, ladder in self._ladders.items() if isinstance(ladder, str)]
        if open_ended:
            raise DimError(
                f"buckets: sizes are required to be declared to list them all; those of "
                f"{open_ended[0]} are {self._ladders[open_ended[0]]!r}. Pass the bindings."
            )
        names = list(self._ladders)
        ladders = [cast("Sequence[int]", self._ladders[name]) for name in names]
        return [dict(zip(names, row, strict=True)) for row in itertools.product(*ladders)]

    def rounded(self, binding: Mapping[str, int]) -> dict[str, int]:
        """The binding with each laddered symbol at the step that takes its size.

        Raises:
            DimError: a size is above the last declared one.
        """
        return {name: self._step(name, size) for name, size in binding.items()}

    def _step(self, name: str, size: int) -> int:
        ladder = self._ladders.get(name)
        if ladder is None:
            return size
        if isinstance(ladder, str):
            if ladder == "pow2":
                return _power_of_two(size)
            with self._lock:
                return self._learned(name, size)
        place = bisect.bisect_left(ladder, size)
        if place == len(ladder):
            raise SizesError(
                f"buckets: {name} is required to be at most {ladder[-1]}, its last bucket; got "
                f"{name} = {size}. Add a larger bucket, or cut the input."
            )
        return ladder[place]

    def _learned(self, name: str, size: int) -> int:
        seen, steps = self._seen[name], self._steps[name]
        seen[size] += 1
        place = bisect.bisect_left(steps, size)
        if place < len(steps) and steps[place] <= 2 * size:
            return steps[place]
        made = _power_of_two(size)
        if seen.total() >= LEARNING:
            # a size just above a step makes none of its own: growing sizes would make one each
            least = size if not place or steps[place - 1] * 2 <= size else size + 1
            wanted = [q for q in _quantiles(seen) if q >= least]
            made = min(wanted[0], made) if wanted else made
        bisect.insort(steps, made)
        return made


def buckets_of(option: Any, symbols: Iterable[str], where: str = "buckets") -> Buckets | None:
    """The ladders of an option for the symbols of a graph.

    Args:
        option: ``CompileOptions.buckets``.
        symbols: of the graph.
        where: beginning of messages.

    Raises:
        DimError: a symbol that the graph does not have.
    """
    names = list(symbols)
    if option is None or not names:
        return None
    if isinstance(option, str):
        return Buckets(dict.fromkeys(names, option))
    ladders = cast("Mapping[str, Sequence[int] | str]", option)
    strangers = [name for name in ladders if name not in names]
    if strangers:
        raise DimError(
            f"{where}: names of symbols are required ({', '.join(names)}); got "
            f"{strangers[0]!r}.{did_you_mean(strangers[0], names)}"
        )
    return Buckets(ladders) if ladders else None


def proposal(sizes: Iterable[int]) -> list[int]:
    """At most four sizes that would serve those seen, each a power of two."""
    steps = sorted({_power_of_two(size) for size in sizes})
    while len(steps) > 4:
        del steps[0]
    return steps


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _quantiles(seen: Counter[int]) -> list[int]:
    """The sizes below which a quarter, a half, three quarters and all of what was seen lie."""
    total = seen.total()
    found: list[int] = []
    below = 0
    for size in sorted(seen):
        below += seen[size]
        while len(found) < 4 and below * 4 >= total * (len(found) + 1):
            found.append(size)
    return found
