"""Packed blocks taken apart for devices whose products read 4- and 8-bit integers themselves.

value = code · scale + least, a scale and a least number for each group along K

Codes of five and six bits are a plane of four bits and one of the rest, in which four or two runs
of 32 codes share the bits of a number. Scales of K blocks stay whole numbers, with the block's own
unit beside them. So all parts together have the bytes of the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import RlxError
from rlx.quant.blocks_plain import flat, half, nibbles
from rlx.quant.lanes import NUMPY
from rlx.quant.schemes import QuantScheme, SchemeKind

if TYPE_CHECKING:
    import numpy.typing as npt


@final
@dataclass(frozen=True)
class NativePart:
    """One array of a weight, [K / every, N].

    Attributes:
        name: what it holds: ``codes``, ``high`` (their bits from the fifth on), ``scale`` and
            ``least``, with ``_unit`` for what a block multiplies them by, and ``tops`` for the two
            bits from the fifth on of each: first those of the scale.
        dtype: of it.
        every: numbers along K for each of its own.
    """

    name: str
    dtype: DType
    every: int = 1


_F16_SCALE = NativePart("scale", DType.F16, 32)
_F16_LEAST = NativePart("least", DType.F16, 32)
_FOUR = NativePart("codes", DType.U4)
_FIFTH = NativePart("high", DType.U4, 4)
_TOP = NativePart("high", DType.U4, 2)
_SIX_BITS = (
    NativePart("scale", DType.U4, 32),
    NativePart("least", DType.U4, 32),
    NativePart("tops", DType.U4, 32),
    NativePart("scale_unit", DType.F16, 256),
    NativePart("least_unit", DType.F16, 256),
)
KINDS: dict[SchemeKind, tuple[NativePart, ...]] = {
    SchemeKind.GGUF_Q4_0: (NativePart("codes", DType.I4), _F16_SCALE),
    SchemeKind.GGUF_Q4_1: (_FOUR, _F16_SCALE, _F16_LEAST),
    SchemeKind.GGUF_Q5_0: (_FOUR, _FIFTH, _F16_SCALE),
    SchemeKind.GGUF_Q5_1: (_FOUR, _FIFTH, _F16_SCALE, _F16_LEAST),
    SchemeKind.GGUF_Q8_0: (NativePart("codes", DType.I8), _F16_SCALE),
    SchemeKind.GGUF_Q4K: (_FOUR, *_SIX_BITS),
    SchemeKind.GGUF_Q5K: (_FOUR, _FIFTH, *_SIX_BITS),
    SchemeKind.GGUF_Q6K: (
        _FOUR,
        _TOP,
        NativePart("scale", DType.I8, 16),
        NativePart("scale_unit", DType.F16, 256),
    ),
}
"""Schemes that come apart so."""

RUN = 32
"""Codes along K, one after another, whose bits of ``high`` have one place in its numbers."""

OFFSETS = {SchemeKind.GGUF_Q5_0: 16, SchemeKind.GGUF_Q6K: 32}
"""What is taken from codes that lie in two planes."""


def native_parts(scheme: QuantScheme, inner: int) -> tuple[NativePart, ...]:
    """The parts of a weight with K = ``inner``; none where the scheme does not come apart.

    Args:
        scheme: of its blocks.
        inner: a multiple of the block. Codes of five bits are i8 where it is none of 128.
    """
    parts = KINDS.get(scheme.kind, ())
    if _FIFTH not in parts or inner % (RUN * _FIFTH.every) == 0:
        return parts
    return (NativePart("codes", DType.I8), *parts[2:])


def take_apart(scheme: QuantScheme, packed: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """The arrays of ``native_parts``.

    Args:
        scheme: one of ``KINDS``.
        packed: u8[N, bytes], rows of blocks.

    Raises:
        RlxError: another scheme.
    """
    if scheme.kind not in KINDS:
        raise RlxError(
            f"take apart: one of {', '.join(k.value for k in KINDS)} is required; got {scheme}. "
            "Decode it."
        )
    rows = packed.shape[0]
    inner = packed.shape[1] // scheme.block_bytes * scheme.block_size
    blocks = np.ascontiguousarray(packed).reshape(-1, scheme.block_bytes)
    held = {
        name: np.asarray(values).reshape(rows, -1).T
        for name, values in _parts(scheme.kind, blocks).items()
    }
    parts = native_parts(scheme, inner)
    codes = held["codes"]
    for part in parts:
        if part.name == "high":
            high = (codes >> 4).reshape(-1, part.every, RUN, rows)
            places = np.arange(part.every, dtype=np.uint8) * (4 // part.every)
            shifted = high << places[:, None, None]
            held["high"] = np.bitwise_or.reduce(shifted, axis=1).reshape(-1, rows)
    if _FOUR not in parts:
        codes = codes.astype(np.int8) - OFFSETS.get(scheme.kind, 0)
    held["codes"] = codes & 15 if _FOUR in parts else codes
    if any(part.name == "tops" for part in parts):
        held["tops"] = (held["scale"] >> 4) | (held["least"] >> 4 << 2)
        held |= {name: held[name] & 15 for name in ("scale", "least")}
    made = tuple(np.ascontiguousarray(held[p.name].astype(p.dtype.numpy)) for p in parts)
    assert all(a.shape == (inner // p.every, rows) for p, a in zip(parts, made, strict=True))
    return made


def _parts(kind: SchemeKind, b: npt.NDArray[Any]) -> dict[str, Any]:
    """Codes [B, elements], without their offset, scales [B, groups] and what else there is."""
    match kind:
        case SchemeKind.GGUF_Q8_0:
            return {"codes": b[:, 2:34].view(np.int8), "scale": half(NUMPY, b, 0)}
        case SchemeKind.GGUF_Q4_0:
            return {"codes": _low(b, 2).astype(np.int8) - 8, "scale": half(NUMPY, b, 0)}
        case SchemeKind.GGUF_Q4_1:
            scale, least = half(NUMPY, b, 0), half(NUMPY, b, 2)
            return {"codes": _low(b, 4), "scale": scale, "least": least}
        case SchemeKind.GGUF_Q5_0:
            return {"codes": _low(b, 6) | _fifth(b, 2), "scale": half(NUMPY, b, 0)}
        case SchemeKind.GGUF_Q5_1:
            scale, least = half(NUMPY, b, 0), half(NUMPY, b, 2)
            return {"codes": _low(b, 8) | _fifth(b, 4), "scale": scale, "least": least}
        case SchemeKind.GGUF_Q6K:
            low = nibbles(NUMPY, b[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
            top = NUMPY.fields(b[:, 128:192].reshape(-1, 2, 32), (0, 2, 4, 6), 3)
            return {
                "codes": low | (flat(NUMPY, top) << 4),
                "scale": b[:, 192:208].view(np.int8),
                "scale_unit": half(NUMPY, b, 208),
            }
        case _:
            return _k_parts(kind, b)


def _k_parts(kind: SchemeKind, b: npt.NDArray[Any]) -> dict[str, Any]:
    """Q4_K and Q5_K: eight groups with six bits for scale and least number."""
    first, second, mixed = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.concatenate([first & 63, (mixed & 15) | ((first >> 2) & 48)], axis=1)
    least = np.concatenate([second & 63, (mixed >> 4) | ((second >> 2) & 48)], axis=1)
    start = 16 if kind is SchemeKind.GGUF_Q4K else 48
    codes = nibbles(NUMPY, b[:, start : start + 128].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    if kind is SchemeKind.GGUF_Q5K:
        codes = codes | (NUMPY.fields(b[:, 16:48], range(8), 1) << 4)
    return {
        "codes": codes,
        "scale": scale,
        "scale_unit": half(NUMPY, b, 0),
        "least": least,
        "least_unit": half(NUMPY, b, 2),
    }


def _low(b: npt.NDArray[Any], at: int) -> Any:
    return flat(NUMPY, nibbles(NUMPY, b[:, at : at + 16]))


def _fifth(b: npt.NDArray[Any], at: int) -> Any:
    return flat(NUMPY, NUMPY.fields(b[:, at : at + 4], range(8), 1, last=True)) << 4
