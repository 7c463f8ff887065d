"""Compiles ahead of the first call, several at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from rlx.dims.buckets import Buckets
from rlx.dims.expr import as_number
from rlx.errors import DimError

_WIDTH = 24
"""Characters of a bar."""


def warm_bindings(
    symbols: Sequence[str],
    buckets: Buckets | None,
    bindings: Iterable[Mapping[str, int]] | None,
) -> list[dict[str, int]]:
    """The bindings to compile for.

    Args:
        symbols: every one needs a size.
        buckets: their combinations are what None means.
        bindings: what the caller gave.

    Raises:
        DimError: what was given is no list of bindings, or one does not fit the symbols.
    """
    if bindings is None:
        if buckets is None:
            raise DimError(
                "warm: a list of bindings is required where no buckets are declared; got none. "
                "Pass [{'n': 4}], or CompileOptions(buckets={'n': [16, 64]})."
            )
        bindings = buckets.declared()
    if isinstance(bindings, Mapping) or not isinstance(cast("object", bindings), Iterable):
        raise DimError(
            f"warm: a list of bindings, such as [{{'n': 4}}], is required; got {bindings!r}."
        )
    found: list[dict[str, int]] = []
    for binding in bindings:
        if not isinstance(cast("object", binding), Mapping):
            raise DimError(f"warm: a binding is a mapping (symbol → size); got {binding!r}.")
        sizes = dict(binding.items())
        if tuple(sorted(sizes)) != tuple(symbols):
            raise DimError(
                f"warm: a binding is required to give a size to each of "
                f"{', '.join(symbols) or 'no symbols'}; got {sizes}."
            )
        wrong = next((n for n, size in sizes.items() if (as_number(size) or 0) < 0), None)
        wrong = next((n for n, size in sizes.items() if as_number(size) is None), wrong)
        if wrong is not None:
            raise DimError(
                f"warm: sizes are required to be ints ≥ 0; got {wrong} = {sizes[wrong]!r}. "
                "Pass sizes that calls have."
            )
        found.append({n: int(size) for n, size in sizes.items()})
    return found


def warm_up(
    tasks: Sequence[Callable[[], Any]], *, threads: int | None = None, progress: str = ""
) -> None:
    """Run compiles in threads; the first error is raised when all have ended.

    Args:
        tasks: each compiles one program.
        threads: how many run at a time; None means as many as there are processors.
        progress: title of a bar on the error stream; empty for none.
    """
    if not tasks:
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed  # slow to import

    count = min(len(tasks), threads or os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=count) as pool:
        futures = [pool.submit(task) for task in tasks]
        for done, _ in enumerate(as_completed(futures), 1):
            if progress:
                filled = _WIDTH * done // len(futures)
                bar = "█" * filled + "░" * (_WIDTH - filled)
                end = "\n" if done == len(futures) else ""
                sys.stderr.write(f"\r{progress} {bar} {done}/{len(futures)}{end}")
                sys.stderr.flush()
    for future in futures:
        future.result()
