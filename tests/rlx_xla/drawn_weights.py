"""Packed weights whose codes and scales are drawn, by columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.quant.schemes import QuantScheme, SchemeKind


def quantized(
    scheme: QuantScheme, shape: tuple[int, int], rng: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """Codes, scales and what else the scheme has, all drawn."""
    inner, outer = shape
    groups = -(-inner // scheme.block_size)
    if scheme.kind is SchemeKind.NVFP4:
        return [
            rng.integers(0, 256, inner * outer // 2).astype(np.uint8),
            rng.integers(1, 0x7F, (groups, outer)).astype(np.uint8),
            rng.uniform(0.5, 2, 1).astype(np.float32),
        ]
    scale = rng.uniform(-1, 2, (groups, outer)).astype(np.float32)
    if scheme.kind is SchemeKind.INT4:
        codes = rng.integers(0, 256, inner * outer // 2).astype(np.uint8)
        return [codes, scale, rng.integers(0, 16, scale.shape).astype(np.float32)]
    if scheme.kind in (SchemeKind.FP8_E4M3, SchemeKind.FP8_E5M2):
        codes = rng.integers(0, 0x7B, shape) + 128 * rng.integers(0, 2, shape)
        return [codes.astype(np.uint8), scale[0] * 1e-3]
    codes = rng.integers(-128, 128, shape).astype(np.int8)
    if scheme.kind is SchemeKind.INT8:
        return [codes, scale]
    return [codes, scale, rng.uniform(-9, 9, scale.shape).astype(np.float32)]
