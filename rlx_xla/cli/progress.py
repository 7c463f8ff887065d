"""Progress on stderr, so that stdout holds results only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar, final

from rich.console import Console

T = TypeVar("T")


@final
class Steps:
    """Runs long steps, each under a spinner and followed by one line with its time.

    Attributes:
        seconds: time of each finished step by its name.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        """Make a step runner; `quiet` leaves out the line after each step."""
        self.seconds: dict[str, float] = {}
        self.console = Console(stderr=True, highlight=False)
        self._quiet = quiet

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Return `work()`; the spinner shows only where stderr is a terminal."""
        start = time.perf_counter()
        with self.console.status(f"{name} …"):
            result = work()
        self.seconds[name] = time.perf_counter() - start
        if not self._quiet:
            self.console.print(f"  {name}: {self.seconds[name]:.2f} s", style="dim")
        return result
