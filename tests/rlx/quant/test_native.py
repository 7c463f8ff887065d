"""Blocks taken apart into native integers hold the same numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rlx.errors import RlxError
from rlx.quant import QuantScheme, decode, encode
from rlx.quant.native import KINDS, take_apart


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_the_parts_are_the_numbers(kind: object, rng: np.random.Generator) -> None:
    scheme = next(QuantScheme(k) for k in KINDS if k is kind)
    packed = encode(scheme, rng.normal(size=(7, 512)).astype(np.float32))
    dtype, scales, group, has_least = KINDS[scheme.kind]
    codes, scale, *least = take_apart(scheme, packed)
    assert (codes.dtype, codes.shape) == (dtype.numpy, (512, 7))
    assert (scale.dtype, scale.shape) == (scales.numpy, (512 // group, 7))
    assert len(least) == has_least
    numbers = codes.astype(np.float32).reshape(-1, group, 7) * scale.astype(np.float32)[:, None]
    if least:
        numbers = numbers + least[0].astype(np.float32)[:, None]
    np.testing.assert_allclose(numbers.reshape(512, 7).T, decode(scheme, packed), rtol=1e-6)


def test_other_schemes_do_not_come_apart() -> None:
    with pytest.raises(RlxError, match=re.escape("is required; got gguf_q2k. Decode it.")):
        take_apart(QuantScheme.gguf("Q2_K"), np.zeros((1, 84), np.uint8))
