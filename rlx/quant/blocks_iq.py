"""Decoders of GGUF's IQ1, IQ2 and IQ3 blocks: grids of small numbers, signs and scales.

A decoder takes blocks as u8[B, bytes] and gives f32[B, 256].

Source: the public layouts of the GGUF format (ggml).
"""

from __future__ import annotations

from rlx.dtypes import DType
from rlx.quant.blocks_plain import flat, floats, half
from rlx.quant.iq_tables import grid
from rlx.quant.lanes import AbstractLanes, Lane


def _entries(lanes: AbstractLanes, table: str, codes: Lane) -> Lane:
    """Numbers (f32[…, 8] or f32[…, 4]) of a grid's entries."""
    packed = lanes.take(grid(table), codes)
    if table.startswith("iq3"):
        fields = floats(lanes, lanes.fields(packed, (0, 4, 8, 12), 7, last=True))
        if table == "iq3s":  # 1, 3, …, 15
            return fields * 2.0 + 1.0
        # 4, 12, …, 52 and then 62
        return lanes.select(lanes.equal(fields, 7.0), 62.0, fields * 8.0 + 4.0)
    fields = floats(lanes, lanes.fields(packed, range(0, 16, 2), 3, last=True))
    if table == "iq1s":  # −1, 0, 1
        return fields - 1.0
    # 8, 25, 43
    return lanes.select(lanes.equal(fields, 2.0), 43.0, fields * 17.0 + 8.0)


def _signs(lanes: AbstractLanes, x: Lane) -> Lane:
    """Bytes of sign bits → f32[…, 8] of 1 and −1."""
    return floats(lanes, lanes.fields(x, range(8), 1, last=True)) * -2.0 + 1.0


def _even_signs(lanes: AbstractLanes, x: Lane) -> Lane:
    """Seven sign bits, and an eighth that makes the number of minus signs even."""
    byte = lanes.convert(x, DType.U8)
    folded = byte ^ lanes.shift_right(byte, 4)
    folded = folded ^ lanes.shift_right(folded, 2)
    odd = (folded ^ lanes.shift_right(folded, 1)) & 1
    return _signs(lanes, byte | lanes.shift_left(odd, 7))


def _nibble_scales(lanes: AbstractLanes, x: Lane) -> Lane:
    """Bytes [B, n] → low and high nibbles in turn, f32[B, 2n]."""
    return floats(lanes, flat(lanes, lanes.fields(x, (0, 4), 15, last=True)))


def _joined(lanes: AbstractLanes, low: Lane, high: Lane) -> Lane:
    """Codes (u16) from their low bytes and what stands above them."""
    high = lanes.shift_left(lanes.convert(high, DType.U16), 8)
    return lanes.convert(low, DType.U16) | high


