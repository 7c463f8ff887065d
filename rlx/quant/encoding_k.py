"""Encoders of GGUF's K blocks: Q4_K, Q5_K and Q6_K.

Each sub-block starts from scales that its extremes give, alternates codes and least-squares scales,
and keeps the best; then scales are rounded to what a block stores, and codes are chosen anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"

_STRETCH = (1.0, 0.97, 0.93, 0.88, 0.82)
"""First scales as parts of the one that covers a sub-block's whole range."""

_ROUNDS = 3
"""How often codes and least-squares scales alternate from each first scale."""


def _ratio(x: Array, y: Array) -> Array:
    """Return x / y, and 0 where y is 0."""
    zero = y == 0
    return np.where(zero, 0.0, x / np.where(zero, 1.0, y))


def scale_and_least(x: Array, most: int, *, below: bool) -> tuple[Array, Array]:
    """Scales ≥ 0 and least numbers with x ≈ scale · code + least, codes 0 … most; f64[…, 1].

    With ``below`` the least numbers are ≤ 0, which is all that K blocks can store.
    """
    ceiling = 0.0 if below else np.inf
    low = np.minimum(x.min(axis=-1, keepdims=True), ceiling)
    spread = x.max(axis=-1, keepdims=True) - low
    best_scale: Array = spread / most
    best_low: Array = low
    best: Array = np.full(best_scale.shape, np.inf)
    for stretch in _STRETCH:
        scale, least = spread / most * stretch, low
        for _ in range(_ROUNDS):
            codes = np.clip(np.rint(_ratio(x - least, scale)), 0, most)
            error = ((x - least - scale * codes) ** 2).sum(axis=-1, keepdims=True)
            better = error < best
            best = np.where(better, error, best)
            best_scale = np.where(better, scale, best_scale)
            best_low = np.where(better, least, best_low)
            mean_code, mean = codes.mean(axis=-1, keepdims=True), x.mean(axis=-1, keepdims=True)
            across = ((codes - mean_code) * (x - mean)).sum(axis=-1, keepdims=True)
            scale = _ratio(across, ((codes - mean_code) ** 2).sum(axis=-1, keepdims=True))
            least = mean - scale * mean_code
            # A least number above the ceiling cannot be stored: the line then meets the origin.
            through = _ratio((codes * x).sum(-1, keepdims=True), (codes**2).sum(-1, keepdims=True))
            scale = np.maximum(np.where(least > ceiling, through, scale), 0)
            least = np.minimum(least, ceiling)
    return best_scale, best_low


def _six_bits(x: Array) -> tuple[Array, Array]:
    """Numbers ≥ 0 of each block as an f16 (its bytes) times six bits (u8); x is [B, 8]."""
    outer = np.clip(x.max(axis=1, keepdims=True) / 63, 0, 65504).astype(np.float16)
    inner = np.clip(np.rint(_ratio(x, outer.astype(np.float64))), 0, 63)
    return outer, inner.astype(np.uint8)


def _with_minima(blocks: Array, bits: int) -> tuple[Array, Array]:
    """Head of a Q4_K or Q5_K block (16 bytes) and codes u8[B, 8, 32]."""
    most = (1 << bits) - 1
    x = blocks.reshape(-1, 8, 32).astype(np.float64)
    scale, least = scale_and_least(x, most, below=True)
    outer, inner = _six_bits(scale[..., 0])
    outer_least, inner_least = _six_bits(-least[..., 0])
    real = (outer.astype(np.float64) * inner)[..., None]
    lowest = (outer_least.astype(np.float64) * inner_least)[..., None]
    codes = np.clip(np.rint(_ratio(x + lowest, real)), 0, most).astype(np.uint8)
    packed = np.concatenate(
        [
            inner[:, :4] | (inner[:, 4:] >> 4) << 6,
            inner_least[:, :4] | (inner_least[:, 4:] >> 4) << 6,
            (inner[:, 4:] & 15) | (inner_least[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    head = [outer.view(np.uint8), outer_least.view(np.uint8), packed]
    return np.concatenate(head, axis=1), codes


def _nibbles(codes: Array, half: int) -> Array:
    """Codes [B, 256]: in every 2 · half the second half goes above the first."""
    pairs = codes.reshape(len(codes), -1, 2, half) & 15
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(codes), -1)


def q4_k(blocks: Array) -> Array:
    """Blocks of Q4_K (u8[B, 144]) for f32[B, 256]."""
    head, codes = _with_minima(blocks, 4)
    return np.concatenate([head, _nibbles(codes.reshape(-1, 256), 32)], axis=1)


def q5_k(blocks: Array) -> Array:
    """Blocks of Q5_K (u8[B, 176]) for f32[B, 256]."""
    head, codes = _with_minima(blocks, 5)
    top = (codes >> 4) << np.arange(8, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(top, axis=1)
    return np.concatenate([head, high, _nibbles(codes.reshape(-1, 256), 32)], axis=1)


def q6_k(blocks: Array) -> Array:
    """Blocks of Q6_K (u8[B, 210]) for f32[B, 256]."""
    x = blocks.reshape(-1, 16, 16).astype(np.float64)
    scale = _signed_scale(x)
    place = np.argmax(np.abs(scale), axis=1, keepdims=True)
    largest = np.take_along_axis(scale, place, axis=1)[:, 0]
    outer = np.clip(largest / -128, -65504, 65504).astype(np.float16)
    inner = np.clip(np.rint(_ratio(scale[..., 0], outer.astype(np.float64))), -128, 127)
    real = (outer.astype(np.float64) * inner)[..., None]
    codes = np.clip(np.rint(_ratio(x, real)), -32, 31).astype(np.int8)
    codes = (codes + 32).view(np.uint8).reshape(-1, 256)
    quarters = codes.reshape(-1, 2, 4, 32) >> 4
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce(quarters << shifts, axis=2).reshape(-1, 64)
    sizes = inner.astype(np.int8).view(np.uint8)
    return np.concatenate([_nibbles(codes, 64), high, sizes, outer.view(np.uint8)], axis=1)


def _signed_scale(x: Array) -> Array:
    """Scales with x ≈ scale · code, codes −32 … 31; the extreme element may take −32. f64[…, 1]."""
    place = np.argmax(np.abs(x), axis=-1, keepdims=True)
    whole = np.take_along_axis(x, place, axis=-1) / -32
    best_scale: Array = whole
    best: Array = np.full(whole.shape, np.inf)
    for stretch in (*_STRETCH, 32 / 31, 32 / 30.5):
        scale = whole * stretch
        for _ in range(_ROUNDS):
            codes = np.clip(np.rint(_ratio(x, scale)), -32, 31)
            error = ((x - scale * codes) ** 2).sum(axis=-1, keepdims=True)
            better = error < best
            best = np.where(better, error, best)
            best_scale = np.where(better, scale, best_scale)
            scale = _ratio((codes * x).sum(-1, keepdims=True), (codes**2).sum(-1, keepdims=True))
    return best_scale
