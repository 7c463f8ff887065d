"""What it costs that a maximum keeps NaN: against ``jax.jit``, whose maximum drops it on CPUs.

Run with ``python -m tests.benchmarks.bench_extremes`` for the table, or with pytest to check that
the price stays low.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx_xla
from rlx.dtypes import DType
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.timing import Comparison, compare

MOST = 2.0
"""How many times as long the right answer may take."""

CASES = [
    ((1024, 1024), None, DType.F32),
    ((1024, 1024), 0, DType.F32),
    ((1024, 1024), 1, DType.F32),
    ((1024, 1024), 1, DType.BF16),
    ((32, 56, 56, 64), (1, 2), DType.F32),
]


def measure(
    shape: tuple[int, ...], axis: int | tuple[int, ...] | None, dtype: DType, rounds: int = 41
) -> Comparison:
    """Time the maximum with NaN against two compiles of the one without."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(dtype.numpy))

    def greatest(x: jax.Array) -> jax.Array:
        return jnp.max(x, axis=axis)

    ours = rlx_xla.jit(greatest)
    place = (3,) * len(shape)
    assert np.isnan(np.asarray(ours(x.at[place].set(jnp.nan)), np.float64)).any()
    theirs = [jax.jit(greatest).lower(x).compile() for _ in range(2)]
    runs = [repeated(run, (x,)) for run in (ours, *theirs)]
    return compare(f"max {dtype}{list(shape)}, axis {axis}", *runs, rounds=rounds)


@pytest.mark.parametrize(("shape", "axis", "dtype"), CASES, ids=str)
def test_nan_costs_little(
    shape: tuple[int, ...],
    axis: int | tuple[int, ...] | None,
    dtype: DType,
    judged: bool,
    rounds: int,
) -> None:
    result = measure(shape, axis, dtype, rounds)
    print(result)
    assert not judged or result.within(MOST)


def main() -> None:
    """Print the table."""
    for shape, axis, dtype in CASES:
        print(measure(shape, axis, dtype), flush=True)


if __name__ == "__main__":
    main()
