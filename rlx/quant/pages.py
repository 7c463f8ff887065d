"""Memory of mapped files, given back to the system."""

from __future__ import annotations

import mmap
import sys


def release_pages(mapped: mmap.mmap) -> None:
    """Forget pages of a file that is mapped to be read; the next access reads them again.

    Where the system has no such call, nothing happens: it takes such pages back by itself.
    """
    if sys.platform == "linux":
        mapped.madvise(mmap.MADV_DONTNEED)
