"""Pallas kernels for GPUs through Triton: sources, imported when one is lowered.

One source serves AMD's and NVIDIA's; see ``library/triton``. Triton's arrays have sizes that are
powers of 2, so blocks are rounded up and loads and stores have masks.
"""

from __future__ import annotations


def power_of_2(size: int, least: int = 1) -> int:
    """The least power of 2 that is no smaller than ``size`` and ``least``."""
    return 1 << (max(size, least) - 1).bit_length()