def iq2_xxs(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ2_XXS: 256 groups of eight, a scale for each 32."""
    count = lanes.shape(blocks)[0]
    groups = lanes.reshape(lanes.cut(blocks, 2, 66), (count, 8, 8))
    words = lanes.read(lanes.cut(groups, 4, 8), DType.U32)
    words = lanes.reshape(words, (count, 8))
    scale = (floats(lanes, lanes.shift_right(words, 28)) + 0.5) * half(lanes, blocks, 0) * 0.25
    signs = _even_signs(lanes, lanes.fields(words, (0, 7, 14, 21), 127, last=True))
    values = _entries(lanes, "iq2xxs", lanes.cut(groups, 0, 4))
    return flat(lanes, values * lanes.reshape(scale, (count, 8, 1, 1)) * signs)


def iq2_xs(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ2_XS: 512 groups of eight, a scale for each 16."""
    count = lanes.shape(blocks)[0]
    codes = lanes.read(lanes.cut(blocks, 2, 66), DType.U16)
    scale = _nibble_scales(lanes, lanes.cut(blocks, 66, 74))
    scale = (scale + 0.5) * half(lanes, blocks, 0) * 0.25
    signs = _even_signs(lanes, lanes.shift_right(codes, 9))
    values = _entries(lanes, "iq2xs", codes & 511)
    shape = (count, 16, 2, 8)
    scaled = lanes.reshape(values, shape) * lanes.reshape(scale, (count, 16, 1, 1))
    return flat(lanes, scaled * lanes.reshape(signs, shape))


def iq2_s(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ2_S: 1024 groups of eight, all signs stored."""
    count = lanes.shape(blocks)[0]
    high = flat(lanes, lanes.fields(lanes.cut(blocks, 66, 74), (0, 2, 4, 6), 3, last=True))
    codes = _joined(lanes, lanes.cut(blocks, 2, 34), high)
    scale = _nibble_scales(lanes, lanes.cut(blocks, 74, 82))
    scale = (scale + 0.5) * half(lanes, blocks, 0) * 0.25
    signs = _signs(lanes, lanes.cut(blocks, 34, 66))
    shape = (count, 16, 2, 8)
    values = lanes.reshape(_entries(lanes, "iq2s", codes), shape)
    scaled = values * lanes.reshape(scale, (count, 16, 1, 1))
    return flat(lanes, scaled * lanes.reshape(signs, shape))


def iq3_xxs(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ3_XXS: 256 groups of four, a scale for each 32."""
    count = lanes.shape(blocks)[0]
    words = lanes.read(lanes.cut(blocks, 66, 98), DType.U32)
    scale = (floats(lanes, lanes.shift_right(words, 28)) + 0.5) * half(lanes, blocks, 0) * 0.5
    signs = _even_signs(lanes, lanes.fields(words, (0, 7, 14, 21), 127, last=True))
    values = _entries(lanes, "iq3xxs", lanes.cut(blocks, 2, 66))
    values = lanes.reshape(values, (count, 8, 4, 8))
    return flat(lanes, values * lanes.reshape(scale, (count, 8, 1, 1)) * signs)


def iq3_s(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ3_S: 512 groups of four, all signs stored."""
    count = lanes.shape(blocks)[0]
    high = flat(lanes, lanes.fields(lanes.cut(blocks, 66, 74), range(8), 1, last=True))
    codes = _joined(lanes, lanes.cut(blocks, 2, 66), high)
    scale = _nibble_scales(lanes, lanes.cut(blocks, 106, 110)) * 2.0 + 1.0
    scale = lanes.reshape(scale * half(lanes, blocks, 0), (count, 8, 1, 1))
    signs = lanes.reshape(_signs(lanes, lanes.cut(blocks, 74, 106)), (count, 8, 4, 8))
    values = lanes.reshape(_entries(lanes, "iq3s", codes), (count, 8, 4, 8))
    return flat(lanes, values * scale * signs)


def iq1_s(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ1_S: 2048 ternary groups of eight, shifted by ±1/8, a scale for each 32."""
    count = lanes.shape(blocks)[0]
    words = lanes.read(lanes.cut(blocks, 34, 50), DType.U16)
    scale = floats(lanes, lanes.shift_right(words, 12) & 7) * 2.0 + 1.0
    scale = lanes.reshape(scale * half(lanes, blocks, 0), (count, 8, 1, 1))
    shift = floats(lanes, lanes.shift_right(words, 15)) * -0.25 + 0.125
    high = flat(lanes, lanes.fields(words, (0, 3, 6, 9), 7, last=True))
    codes = _joined(lanes, lanes.cut(blocks, 2, 34), high)
    values = lanes.reshape(_entries(lanes, "iq1s", codes), (count, 8, 4, 8))
    return flat(lanes, (values + lanes.reshape(shift, (count, 8, 1, 1))) * scale)


def iq1_m(lanes: AbstractLanes, blocks: Lane) -> Lane:
    """IQ1_M: as IQ1_S, with a scale for each 16 and a shift for each eight."""
    count = lanes.shape(blocks)[0]
    words = lanes.read(lanes.cut(blocks, 48, 56), DType.U16)
    # The f16 scale lies in the top four bits of the four words.
    pieces = [
        lanes.shift_right(lanes.cut(words, i, i + 1) & 0xF000, shift)
        for i, shift in enumerate((12, 8, 4, 0))
    ]
    whole = pieces[0] | pieces[1] | pieces[2] | pieces[3]
    outer = floats(lanes, lanes.bits(whole, DType.F16))
    scale = flat(lanes, lanes.fields(words, (0, 3, 6, 9), 7, last=True))
    scale = lanes.reshape((floats(lanes, scale) * 2.0 + 1.0) * outer, (count, 16, 1, 1))
    high = flat(lanes, lanes.fields(lanes.cut(blocks, 32, 48), (0, 4), 15, last=True))
    codes = _joined(lanes, lanes.cut(blocks, 0, 32), high & 7)
    shift = floats(lanes, lanes.shift_right(high, 3)) * -0.25 + 0.125
    values = lanes.reshape(_entries(lanes, "iq1s", codes), (count, 16, 2, 8))
    return flat(lanes, (values + lanes.reshape(shift, (count, 16, 2, 1))) * scale)
