"""Encoders of packed weights, in NumPy.

Scales are chosen as the format's authors do (from the extremes of a block), or by a search for the
least squared error (K blocks, MLX's affine groups). Then every code is the nearest one for the
scale as it is stored, so that an element's error is never larger than with codes chosen for the
unrounded scale.

Source: scales of Q4_0 to Q8_0 as in ggml; the searches are ours: alternating least
squares over codes and scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.quant import encoding_k, minifloat
from rlx.quant.lanes import NUMPY
from rlx.quant.minifloat import ScaledFormat
from rlx.quant.scaled import ScaleLayout, quantize_scaled
from rlx.quant.schemes import QuantScheme, SchemeKind, require_scheme

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
Packed: TypeAlias = "tuple[Array, Array | None, Array | None]"

_CHUNK_ELEMENTS = 1 << 16
"""Elements encoded at a time: it bounds intermediate arrays, and they stay in the cache."""


def encode(scheme: QuantScheme, x: Array) -> Array:
    """GGUF blocks of an array, in NumPy.

    Args:
        scheme: GGUF's Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K.
        x: float[..., K], finite, K a multiple of the block.

    Returns:
        u8[..., bytes].

    Raises:
        RlxError: the scheme has no encoder, or x is not finite.
        DTypeError: x is not floating.
        ShapeError: K is not a multiple of the block.
    """
    require_scheme("encode", scheme)
    encoder = _ENCODERS.get(scheme.kind)
    if encoder is None:
        known = ", ".join(kind.value for kind in _ENCODERS)
        raise RlxError(f"encode: one of {known} is required; got {scheme}. Use pack for others.")
    wide = _wide(scheme, x)
    size = scheme.block_size
    if wide.ndim == 0 or wide.shape[-1] % size:
        raise ShapeError(
            f"encode {scheme}: the last axis is required to be a multiple of {size}; got "
            f"{list(wide.shape)}. Pad it, or choose a scheme with smaller blocks."
        )
    blocks = wide.reshape(-1, size)
    result = np.empty((len(blocks), scheme.block_bytes), np.uint8)
    step = max(1, _CHUNK_ELEMENTS // size)
    for start in range(0, len(blocks), step):
        result[start : start + step] = encoder(blocks[start : start + step])
    return result.reshape(*wide.shape[:-1], wide.shape[-1] // size * scheme.block_bytes)


def pack(scheme: QuantScheme, x: Array) -> Packed:
    """Weight, scale and zero (None where the scheme has none) of a matrix, in NumPy.

    Args:
        scheme: any scheme that has an encoder.
        x: float[K, N], or float[N, K] for schemes that are stored by rows; finite.

    Raises:
        RlxError: the scheme has no encoder, or x is not finite.
        DTypeError: x is not floating.
        ShapeError: x is no matrix, or K is not a multiple of the block.
    """
    require_scheme("pack", scheme)
    if scheme.is_gguf:
        return encode(scheme, x), None, None
    wide = _wide(scheme, x)
    if wide.ndim != 2:
        raise ShapeError(
            f"pack {scheme}: a matrix is required; got {list(wide.shape)}. Reshape it."
        )
    if scheme.is_rows and wide.shape[1] % scheme.block:
        raise ShapeError(
            f"pack {scheme}: K is required to be a multiple of {scheme.block}; got [N, K] = "
            f"{list(wide.shape)}. Pad it, or choose a smaller group."
        )
    packer = _PACKERS[scheme.kind]
    if not scheme.is_rows:
        return packer(scheme, wide)
    step = max(1, _CHUNK_ELEMENTS // max(wide.shape[1], 1))
    parts = [packer(scheme, wide[i : i + step]) for i in range(0, max(len(wide), 1), step)]
    axis = 1 if scheme.kind is SchemeKind.MXFP4X2 else 0  # after the axis of the planes
    weight, scale, zero = zip(*parts, strict=True)
    return _joined(weight, axis), _joined(scale, axis), _joined(zero, axis)  # pyright: ignore[reportReturnType]


def _joined(parts: tuple[Array | None, ...], axis: int) -> Array | None:
    arrays = [part for part in parts if part is not None]
    return np.concatenate(arrays, axis=axis) if arrays else None


def _wide(scheme: QuantScheme, x: Array) -> Array:
    from rlx.dtypes import as_dtype

    if not as_dtype(x.dtype).is_float:
        raise DTypeError(f"encode {scheme}: x is required to be floating; got {x.dtype}.")
    wide = np.ascontiguousarray(x, np.float32).reshape(x.shape)
    if not np.isfinite(wide).all():
        raise RlxError(
            f"encode {scheme}: x is required to be finite; it holds NaN or infinity. "
            "Look for what made it so."
        )
    return wide


def _codes(x: Array, scale: Array, offset: Array | float, most: int) -> Array:
    """Nearest codes 0 … most for x = scale · code + offset; 0 where the scale is 0."""
    safe = np.where(scale == 0, np.float32(1), scale)
    with np.errstate(over="ignore"):  # a subnormal scale; the clip decides
        ratio = np.where(scale == 0, np.float32(0), (x - offset) / safe)
    return np.clip(np.rint(ratio), 0, most).astype(np.uint8)


def _f16(x: Array) -> tuple[Array, Array]:
    """Bytes of x as f16, and the numbers that they hold as f32; too large saturates."""
    stored = np.clip(x, -65504, 65504).astype(np.float16)
    return stored.view(np.uint8).reshape(len(x), 2), stored.astype(np.float32)


def _extreme(blocks: Array) -> Array:
    """The element of the greatest size of each block, with its sign."""
    place = np.argmax(np.abs(blocks), axis=1, keepdims=True)
    return np.take_along_axis(blocks, place, axis=1)


def _halves(codes: Array) -> Array:
    """Low nibbles of the first half of each block with those of the second half above them."""
    middle = codes.shape[1] // 2
    return codes[:, :middle] & 15 | (codes[:, middle:] & 15) << 4


def _fifth_bits(codes: Array) -> Array:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _symmetric(blocks: Array, bits: int) -> tuple[Array, Array]:
    half = 1 << (bits - 1)
    stored, scale = _f16(_extreme(blocks) / -half)
    return stored, _codes(blocks, scale, scale * -half, 2 * half - 1)


def _affine(blocks: Array, bits: int) -> tuple[Array, Array]:
    least = blocks.min(axis=1, keepdims=True)
    most = (1 << bits) - 1
    spread = blocks.max(axis=1, keepdims=True).astype(np.float64) - least
    stored, scale = _f16((spread / most).astype(np.float32))
    offset, low = _f16(least)
    return np.concatenate([stored, offset], axis=1), _codes(blocks, scale, low, most)


def q4_0(blocks: Array) -> Array:
    """Blocks of Q4_0 (u8[B, 18]) for f32[B, 32]."""
    head, codes = _symmetric(blocks, 4)
    return np.concatenate([head, _halves(codes)], axis=1)


def q4_1(blocks: Array) -> Array:
    """Blocks of Q4_1 (u8[B, 20]) for f32[B, 32]."""
    head, codes = _affine(blocks, 4)
    return np.concatenate([head, _halves(codes)], axis=1)


def q5_0(blocks: Array) -> Array:
    """Blocks of Q5_0 (u8[B, 22]) for f32[B, 32]."""
    head, codes = _symmetric(blocks, 5)
    return np.concatenate([head, _fifth_bits(codes), _halves(codes)], axis=1)


def q5_1(blocks: Array) -> Array:
    """Blocks of Q5_1 (u8[B, 24]) for f32[B, 32]."""
    head, codes = _affine(blocks, 5)
    return np.concatenate([head, _fifth_bits(codes), _halves(codes)], axis=1)


def q8_0(blocks: Array) -> Array:
    """Blocks of Q8_0 (u8[B, 34]) for f32[B, 32]."""
    head, scale = _f16(np.abs(blocks).max(axis=1, keepdims=True) / 127)
    codes = _codes(blocks, scale, scale * -128, 255)
    return np.concatenate([head, codes ^ 0x80], axis=1)


_ENCODERS: dict[SchemeKind, Callable[[Array], Array]] = {
    SchemeKind.GGUF_Q4_0: q4_0,
    SchemeKind.GGUF_Q4_1: q4_1,
    SchemeKind.GGUF_Q5_0: q5_0,
    SchemeKind.GGUF_Q5_1: q5_1,
    SchemeKind.GGUF_Q8_0: q8_0,
    SchemeKind.GGUF_Q4K: encoding_k.q4_k,
    SchemeKind.GGUF_Q5K: encoding_k.q5_k,
    SchemeKind.GGUF_Q6K: encoding_k.q6_k,
}


def _rows_in_blocks(scheme: QuantScheme, x: Array) -> tuple[Array, Array, Array]:
    """Greatest and least of each block of rows ([⌈K/b⌉, N]), and the block of each row."""
    block = np.arange(len(x)) // scheme.block
    starts = np.arange(0, len(x), scheme.block)
    return np.maximum.reduceat(x, starts), np.minimum.reduceat(x, starts), block


def _int8(scheme: QuantScheme, x: Array) -> Packed:
    high, low, block = _rows_in_blocks(scheme, x)
    scale = np.maximum(high, -low) / np.float32(127)
    safe = np.where(scale == 0, np.float32(1), scale)[block]
    return np.clip(np.rint(x / safe), -127, 127).astype(np.int8), scale, None


def _with_zero(scheme: QuantScheme, x: Array, least: int, most: int) -> tuple[Array, Array, Array]:
    """Codes (f32), scales and whole zero points whose ends are least and most."""
    high, low, block = _rows_in_blocks(scheme, x)
    high, low = np.maximum(high, 0), np.minimum(low, 0)  # zero stays exact
    scale = ((high.astype(np.float64) - low) / (most - least)).astype(np.float32)
    safe = np.where(scale == 0, np.float32(1), scale)
    zero = np.clip(np.rint(least - low / safe), least, most)
    codes = np.clip(np.rint(x / safe[block] + zero[block]), least, most)
    return codes, scale, zero.astype(np.float32)


def _int8_asym(scheme: QuantScheme, x: Array) -> Packed:
    codes, scale, zero = _with_zero(scheme, x, -128, 127)
    return codes.astype(np.int8), scale, zero


def _int4(scheme: QuantScheme, x: Array) -> Packed:
    codes, scale, zero = _with_zero(scheme, x, 0, 15)
    return _flat_nibbles(codes.astype(np.uint8)), scale, zero


def _flat_nibbles(codes: Array) -> Array:
    flat = codes.reshape(-1)
    flat = np.pad(flat, (0, flat.size % 2))
    return flat[::2] | flat[1::2] << 4


def _fp8(scheme: QuantScheme, x: Array) -> Packed:
    e4m3 = scheme.kind is SchemeKind.FP8_E4M3
    form = ScaledFormat.F8E4M3 if e4m3 else ScaledFormat.F8E5M2
    codes, scale = quantize_scaled(x.T, form, ScaleLayout.per_row())
    return np.ascontiguousarray(codes.T), scale.reshape(-1), None


def _nvfp4(scheme: QuantScheme, x: Array) -> Packed:
    high, low, block = _rows_in_blocks(scheme, x)
    amax = np.maximum(high, -low) / np.float32(6)
    most = amax.max(initial=0)
    whole = np.float32(most / 448 if most > 0 else 1)
    scale = ScaledFormat.F8E4M3.encode(amax / whole)
    wide = ScaledFormat.F8E4M3.decode(scale)[block] * whole
    ratio = np.where(wide == 0, np.float32(0), x / np.where(wide == 0, np.float32(1), wide))
    return _flat_nibbles(ScaledFormat.F4E2M1.encode(ratio)), scale, whole.reshape(1)


def _groups(scheme: QuantScheme, x: Array) -> Array:
    return x.reshape(len(x), x.shape[1] // scheme.block, scheme.block)


def _words(codes: Array, bits: int) -> Array:
    """Codes of each row side by side in u32 words, lowest bits first."""
    planes = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits]
    raw = np.packbits(planes.reshape(len(codes), -1), axis=-1, bitorder="little")
    return raw.view("<u4").astype(np.uint32)


def _mlx_affine(scheme: QuantScheme, x: Array) -> Packed:
    groups = _groups(scheme, x)
    most = (1 << scheme.bits) - 1
    wide, least = encoding_k.scale_and_least(groups.astype(np.float64), most, below=False)
    scale, low = wide.astype(np.float32), least.astype(np.float32)
    codes = _codes(groups, scale, low, most).reshape(x.shape)
    return _words(codes, scheme.bits), scale[..., 0], low[..., 0]


def _mlx_mx(scheme: QuantScheme, x: Array) -> Packed:
    four = scheme.kind is SchemeKind.MLX_MXFP4
    form = ScaledFormat.F4E2M1 if four else ScaledFormat.F8E4M3
    codes, scale = quantize_scaled(x, form, ScaleLayout.mx(scheme.block))
    return _words(codes, scheme.code_bits), scale, None


def _mxfp4x2(scheme: QuantScheme, x: Array) -> Packed:
    layout = ScaleLayout.mx(scheme.block)
    planes: list[Array] = []
    scales: list[Array] = []
    rest = x
    for _ in range(2):
        codes, scale = quantize_scaled(rest, ScaledFormat.F4E2M1, layout)
        planes.append(codes[:, ::2] | codes[:, 1::2] << 4)
        scales.append(scale)
        power = minifloat.decode_e8m0(NUMPY, scale)
        rest = rest - ScaledFormat.F4E2M1.decode(codes) * np.repeat(power, scheme.block, axis=1)
    return np.stack(planes), np.stack(scales), None


_PACKERS: dict[SchemeKind, Callable[[QuantScheme, Array], Packed]] = {
    SchemeKind.INT8: _int8,
    SchemeKind.INT8_ASYM: _int8_asym,
    SchemeKind.INT4: _int4,
    SchemeKind.FP8_E4M3: _fp8,
    SchemeKind.FP8_E5M2: _fp8,
    SchemeKind.NVFP4: _nvfp4,
    SchemeKind.MLX_AFFINE: _mlx_affine,
    SchemeKind.MLX_MXFP4: _mlx_mx,
    SchemeKind.MLX_MXFP8: _mlx_mx,
    SchemeKind.MXFP4X2: _mxfp4x2,
}
