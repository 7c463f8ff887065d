"""Bounds: sizes that part what a kernel gains from what it does not.

A bound has a packaged number, measured on a CPU with AVX-512, and the one that was measured on
this machine where ``rlx-xla bench --calibrate`` has run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import final

from rlx.errors import RegistryError
from rlx_xla.kernels.calibration import store

MEASURED_ON = "x86_64-avx2-avx512-bf16-vnni"
"""The features of the CPU that the packaged numbers were measured on."""

_BOUNDS: dict[str, Bound] = {}
_lock = threading.Lock()
_read: store.Calibration | None = None
_all_open: ContextVar[bool] = ContextVar("all_open", default=False)


@final
@dataclass(frozen=True)
class Bound:
    """A size from which on, or up to which, a kernel is taken.

    Attributes:
        name: the kernel's name, and after a slash what the size is of.
        packaged: the number that holds unless this machine was measured.
        sizes: those that a calibration measures, ascending.
        least: whether it is the fewest that gain, and not the most.
    """

    name: str
    packaged: int
    sizes: tuple[int, ...]
    least: bool = True

    @property
    def value(self) -> int:
        """The number that holds."""
        if _all_open.get():
            return 0 if self.least else store.NEVER
        return _calibration().bounds.get(self.name, self.packaged)

    def admits(self, size: int) -> bool:
        """Whether a size is within the bound."""
        return size >= self.value if self.least else size <= self.value

    def __str__(self) -> str:
        return str(self.value)


def bound(name: str, packaged: int, sizes: tuple[int, ...], *, least: bool = True) -> Bound:
    """Make a bound known under its name.

    Raises:
        RegistryError: another bound has the name, or the sizes do not ascend.
    """
    made = Bound(name, packaged, sizes, least)
    if not sizes or list(sizes) != sorted(set(sizes)):
        raise RegistryError(
            f"bound {name!r}: ascending sizes to measure are required; got {sizes}. Sort them."
        )
    if _BOUNDS.setdefault(name, made) != made:
        raise RegistryError(f"bound: the name {name!r} is taken. Choose another.")
    return made


def all_bounds() -> list[Bound]:
    """Every bound, by name."""
    from rlx_xla.kernels.select import load_kernels

    load_kernels()
    return [_BOUNDS[name] for name in sorted(_BOUNDS)]


@contextlib.contextmanager
def open_all() -> Iterator[None]:
    """Within it every size is admitted: what is measured must not depend on what was."""
    token = _all_open.set(True)
    try:
        yield
    finally:
        _all_open.reset(token)


def _calibration() -> store.Calibration:
    global _read
    found = _read
    if found is None:
        with _lock:
            found = _read = _read or store.read()
    return found


def forget() -> None:
    """Read the file again at the next question."""
    global _read
    with _lock:
        _read = None


def measured() -> Mapping[str, int]:
    """Name → size of the numbers that were measured on this machine; empty where packaged hold."""
    return _calibration().bounds


def described() -> str:
    """Which numbers hold, in a line."""
    found = _calibration()
    if found.bounds:
        known = sum(1 for b in all_bounds() if b.name in found.bounds)
        return f"measured on this machine, {known} of {len(_BOUNDS)} ({store.path()})"
    mine = store.features()
    kin = "" if mine == MEASURED_ON else f"; this CPU is {mine}, and nearest to that"
    left = f"; {store.path()} is left aside: {found.problem}" if found.problem else ""
    return f"packaged, measured on {MEASURED_ON}{kin}{left}"
