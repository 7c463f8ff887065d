"""Decoding of packed weights of every scheme, in NumPy and in graphs from one text.

``decode`` and ``unpack`` compute; ``weights`` is what both they and the ops are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.quant import blocks_iq, blocks_k, blocks_plain, minifloat
from rlx.quant.lanes import NUMPY, AbstractLanes, Lane
from rlx.quant.minifloat import ScaledFormat
from rlx.quant.schemes import QuantScheme, SchemeKind, require_scheme

if TYPE_CHECKING:
    import numpy.typing as npt

Tensors: TypeAlias = "tuple[npt.NDArray[Any], npt.NDArray[Any] | None, npt.NDArray[Any] | None]"
Decoder: TypeAlias = "Callable[[AbstractLanes, Lane], Lane]"

BLOCKS: dict[SchemeKind, Decoder] = {
    SchemeKind.GGUF_Q4_0: blocks_plain.q4_0,
    SchemeKind.GGUF_Q4_1: blocks_plain.q4_1,
    SchemeKind.GGUF_Q5_0: blocks_plain.q5_0,
    SchemeKind.GGUF_Q5_1: blocks_plain.q5_1,
    SchemeKind.GGUF_Q8_0: blocks_plain.q8_0,
    SchemeKind.GGUF_Q2K: blocks_k.q2_k,
    SchemeKind.GGUF_Q3K: blocks_k.q3_k,
    SchemeKind.GGUF_Q4K: blocks_k.q4_k,
    SchemeKind.GGUF_Q5K: blocks_k.q5_k,
    SchemeKind.GGUF_Q6K: blocks_k.q6_k,
    SchemeKind.GGUF_Q8K: blocks_k.q8_k,
    SchemeKind.GGUF_IQ4NL: blocks_plain.iq4_nl,
    SchemeKind.GGUF_IQ4XS: blocks_plain.iq4_xs,
    SchemeKind.GGUF_IQ2XXS: blocks_iq.iq2_xxs,
    SchemeKind.GGUF_IQ2XS: blocks_iq.iq2_xs,
    SchemeKind.GGUF_IQ2S: blocks_iq.iq2_s,
    SchemeKind.GGUF_IQ3XXS: blocks_iq.iq3_xxs,
    SchemeKind.GGUF_IQ3S: blocks_iq.iq3_s,
    SchemeKind.GGUF_IQ1S: blocks_iq.iq1_s,
    SchemeKind.GGUF_IQ1M: blocks_iq.iq1_m,
    SchemeKind.GGUF_TQ1_0: blocks_plain.tq1_0,
    SchemeKind.GGUF_TQ2_0: blocks_plain.tq2_0,
    SchemeKind.GGUF_MXFP4: blocks_plain.mxfp4,
    SchemeKind.GGUF_NVFP4: blocks_plain.nvfp4,
}

_CHUNK_ELEMENTS = 1 << 16
"""Numbers decoded at a time: it bounds intermediate arrays, and they stay in the cache."""


def decode(scheme: QuantScheme, packed: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers of GGUF blocks, in NumPy.

    Args:
        scheme: a GGUF scheme.
        packed: u8[..., bytes], whole blocks along the last axis.

    Returns:
        f32[..., elements].

    Raises:
        RlxError: the scheme is not one of GGUF.
        DTypeError: ``packed`` is not u8.
        ShapeError: its last axis does not hold whole blocks.
    """
    require_scheme("decode", scheme)
    decoder = BLOCKS.get(scheme.kind)
    if decoder is None:
        raise RlxError(f"decode: a GGUF scheme is required; got {scheme}. Use unpack.")
    size, width = scheme.block_size, scheme.block_bytes
    if packed.dtype != np.uint8:
        raise DTypeError(f"decode {scheme}: packed is required to be u8; got {packed.dtype}.")
    if packed.ndim == 0 or packed.shape[-1] % width:
        raise ShapeError(
            f"decode {scheme}: the last axis is required to hold whole blocks of {width} bytes; "
            f"got u8{list(packed.shape)}. Check the type and that nothing is cut off."
        )
    blocks = np.ascontiguousarray(packed).reshape(-1, width)
    result = np.empty((len(blocks), size), np.float32)
    step = max(1, _CHUNK_ELEMENTS // size)
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            result[start : start + step] = decoder(NUMPY, blocks[start : start + step])
    return result.reshape(*packed.shape[:-1], packed.shape[-1] // width * size)


def unpack(
    scheme: QuantScheme,
    weight: npt.NDArray[Any],
    scale: npt.NDArray[Any] | None = None,
    zero: npt.NDArray[Any] | None = None,
    *,
    size: int = 0,
) -> npt.NDArray[Any]:
    """The numbers of a packed weight of any scheme, in NumPy.

    Args:
        scheme: what the bytes mean.
        weight: codes, shaped as the scheme's table says.
        scale: where the scheme has one.
        zero: zero points, biases or the global scale, where the scheme has them.
        size: K for int4 and nvfp4, whose flat codes do not say it; 0 means whole blocks.

    Returns:
        f32[K, N], or f32[N, K] for schemes that are stored by rows.

    Raises:
        ShapeError: shapes that do not belong together.
        DTypeError: a dtype that the scheme does not have.
    """
    from rlx.ir.attributes import Literal
    from rlx.quant import shapes

    require_scheme("unpack", scheme)
    types = [None if a is None else Literal(a).type for a in (weight, scale, zero)]
    first = types[0]
    if first is None:
        raise ShapeError(f"unpack {scheme}: a weight is required; got None.")
    rows, cols = shapes.matrix(scheme, first, types[1], types[2], size)
    if scheme.is_gguf:
        return decode(scheme, weight)
    result = np.empty((rows, cols), np.float32)
    # Blocks stay whole, and so do bytes of two nibbles.
    whole = 1 if scheme.is_rows else math.lcm(scheme.block_size, 2)
    step = max(1, _CHUNK_ELEMENTS // max(cols, 1) // whole) * whole
    with np.errstate(all="ignore"):
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            parts = _slices(scheme, (weight, scale, zero), start, stop, cols)
            result[start:stop] = weights(NUMPY, scheme, *parts, (stop - start, cols))
    return result


def _slices(scheme: QuantScheme, tensors: Tensors, start: int, stop: int, cols: int) -> Tensors:
    """The tensors of some rows of the result; ``start`` is at the beginning of a block."""
    weight, scale, zero = tensors
    if scheme.kind is SchemeKind.MXFP4X2:
        return weight[:, start:stop], _cut(scale, slice(None), slice(start, stop)), None
    if scheme.is_rows:
        rows = slice(start, stop)
        return weight[rows], _cut(scale, rows), _cut(zero, rows)
    if scheme.kind in (SchemeKind.INT4, SchemeKind.NVFP4):
        weight = weight[start * cols // 2 : -(-stop * cols // 2)]
    else:
        weight = weight[start:stop]
    blocks = slice(start // scheme.block_size, -(-stop // scheme.block_size))
    match scheme.kind:
        case SchemeKind.FP8_E4M3 | SchemeKind.FP8_E5M2:
            return weight, scale, None
        case SchemeKind.NVFP4:
            return weight, _cut(scale, blocks), zero
        case _:
            return weight, _cut(scale, blocks), _cut(zero, blocks)


def _cut(array: npt.NDArray[Any] | None, *places: slice) -> npt.NDArray[Any] | None:
    return None if array is None else array[places]


def weights(
    lanes: AbstractLanes,
    scheme: QuantScheme,
    weight: Lane,
    scale: Lane | None,
    zero: Lane | None,
    shape: tuple[Any, int],
) -> Lane:
    """The numbers (f32) of a packed weight.

    Args:
        lanes: what computes.
        scheme: what the bytes mean.
        weight: codes.
        scale: scales, or None.
        zero: zero points, biases or the global scale, or None.
        shape: of the result: [K, N], or [N, K] for schemes that are stored by rows.
    """
    rows, cols = shape
    match scheme.kind:
        case SchemeKind.INT4 | SchemeKind.NVFP4:
            codes = _flat_nibbles(lanes, weight, shape)
            return from_codes(lanes, scheme, codes, scale, zero, shape)
        case k if k in _BY_COLUMNS:
            return from_codes(lanes, scheme, weight, scale, zero, shape)
        case SchemeKind.MLX_AFFINE:
            codes = lanes.convert(_bit_stream(lanes, weight, scheme.bits, shape), DType.F32)
            wide = _along(lanes, lanes.convert(scale, DType.F32), scheme.block, shape)
            least = _along(lanes, lanes.convert(zero, DType.F32), scheme.block, shape)
            return codes * wide + least
        case SchemeKind.MLX_MXFP4 | SchemeKind.MLX_MXFP8:
            codes = _bit_stream(lanes, weight, scheme.code_bits, shape)
            values = minifloat.decode(lanes, _FORMATS[scheme.kind], codes)
            wide = minifloat.decode_e8m0(lanes, scale)
            return values * _along(lanes, wide, scheme.block, shape)
        case SchemeKind.MXFP4X2:
            codes = lanes.fields(weight, (0, 4), 15, last=True)
            values = minifloat.decode(
                lanes, ScaledFormat.F4E2M1, lanes.reshape(codes, (2, rows, cols))
            )
            wide = minifloat.decode_e8m0(
                lanes, lanes.reshape(scale, (2 * rows, cols // scheme.block))
            )
            wide = _along(lanes, wide, scheme.block, (2 * rows, cols))
            both = lanes.reshape(values, (2, rows * cols)) * lanes.reshape(wide, (2, rows * cols))
            return lanes.reshape(_sum_of_two(lanes, both, rows * cols), shape)
        case _:
            blocks = cols // scheme.block_size
            packed = lanes.reshape(weight, (rows * blocks, scheme.block_bytes))
            return lanes.reshape(BLOCKS[scheme.kind](lanes, packed), shape)


def from_codes(
    lanes: AbstractLanes,
    scheme: QuantScheme,
    codes: Lane,
    scale: Lane | None,
    zero: Lane | None,
    shape: tuple[int, Any],
) -> Lane:
    """The numbers (f32) of codes [K, N], one to an element, of a scheme that is stored so."""
    rows, cols = shape
    match scheme.kind:
        case SchemeKind.FP8_E4M3 | SchemeKind.FP8_E5M2:
            values = minifloat.decode(lanes, _FORMATS[scheme.kind], codes)
            return values if scale is None else values * scale
        case SchemeKind.NVFP4:
            values = minifloat.decode(lanes, ScaledFormat.F4E2M1, codes)
            wide = minifloat.decode(lanes, ScaledFormat.F8E4M3, scale)
            wide = lanes.select(lanes.equal(wide, wide), wide, 0.0)
            values = values * _down(lanes, wide, scheme.block, rows, cols)
            return values if zero is None else values * zero
        case _:
            wide = lanes.convert(codes, DType.F32)
            if zero is not None:
                wide = wide - _down(lanes, zero, scheme.block, rows, cols)
            return wide * _down(lanes, scale, scheme.block, rows, cols)


_BY_COLUMNS = (
    SchemeKind.INT8, SchemeKind.INT8_ASYM, SchemeKind.FP8_E4M3, SchemeKind.FP8_E5M2,
)  # fmt: skip
_FORMATS = {
    SchemeKind.FP8_E4M3: ScaledFormat.F8E4M3,
    SchemeKind.FP8_E5M2: ScaledFormat.F8E5M2,
    SchemeKind.MLX_MXFP4: ScaledFormat.F4E2M1,
    SchemeKind.MLX_MXFP8: ScaledFormat.F8E4M3,
}


def _sum_of_two(lanes: AbstractLanes, both: Lane, size: Any) -> Lane:
    """Sum of the two rows of [2, size]."""
    flat = lanes.reshape(both, (1, 2 * size))
    return lanes.cut(flat, 0, size) + lanes.cut(flat, size, 2 * size)


def _down(lanes: AbstractLanes, x: Lane, block: int, rows: int, cols: Any) -> Lane:
    """[⌈rows / block⌉, cols] → [rows, cols], each row repeated for its block."""
    block = min(block, max(rows, 1))  # no wider than there is something to scale
    count = -(-rows // block)
    wide = lanes.expand(lanes.reshape(x, (count, 1, cols)), (count, block, cols))
    wide = lanes.reshape(wide, (1, count * block * cols))
    return lanes.reshape(lanes.cut(wide, 0, rows * cols), (rows, cols))


def _along(lanes: AbstractLanes, x: Lane, block: int, shape: tuple[Any, int]) -> Lane:
    """[rows, cols / block] → [rows, cols], each number repeated for its block."""
    rows, cols = shape
    count = cols // block
    wide = lanes.expand(lanes.reshape(x, (rows, count, 1)), (rows, count, block))
    return lanes.reshape(wide, shape)


def _flat_nibbles(lanes: AbstractLanes, weight: Lane, shape: tuple[Any, int]) -> Lane:
    """⌈K·N/2⌉ bytes → codes [K, N], low nibble first."""
    rows, cols = shape
    bytes_ = -(-rows * cols // 2)
    codes = lanes.fields(lanes.reshape(weight, (1, bytes_)), (0, 4), 15, last=True)
    codes = lanes.reshape(codes, (1, 2 * bytes_))
    return lanes.reshape(lanes.cut(codes, 0, rows * cols), shape)


def _bit_stream(lanes: AbstractLanes, weight: Lane, bits: int, shape: tuple[Any, int]) -> Lane:
    """Rows of u32 words → codes (u8) that lie side by side in their bits, lowest first."""
    rows, cols = shape
    if 32 % bits == 0:
        codes = lanes.fields(weight, range(0, 32, bits), (1 << bits) - 1, last=True)
        return lanes.reshape(lanes.convert(codes, DType.U8), shape)
    # 3, 5 and 6 bits: eight codes take ``bits`` bytes, and a code spans two bytes at most.
    count = cols // 8
    stream = lanes.reshape(_bytes(lanes, weight), (rows * count, bits))
    wide = lanes.convert(stream, DType.U16)
    codes: list[Lane] = []
    for place in range(8):
        first, offset = divmod(place * bits, 8)
        part = lanes.cut(wide, first, first + 1)
        if offset + bits > 8:
            part = part | lanes.shift_left(lanes.cut(wide, first + 1, first + 2), 8)
        codes.append(lanes.shift_right(part, offset) & ((1 << bits) - 1))
    return lanes.reshape(lanes.convert(lanes.join(codes), DType.U8), shape)


def _bytes(lanes: AbstractLanes, words: Lane) -> Lane:
    """u32 words → their bytes on a new last axis, lowest first."""
    return lanes.convert(lanes.fields(words, (0, 8, 16, 24), 255, last=True), DType.U8)
