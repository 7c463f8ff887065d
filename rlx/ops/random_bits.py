"""NumPy's meaning of ``rng_bit_generator``: XLA's counter layouts of Philox and Threefry.

A state is two 64-bit words: the key, and the counter that advances with every block of bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = "npt.NDArray[Any]"

MASK = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
PHILOX_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
PHILOX_ROUNDS = 10


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Rotations of threefry's rounds; the two groups of four alternate."""

PARITY = 0x1BD11BDA
"""Threefish's parity constant: the third key word is k1 ^ k2 ^ PARITY."""


def threefry2x32(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Threefry-2x32 with 20 rounds on u32 arrays of one shape."""
    shape = counter[0].shape
    # Arrays of rank 1 wrap around silently; NumPy's scalars would warn.
    k1, k2, a, b = (np.atleast_1d(word) for word in (*key, *counter))
    keys = (k1, k2, k1 ^ k2 ^ np.uint32(PARITY))
    a, b = a + k1, b + k2
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation)))
        a = a + keys[(block + 1) % 3]
        b = b + keys[(block + 2) % 3] + np.uint32(block + 1)
    return a.reshape(shape), b.reshape(shape)


def philox4x32(
    counter: list[Words],
    key: tuple[np.uint64, np.uint64],
    multipliers: tuple[np.uint64, np.uint64] = PHILOX_MULTIPLIERS,
) -> list[Words]:
    """Philox-4x32 with 10 rounds; every word is a 32-bit number held in u64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        first, second = c0 * multipliers[0], c2 * multipliers[1]
        c0, c1, c2, c3 = (
            (second >> HALF) ^ c1 ^ k0,
            second & MASK,
            (first >> HALF) ^ c3 ^ k1,
            first & MASK,
        )
        k0, k1 = (k0 + PHILOX_WEYL[0]) & MASK, (k1 + PHILOX_WEYL[1]) & MASK
    return [c0, c1, c2, c3]


def philox_words(state: Words, count: int) -> tuple[Words, Words]:
    """The next state, and ``count`` 32-bit words: four from each block."""
    blocks = -(-count // 4)
    key, start = state
    with np.errstate(over="ignore"):
        low = start + np.arange(blocks, dtype=np.uint64)
        high = key + (low < start).astype(np.uint64)  # the carry of a 128-bit counter
        end = start + np.uint64(blocks)
    counter = [low & MASK, low >> HALF, high & MASK, high >> HALF]
    made = np.stack(philox4x32(counter, (key & MASK, key >> HALF)), axis=-1)
    return np.array([key, end]), made.reshape(-1)[:count].astype(np.uint32)


def threefry_words(state: Words, count: int) -> tuple[Words, Words, Words]:
    """The next state, and the two 32-bit results of ``count`` blocks."""
    key, start = state
    with np.errstate(over="ignore"):
        counter = start + np.arange(count, dtype=np.uint64)
        end = start + np.uint64(count)
    low, high = (w.astype(np.uint32) for w in (counter & MASK, counter >> HALF))
    k1, k2 = (np.full(count, w, np.uint32) for w in (key & MASK, key >> HALF))
    first, second = threefry2x32((k1, k2), (low, high))
    return np.array([key, end]), first, second


def generate(
    threefry: bool, state: Words, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[Words, Words]:
    """The next state, and bits of an unsigned dtype; narrow ones keep a word's low bits."""
    count = math.prod(shape)
    if not threefry:
        wide = dtype.itemsize == 8
        following, words = philox_words(state, 2 * count if wide else count)
        bits = _joined(words[0::2], words[1::2]) if wide else words
        return following, bits.astype(dtype).reshape(shape)
    if dtype.itemsize == 8:
        following, low, high = threefry_words(state, count)
        return following, _joined(low, high).reshape(shape)
    # The two results of a block stand side by side along one axis, rounded up to even.
    padded = list(shape or (1,))
    axis = _split_axis(padded)
    padded[axis] = -(-padded[axis] // 2)
    following, low, high = threefry_words(state, math.prod(padded))
    pairs = np.stack([low.reshape(padded), high.reshape(padded)], axis=axis + 1)
    padded[axis] *= 2
    size = (shape or (1,))[axis]
    kept = pairs.reshape(padded).take(range(size), axis=axis)
    return following, kept.reshape(shape).astype(dtype)


def _joined(low: Words, high: Words) -> Words:
    return low.astype(np.uint64) | (high.astype(np.uint64) << HALF)


def _split_axis(shape: Sequence[int]) -> int:
    even = [axis for axis, size in enumerate(shape) if size % 2 == 0]
    if even:
        return even[0]
    return max(range(len(shape)), key=lambda axis: shape[axis])
