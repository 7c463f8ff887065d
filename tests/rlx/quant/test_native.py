"""Blocks taken apart into native integers hold the same numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rlx import GraphBuilder, interpret
from rlx.errors import RlxError
from rlx.passes.native_numbers import native_numbers
from rlx.quant import QuantScheme, SchemeKind, decode, encode
from rlx.quant.native import KINDS, native_parts, take_apart
from rlx.types import TensorType


@pytest.mark.parametrize("inner", [512, 96])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_the_parts_are_the_numbers(kind: SchemeKind, inner: int, rng: np.random.Generator) -> None:
    scheme = next(QuantScheme(k) for k in KINDS if k is kind)
    inner = inner if scheme.block_size == 32 else 512 + 256 * (inner == 96)
    packed = encode(scheme, rng.normal(size=(7, inner)).astype(np.float32))
    arrays = take_apart(scheme, packed)
    parts = native_parts(scheme, inner)
    for part, array in zip(parts, arrays, strict=True):
        assert (array.dtype, array.shape) == (part.dtype.numpy, (inner // part.every, 7))
    bits = sum(part.dtype.bits * array.size for part, array in zip(parts, arrays, strict=True))
    if inner % 128 == 0:
        assert bits == 8 * packed.size  # the bytes of the file
    b = GraphBuilder("numbers")
    named = {part.name: array for part, array in zip(parts, arrays, strict=True)}
    values = [b.input(p.name, TensorType(p.dtype, named[p.name].shape)) for p in parts]
    (numbers,) = interpret(b.build(native_numbers(scheme, values)), named)
    np.testing.assert_array_equal(numbers.T, decode(scheme, packed))


def test_other_schemes_do_not_come_apart() -> None:
    with pytest.raises(RlxError, match=re.escape("is required; got gguf_q2k. Decode it.")):
        take_apart(QuantScheme.gguf("Q2_K"), np.zeros((1, 84), np.uint8))
