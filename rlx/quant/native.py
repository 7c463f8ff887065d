"""Packed blocks taken apart for devices whose products read 4- and 8-bit integers themselves.

value = code · scale + least, a scale and a least number for each group along K
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import RlxError
from rlx.quant.blocks_plain import flat, floats, half, nibbles
from rlx.quant.lanes import NUMPY
from rlx.quant.schemes import QuantScheme, SchemeKind

if TYPE_CHECKING:
    import numpy.typing as npt

KINDS: dict[SchemeKind, tuple[DType, DType, int, bool]] = {
    # kind: (dtypes of codes and scales, elements of a group, whether there is a least number)
    SchemeKind.GGUF_Q4_0: (DType.I4, DType.F16, 32, False),
    SchemeKind.GGUF_Q4_1: (DType.U4, DType.F16, 32, True),
    SchemeKind.GGUF_Q5_0: (DType.I8, DType.F16, 32, False),
    SchemeKind.GGUF_Q5_1: (DType.I8, DType.F16, 32, True),
    SchemeKind.GGUF_Q8_0: (DType.I8, DType.F16, 32, False),
    SchemeKind.GGUF_Q4K: (DType.U4, DType.F32, 32, True),
    SchemeKind.GGUF_Q5K: (DType.I8, DType.F32, 32, True),
    SchemeKind.GGUF_Q6K: (DType.I8, DType.F32, 16, False),
}
"""Schemes that come apart so. The numbers of K blocks are products, which f16 does not hold."""


def take_apart(scheme: QuantScheme, packed: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Codes [K, N], scales float[K / group, N], and least numbers like them where there are any.

    Args:
        scheme: one of ``KINDS``.
        packed: u8[N, bytes], rows of blocks.

    Raises:
        RlxError: another scheme.
    """
    known = KINDS.get(scheme.kind)
    if known is None:
        raise RlxError(
            f"take apart: one of {', '.join(k.value for k in KINDS)} is required; got {scheme}. "
            "Decode it."
        )
    dtype, scales, group, _ = known
    rows = packed.shape[0]
    blocks = np.ascontiguousarray(packed).reshape(-1, scheme.block_bytes)
    codes, scale, least = _parts(scheme.kind, blocks)
    parts = [codes.reshape(rows, -1).T.astype(dtype.numpy)]
    floats_ = [values for values in (scale, least) if values is not None]
    parts += [values.astype(scales.numpy).reshape(rows, -1).T for values in floats_]
    assert parts[1].shape[0] * group == parts[0].shape[0]
    return tuple(np.ascontiguousarray(part) for part in parts)


def _parts(kind: SchemeKind, b: npt.NDArray[Any]) -> tuple[Any, Any, Any]:
    """Signed codes [B, elements], scales [B, groups], least numbers or None."""
    match kind:
        case SchemeKind.GGUF_Q8_0:
            return b[:, 2:34].view(np.int8), half(NUMPY, b, 0), None
        case SchemeKind.GGUF_Q4_0:
            return _low(b, 2).astype(np.int8) - 8, half(NUMPY, b, 0), None
        case SchemeKind.GGUF_Q4_1:
            return _low(b, 4), half(NUMPY, b, 0), half(NUMPY, b, 2)
        case SchemeKind.GGUF_Q5_0:
            codes = (_low(b, 6) | _fifth(b, 2)).astype(np.int8)
            return codes - 16, half(NUMPY, b, 0), None
        case SchemeKind.GGUF_Q5_1:
            return _low(b, 8) | _fifth(b, 4), half(NUMPY, b, 0), half(NUMPY, b, 2)
        case SchemeKind.GGUF_Q6K:
            low = nibbles(NUMPY, b[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
            top = NUMPY.fields(b[:, 128:192].reshape(-1, 2, 32), (0, 2, 4, 6), 3)
            codes = (low | (flat(NUMPY, top) << 4)).astype(np.int8) - 32
            return codes, floats(NUMPY, b[:, 192:208].view(np.int8)) * half(NUMPY, b, 208), None
        case _:
            return _k_parts(kind, b)


def _k_parts(kind: SchemeKind, b: npt.NDArray[Any]) -> tuple[Any, Any, Any]:
    """Q4_K and Q5_K: eight groups with six bits for scale and least number."""
    first, second, mixed = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.concatenate([first & 63, (mixed & 15) | ((first >> 2) & 48)], axis=1)
    least = np.concatenate([second & 63, (mixed >> 4) | ((second >> 2) & 48)], axis=1)
    start = 16 if kind is SchemeKind.GGUF_Q4K else 48
    codes = nibbles(NUMPY, b[:, start : start + 128].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    if kind is SchemeKind.GGUF_Q5K:
        codes = codes | (NUMPY.fields(b[:, 16:48], range(8), 1) << 4)
    scales = floats(NUMPY, scale) * half(NUMPY, b, 0)
    return codes.reshape(-1, 256), scales, -(floats(NUMPY, least) * half(NUMPY, b, 2))


def _low(b: npt.NDArray[Any], at: int) -> Any:
    return flat(NUMPY, nibbles(NUMPY, b[:, at : at + 16]))


def _fifth(b: npt.NDArray[Any], at: int) -> Any:
    return flat(NUMPY, NUMPY.fields(b[:, at : at + 4], range(8), 1, last=True)) << 4
