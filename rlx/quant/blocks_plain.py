"""Decoders of GGUF blocks without sub-blocks: Q4_0 to Q8_0, ternary, MXFP4, NVFP4, IQ4.

A decoder takes blocks as u8[B, bytes] and gives f32[B, elements].

Source: the public layouts of the GGUF format (ggml).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.dtypes import DType
from rlx.quant.lanes import AbstractLanes, Lane

if TYPE_CHECKING:
    import numpy.typing as npt

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the nibbles of IQ4_NL and IQ4_XS stand for."""

THREES = (1, 3, 9, 27, 81)
"""A ternary digit comes to the top of a byte by one of these factors."""


def half(lanes: AbstractLanes, blocks: Lane, at: int) -> Lane:
    """The f16 at a byte of each block, as f32[B, 1]."""
    return lanes.convert(lanes.read(lanes.cut(blocks, at, at + 2), DType.F16), DType.F32)


def nibbles(lanes: AbstractLanes, x: Lane) -> Lane:
    """[…, n] bytes → […, 2, n]: low nibbles, then high ones."""
    return lanes.fields(x, (0, 4), 15)


def flat(lanes: AbstractLanes, x: Lane) -> Lane:
    """Join all axes but the first."""
    count, *rest = lanes.shape(x)
    return lanes.reshape(x, (count, int(np.prod(rest))))


def floats(lanes: AbstractLanes, x: Lane) -> Lane:
    """Integers as f32."""
    return lanes.convert(x, DType.F32)


def _high_bits(lanes: AbstractLanes, blocks: Lane, at: int) -> Lane:
    """The fifth bits of 32 codes, from four bytes; u8[B, 32]."""
    return flat(lanes, lanes.fields(lanes.cut(blocks, at, at + 4), range(8), 1, last=True))


