"""MiniLM over many lengths: three compiles with buckets, outputs as ``jax.jit`` gives them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import rlx_xla
from rlx_xla.models import minilm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def params() -> Any:
    return jax.device_put(minilm.load_params())


def test_thirty_two_lengths_in_three_compiles(params: Any) -> None:
    fast = rlx_xla.jit(
        minilm.embed,
        params=0,
        dims=(None, "i32[1, s]", "i32[1, s]"),
        buckets={"s": [32, 64, 128]},
    )
    rng = np.random.default_rng(7)
    lengths = rng.choice(np.arange(2, 129), 32, replace=False)
    lengths[0] = 128
    compared = {int(n) for n in (*rng.choice(lengths, 3), 128)}
    plain = jax.jit(minilm.embed)
    for n in lengths:
        ids = rng.integers(1000, 20000, (1, n)).astype(np.int32)
        mask = (np.arange(n) < max(2, n - 3))[None].astype(np.int32)
        found = fast(params, ids, mask)
        if int(n) in compared:
            np.testing.assert_allclose(found, plain(params, ids, mask), atol=1e-5)
    records = fast.specializations()
    assert records.misses == 3
    assert records.hits == 29
    assert all(record.is_padded for record in records)


def test_padded_batches(params: Any) -> None:
    fast = rlx_xla.jit(
        minilm.embed,
        params=0,
        dims=(None, "i32[b, s]", "i32[b, s]"),
        buckets={"b": [4], "s": [16]},
    )
    rng = np.random.default_rng(8)
    for shape in ((3, 9), (4, 16), (2, 5)):
        ids = rng.integers(1000, 20000, shape).astype(np.int32)
        mask = np.ones(shape, np.int32)
        found = fast(params, ids, mask)
        assert found.shape == (shape[0], 384)
        np.testing.assert_allclose(found, minilm.embed(params, ids, mask), atol=1e-5)
    assert fast.specializations().misses == 1
