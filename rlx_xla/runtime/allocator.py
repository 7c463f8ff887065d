"""Large host buffers, kept by the process and used again: an option, off by default.

The C library gives a freed buffer of 32 MB or more back to the system, and maps the next one anew:
each page costs a fault when it is first written. 64 MB of ``x + 1`` take 16,385 faults and 20 ms on
a quiet machine; kept, about 4 ms and mostly none. It is settled for the whole process, before XLA's
CPU starts: all threads then share one heap, freed memory stays with the process (336 MB resident
became 530 to 970 in such runs), and threads that allocate wait for one lock.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable, Mapping

from rlx.errors import RunError
from rlx.options import env
from rlx_xla._jax_compat import client as jax_client

VARIABLE = "RLX_KEEP_LARGE_BUFFERS"

LARGE = 32 * 2**20
"""Bytes from which glibc maps every buffer anew."""

_PAGE = 4096
_SETTINGS = {-3: 2**30, -1: 2**31 - 1, -8: 1}
"""mallopt: buffers below 1 GiB come from the heap, which is never given back, and is one heap."""

_kept = False


def keep_large_buffers() -> None:
    """Let this process keep large freed buffers for the next ones, as the variable does.

    Call it before anything is computed. A second call does nothing.

    Raises:
        RunError: XLA's CPU has started already, or the C library is not glibc.
    """
    global _kept
    if _kept:
        return
    if jax_client.has_started():
        raise RunError(
            "keep_large_buffers: it is required before XLA's CPU starts, whose threads choose "
            "their heaps then; it has started. Call it first in the program, or set "
            f"{VARIABLE}=1."
        )
    mallopt = _mallopt()
    if mallopt is None:
        raise RunError(
            f"keep_large_buffers: glibc is required, whose mallopt it sets; {sys.platform} has "
            "another allocator. Leave the call out."
        )
    for parameter, value in _SETTINGS.items():
        if mallopt(parameter, value) != 1:
            raise RunError(
                f"keep_large_buffers: glibc is required to take mallopt({parameter}, {value}); it "
                "refused. Leave the call out."
            )
    _kept = True


def apply_environment() -> None:
    """Keep large buffers if the variable asks for it; ``report`` says where it came too late."""
    if env.flag(VARIABLE) and not jax_client.has_started() and _mallopt() is not None:
        keep_large_buffers()


def cost_lines(memory: Mapping[str, int]) -> list[str]:
    """What the option costs, or would save, for a program whose memory XLA counts so.

    Args:
        memory: bytes by kind; ``output`` and ``temp`` are allocated on each call.
    """
    if _kept:
        return [
            f"large buffers are kept ({VARIABLE}): the process holds {_resident():,} bytes, at "
            f"most {_peak():,} so far, in one heap for all threads"
        ]
    if env.flag(VARIABLE):
        reason = "XLA's CPU had started" if _mallopt() is not None else "the C library is not glibc"
        return [f"{VARIABLE} has no effect: {reason} when rlx_xla was imported"]
    large = sum(n for kind, n in memory.items() if kind in ("output", "temp") and n >= LARGE)
    if not large:
        return []
    return [
        f"each call maps {large:,} bytes anew, {large // _PAGE:,} page faults: {VARIABLE}=1 keeps "
        "such buffers for the next call, and their memory with the process"
    ]


def _mallopt() -> Callable[[int, int], int] | None:
    """The function of glibc, where that is the C library."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    try:
        found = library.gnu_get_libc_version, library.mallopt
    except AttributeError:
        return None
    return found[1]


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