def q4_0(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q4_0: (nibble − 8) · d."""
    codes = flat(lanes, nibbles(lanes, lanes.cut(blocks, 2, 18)))
    return (floats(lanes, codes) - 8.0) * half(lanes, blocks, 0)


def q4_1(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q4_1: nibble · d + m."""
    codes = flat(lanes, nibbles(lanes, lanes.cut(blocks, 4, 20)))
    return floats(lanes, codes) * half(lanes, blocks, 0) + half(lanes, blocks, 2)


def q5_0(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q5_0: (code − 16) · d, the fifth bits apart."""
    low = flat(lanes, nibbles(lanes, lanes.cut(blocks, 6, 22)))
    codes = low | lanes.shift_left(_high_bits(lanes, blocks, 2), 4)
    return (floats(lanes, codes) - 16.0) * half(lanes, blocks, 0)


def q5_1(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q5_1: code · d + m, the fifth bits apart."""
    low = flat(lanes, nibbles(lanes, lanes.cut(blocks, 8, 24)))
    codes = low | lanes.shift_left(_high_bits(lanes, blocks, 4), 4)
    return floats(lanes, codes) * half(lanes, blocks, 0) + half(lanes, blocks, 2)


def q8_0(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q8_0: signed byte · d."""
    codes = lanes.read(lanes.cut(blocks, 2, 34), DType.I8)
    return floats(lanes, codes) * half(lanes, blocks, 0)


def tq1_0(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """TQ1_0: (ternary digit − 1) · d, five digits to a byte."""
    parts = [
        _ternary(lanes, lanes.cut(blocks, 0, 32), 5),
        _ternary(lanes, lanes.cut(blocks, 32, 48), 5),
        _ternary(lanes, lanes.cut(blocks, 48, 52), 4),
    ]
    wide = lanes.convert(lanes.join(parts), DType.U16)
    digits = lanes.shift_right(wide * 3, 8)
    return (floats(lanes, digits) - 1.0) * half(lanes, blocks, 52)


def _ternary(lanes: AbstractLanes, x: Lane, count: int) -> Lane:
    """Bytes that start with each of ``count`` digits in turn; products wrap around."""
    rows, size = lanes.shape(x)
    factors = lanes.constant(np.reshape(THREES[:count], (1, count, 1)), DType.U8)
    return flat(lanes, lanes.reshape(x, (rows, 1, size)) * factors)


def tq2_0(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """TQ2_0: (two bits − 1) · d."""
    count = lanes.shape(blocks)[0]
    codes = lanes.reshape(lanes.cut(blocks, 0, 64), (count, 2, 32))
    digits = flat(lanes, lanes.fields(codes, (0, 2, 4, 6), 3))
    return (floats(lanes, digits) - 1.0) * half(lanes, blocks, 64)


def e2m1_doubled(lanes: AbstractLanes, codes: Lane) -> Lane:
    """Twice the E2M1 number of codes (u8 below 16), as f32: 0 1 2 3 4 6 8 12 and negatives."""
    size = codes & 7
    normal = lanes.convert(size > 1, DType.U8)
    exponent = lanes.shift_right(size, 1)
    whole = lanes.shift_left((size & 1) | lanes.shift_left(normal, 1), exponent - normal)
    value = floats(lanes, whole)
    # Not −value: the zero of a negative code is positive.
    return lanes.select(codes > 7, 0.0 - value, value)


def mxfp4(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """MXFP4: E2M1 · 2^(e − 127)."""
    wide = lanes.convert(lanes.cut(blocks, 0, 1), DType.U32)
    # Half of 2^(code − 127), since the codes' numbers are doubled; below 2 it is subnormal.
    small = lanes.shift_left((wide & 0) + 0x00200000, wide & 1)
    bits = lanes.select(wide < 2, small, lanes.shift_left(wide - 1, 23))
    codes = flat(lanes, nibbles(lanes, lanes.cut(blocks, 1, 17)))
    return e2m1_doubled(lanes, codes) * lanes.bits(bits, DType.F32)


def nvfp4(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """NVFP4: E2M1 · unsigned E4M3, four groups of 16 to a block."""
    count = lanes.shape(blocks)[0]
    scale = lanes.take(_half_ue4m3(), lanes.cut(blocks, 0, 4))
    codes = nibbles(lanes, lanes.reshape(lanes.cut(blocks, 4, 36), (count, 4, 8)))
    values = e2m1_doubled(lanes, lanes.reshape(codes, (count, 4, 16)))
    return flat(lanes, values * lanes.reshape(scale, (count, 4, 1)))


@lru_cache(maxsize=1)
def _half_ue4m3() -> npt.NDArray[Any]:
    """Half of the unsigned E4M3 number of each byte; the top bit is ignored, 0x7F is zero."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * np.exp2(exponent - 7.0)
    value = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    value[0x7F] = 0
    return (value / 2).astype(np.float32)


def iq4_nl(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ4_NL: a table's entry · d."""
    codes = flat(lanes, nibbles(lanes, lanes.cut(blocks, 2, 18)))
    return lanes.choose(IQ4_VALUES, codes, DType.F32) * half(lanes, blocks, 0)


def iq4_xs(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ4_XS: a table's entry · (six-bit scale − 32) · d."""
    count = lanes.shape(blocks)[0]
    high = flat(lanes, lanes.fields(lanes.read(lanes.cut(blocks, 2, 4), DType.U16),
                                    range(0, 16, 2), 3))  # fmt: skip
    low = flat(lanes, lanes.fields(lanes.cut(blocks, 4, 8), (0, 4), 15, last=True))
    scale = floats(lanes, low | lanes.shift_left(lanes.convert(high, DType.U8), 4)) - 32.0
    scale = lanes.reshape(scale * half(lanes, blocks, 0), (count, 8, 1))
    codes = nibbles(lanes, lanes.reshape(lanes.cut(blocks, 8, 136), (count, 8, 16)))
    values = lanes.choose(IQ4_VALUES, lanes.reshape(codes, (count, 8, 32)), DType.F32)
    return flat(lanes, values * scale)
