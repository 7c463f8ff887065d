"""Names of params that a compile adds: no caller sees them."""

from __future__ import annotations

SEED = "__rlx_rng_seed"
"""u32[2]: the low and the high word of the seed of a run's random numbers."""

PREPARED = "__rlx_prep_"
"""Beginning of the names of values that a graph's first stage computes for its second."""
