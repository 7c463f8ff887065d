"""Decoders of GGUF's K blocks: 256 elements in sub-blocks with scales of their own.

A decoder takes blocks as u8[B, bytes] and gives f32[B, 256].

Source: the public layouts of the GGUF format (ggml).
"""

from __future__ import annotations

from rlx.dtypes import DType
from rlx.quant.blocks_plain import flat, floats, half, nibbles
from rlx.quant.lanes import AbstractLanes, Lane


def q2_k(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q2_K: two bits · scale − least, 16 sub-blocks with four bits for each."""
    count = lanes.shape(blocks)[0]
    both = lanes.cut(blocks, 0, 16)
    scale = floats(lanes, both & 15) * half(lanes, blocks, 80)
    least = floats(lanes, lanes.shift_right(both, 4)) * half(lanes, blocks, 82)
    planes = lanes.fields(lanes.reshape(lanes.cut(blocks, 16, 80), (count, 2, 32)), (0, 2, 4, 6), 3)
    codes = floats(lanes, lanes.reshape(planes, (count, 16, 16)))
    return flat(
        lanes,
        codes * lanes.reshape(scale, (count, 16, 1)) - lanes.reshape(least, (count, 16, 1)),
    )


def q3_k(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q3_K: (three bits − 4) · (six-bit scale − 32) · d."""
    count = lanes.shape(blocks)[0]
    low = flat(lanes, nibbles(lanes, lanes.cut(blocks, 96, 104)))
    high = flat(lanes, lanes.fields(lanes.cut(blocks, 104, 108), (0, 2, 4, 6), 3))
    scale = floats(lanes, low | lanes.shift_left(high, 4)) - 32.0
    scale = scale * half(lanes, blocks, 108)
    planes = lanes.fields(lanes.reshape(lanes.cut(blocks, 32, 96), (count, 2, 32)), (0, 2, 4, 6), 3)
    codes = floats(lanes, lanes.reshape(planes, (count, 16, 16)))
    top = lanes.fields(lanes.cut(blocks, 0, 32), range(8), 1)
    # A bit that is not set takes four away.
    codes = codes + (floats(lanes, lanes.reshape(top, (count, 16, 16))) * 4.0 - 4.0)
    return flat(lanes, codes * lanes.reshape(scale, (count, 16, 1)))


def _scales_and_mins(lanes: AbstractLanes, blocks: Lane) -> tuple[Lane, Lane]:
    """Scales and minima (f32[B, 8, 1]) of the eight sub-blocks of Q4_K and Q5_K."""
    count = lanes.shape(blocks)[0]
    first, second, mixed = (lanes.cut(blocks, at, at + 4) for at in (4, 8, 12))
    low, high = mixed & 15, lanes.shift_right(mixed, 4)
    scale = lanes.join([first & 63, low | (lanes.shift_right(first, 2) & 48)])
    least = lanes.join([second & 63, high | (lanes.shift_right(second, 2) & 48)])
    shape = (count, 8, 1)
    return (
        lanes.reshape(floats(lanes, scale) * half(lanes, blocks, 0), shape),
        lanes.reshape(floats(lanes, least) * half(lanes, blocks, 2), shape),
    )


def q4_k(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q4_K: nibble · scale − least, eight sub-blocks with six bits for each."""
    count = lanes.shape(blocks)[0]
    scale, least = _scales_and_mins(lanes, blocks)
    codes = nibbles(lanes, lanes.reshape(lanes.cut(blocks, 16, 144), (count, 4, 32)))
    codes = floats(lanes, lanes.reshape(codes, (count, 8, 32)))
    return flat(lanes, codes * scale - least)


def q5_k(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q5_K: as Q4_K, with fifth bits apart."""
    count = lanes.shape(blocks)[0]
    scale, least = _scales_and_mins(lanes, blocks)
    low = nibbles(lanes, lanes.reshape(lanes.cut(blocks, 48, 176), (count, 4, 32)))
    top = lanes.fields(lanes.cut(blocks, 16, 48), range(8), 1)
    codes = lanes.reshape(low, (count, 8, 32)) | lanes.shift_left(top, 4)
    return flat(lanes, floats(lanes, codes) * scale - least)


def q6_k(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q6_K: (six bits − 32) · signed scale · d."""
    count = lanes.shape(blocks)[0]
    low = nibbles(lanes, lanes.reshape(lanes.cut(blocks, 0, 128), (count, 2, 64)))
    top = lanes.fields(lanes.reshape(lanes.cut(blocks, 128, 192), (count, 2, 32)), (0, 2, 4, 6), 3)
    codes = lanes.reshape(low, (count, 256)) | lanes.shift_left(flat(lanes, top), 4)
    scale = floats(lanes, lanes.read(lanes.cut(blocks, 192, 208), DType.I8))
    scale = lanes.reshape(scale * half(lanes, blocks, 208), (count, 16, 1))
    values = lanes.reshape(floats(lanes, codes) - 32.0, (count, 16, 16))
    return flat(lanes, values * scale)


def q8_k(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """Q8_K: signed byte · d (f32); the sums at the end are ignored."""
    codes = lanes.read(lanes.cut(blocks, 4, 260), DType.I8)
    return floats(lanes, codes) * lanes.read(lanes.cut(blocks, 0, 4), DType.F32)
