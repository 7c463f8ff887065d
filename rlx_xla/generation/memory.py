"""Memory of the process: what compiling leaves behind, given back, and what there is."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_MAPS = Path("/proc/self/smaps")
_HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)")


def trim(*, collect: bool = True) -> None:
    """Give free memory of the C allocator back, where it has a call for that (glibc).

    A compile takes and frees more than a small model's weights; the allocator would keep it, and
    so it would the caches of an answer.

    Args:
        collect: look for cycles of Python's objects first, which takes longer than the rest.
    """
    if collect:
        gc.collect()
    if not sys.platform.startswith("linux"):
        return
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # another C library
        return
    give_back(0)


def resident(names: frozenset[str] | None = None) -> int | None:
    """Return bytes of the process that are in memory; None where the system does not say.

    Args:
        names: count only what is mapped from files of these paths.
    """
    try:
        with _MAPS.open(errors="replace") as lines:
            return _sum(lines, names) * 1024
    except OSError:
        return None


def _sum(lines: Iterable[str], names: frozenset[str] | None) -> int:
    total, counts = 0, names is None
    for line in lines:
        head = _HEAD.match(line)
        if head is not None:
            counts = names is None or head[1] in names
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total
