"""Memory that compiling leaves behind, given back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys


def trim() -> None:
    """Give free memory of the C allocator back, where it has a call for that (glibc).

    A compile takes and frees more than a small model's weights; the allocator would keep it.
    """
    gc.collect()
    if not sys.platform.startswith("linux"):
        return
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # another C library
        return
    give_back(0)
