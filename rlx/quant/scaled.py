"""Scaled tensors: codes of a small float with scales per tensor, row or block.

Tensors are [..., cols] with blocks along the last axis; a scale tensor is f32[1] (per tensor),
f32[..., 1] (per row) or u8[..., ceil(cols / block)] (blocks).
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import ParseError, RlxError
from rlx.quant import minifloat
from rlx.quant.lanes import NUMPY, AbstractLanes, Lane
from rlx.quant.minifloat import ScaledFormat

if TYPE_CHECKING:
    import numpy.typing as npt


@final
class ScaleKind(enum.Enum):
    """What shares one scale, and how scales are stored."""

    PER_TENSOR = "per_tensor"
    PER_ROW = "per_row"
    E8M0 = "mx_e8m0"
    NVFP4 = "nvfp4"


@final
@dataclass(frozen=True)
class ScaleLayout:
    """What shares one scale.

    Attributes:
        kind: the way.
        block: elements of the last axis that share a scale; 0 for whole rows and tensors.
    """

    kind: ScaleKind = ScaleKind.PER_TENSOR
    block: int = 0

    def __post_init__(self) -> None:
        if self.block < 0 or self.is_blocked != (self.block > 0):
            raise RlxError(
                "scale layout: block > 0 is required for mx_e8m0 and nvfp4, and 0 otherwise; got "
                f"{self.kind.value} with {self.block}. Use a constructor such as mx()."
            )

    @staticmethod
    def per_tensor() -> ScaleLayout:
        """One f32 scale for all."""
        return ScaleLayout(ScaleKind.PER_TENSOR)

    @staticmethod
    def per_row() -> ScaleLayout:
        """One f32 scale for each line along the last axis."""
        return ScaleLayout(ScaleKind.PER_ROW)

    @staticmethod
    def mx(block: int = 32) -> ScaleLayout:
        """A power of two (E8M0) for each block."""
        return ScaleLayout(ScaleKind.E8M0, block)

    @staticmethod
    def nvfp4(group: int = 16) -> ScaleLayout:
        """An E4M3 number for each group."""
        return ScaleLayout(ScaleKind.NVFP4, group)

    @staticmethod
    def parse(text: str) -> ScaleLayout:
        """Read ``per_tensor``, ``per_row``, ``mx``, ``mx/<n>``, ``nvfp4/<n>`` and their aliases.

        Raises:
            ParseError: the text is no layout's name; the names are listed.
        """
        name, slash, digits = text.partition("/")
        if not slash and name in ("per_tensor", "pertensor"):
            return ScaleLayout.per_tensor()
        if not slash and name == "per_row":
            return ScaleLayout.per_row()
        if not slash and name in ("mx", "mxfp8", "block"):
            return ScaleLayout.mx()
        if not slash and name == "nvfp4":
            return ScaleLayout.nvfp4()
        if re.fullmatch("[1-9][0-9]{0,8}", digits):
            if name in ("mx", "mx_e8m0"):
                return ScaleLayout.mx(int(digits))
            if name == "nvfp4":
                return ScaleLayout.nvfp4(int(digits))
        raise ParseError(
            f'invalid scale layout "{text}" (expected per_tensor, per_row, mx, mxfp8, block, '
            "nvfp4, mx/<n>, mx_e8m0/<n> or nvfp4/<n>)"
        )

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.block}" if self.block else self.kind.value

    @property
    def is_blocked(self) -> bool:
        """Whether scales belong to blocks of the last axis and are bytes."""
        return self.kind in (ScaleKind.E8M0, ScaleKind.NVFP4)

    @property
    def dtype(self) -> DType:
        """The dtype of the scale tensor."""
        return DType.U8 if self.is_blocked else DType.F32

    def blocks(self, cols: int) -> int:
        """Scales along a last axis of ``cols`` elements."""
        return -(-cols // self.block) if self.block else 1


@final
@dataclass(frozen=True)
class ScaledQuantConfig:
    """How ``CompileOptions.scaled_quant`` quantises both operands of matrix products.

    Attributes:
        lhs: format of activations.
        rhs: format of weights.
        layout: what shares a scale, for both.
    """

    lhs: ScaledFormat = ScaledFormat.F8E4M3
    rhs: ScaledFormat = ScaledFormat.F8E4M3
    layout: ScaleLayout = ScaleLayout()

    @staticmethod
    def fp8_e4m3() -> ScaledQuantConfig:
        """F8E4M3 with one scale for each tensor."""
        return ScaledQuantConfig()

    @staticmethod
    def mxfp8_e4m3() -> ScaledQuantConfig:
        """F8E4M3 with a power of two for each 32 elements."""
        return ScaledQuantConfig(layout=ScaleLayout.mx(32))

    @staticmethod
    def nvfp4() -> ScaledQuantConfig:
        """F4E2M1 with an E4M3 scale for each 16 elements."""
        form = ScaledFormat.F4E2M1
        return ScaledQuantConfig(form, form, ScaleLayout.nvfp4(16))

    @staticmethod
    def of(form: str, layout: str = "per_tensor") -> ScaledQuantConfig:
        """One format for both operands, by names such as ``"f4e3m0"`` and ``"mx/32"``.

        Raises:
            ParseError: no such format or layout.
        """
        made = ScaledFormat.parse(form)
        return ScaledQuantConfig(made, made, ScaleLayout.parse(layout))

    def __str__(self) -> str:
        forms = str(self.lhs) if self.lhs == self.rhs else f"{self.lhs} × {self.rhs}"
        return f"{forms}, {self.layout}"


def scales(lanes: AbstractLanes, x: Lane, form: ScaledFormat, layout: ScaleLayout) -> Lane:
    """The scale tensor of x (f32): the greatest |x| over the format's greatest number.

    Blocks round it to what they store; where all elements are zero the scale is 1.
    """
    if layout.is_blocked:
        x = blocked(lanes, x, layout.block)
    amax = lanes.amax(x, everything=layout.kind is ScaleKind.PER_TENSOR)
    scale = lanes.select(amax > 0.0, lanes.divide(amax, form.max_finite), 1.0)
    if not layout.is_blocked:
        return scale
    scale = lanes.reshape(scale, lanes.shape(scale)[:-1])
    if layout.kind is ScaleKind.E8M0:
        return minifloat.encode_e8m0(lanes, scale)
    return minifloat.encode(lanes, ScaledFormat.F8E4M3, scale)


def blocked(lanes: AbstractLanes, x: Lane, block: int) -> Lane:
    """[..., cols] → [..., blocks, block], the last block filled up with zeros."""
    *rows, cols = lanes.shape(x)
    block = min(block, max(cols, 1))  # no wider than there is something to scale
    count = -(-cols // block)
    if count * block != cols:
        x = lanes.pad(x, count * block)
    return lanes.reshape(x, (*rows, count, block))


def spread(lanes: AbstractLanes, scale: Lane, layout: ScaleLayout, shape: Any) -> Lane:
    """Scales as f32, one for each element of a tensor of the shape."""
    if not layout.is_blocked:
        return lanes.expand(scale, shape)
    *rows, cols = shape
    if layout.kind is ScaleKind.E8M0:
        wide = minifloat.decode_e8m0(lanes, scale)
    else:
        wide = minifloat.decode(lanes, ScaledFormat.F8E4M3, scale)
    count, block = layout.blocks(cols), min(layout.block, max(cols, 1))
    wide = lanes.expand(lanes.reshape(wide, (*rows, count, 1)), (*rows, count, block))
    wide = lanes.reshape(wide, (*rows, count * block))
    return wide if count * block == cols else lanes.cut(wide, 0, cols)


def quantize(
    lanes: AbstractLanes, x: Lane, scale: Lane, form: ScaledFormat, layout: ScaleLayout
) -> Lane:
    """Codes (u8) of x / scale; 0 where the scale is 0."""
    wide = spread(lanes, scale, layout, lanes.shape(x))
    nothing = lanes.equal(wide, 0.0)
    ratio = lanes.divide(x, lanes.select(nothing, 1.0, wide))
    return minifloat.encode(lanes, form, lanes.select(nothing, 0.0, ratio))


def dequantize(
    lanes: AbstractLanes, codes: Lane, scale: Lane, form: ScaledFormat, layout: ScaleLayout
) -> Lane:
    """decode(codes) · scale, as f32."""
    value = minifloat.decode(lanes, form, codes)
    return value * spread(lanes, scale, layout, lanes.shape(codes))


def quantize_scaled(
    x: npt.NDArray[Any], form: ScaledFormat, layout: ScaleLayout
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Codes (u8) and scales of an array [..., cols], in NumPy."""
    wide = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        scale: npt.NDArray[Any] = scales(NUMPY, wide, form, layout)
        codes = np.empty(wide.shape, np.uint8)
        for part, own, made in _by_rows(wide, scale, codes, layout):
            made[...] = quantize(NUMPY, part, own, form, layout)
    return codes, scale


def dequantize_scaled(
    codes: npt.NDArray[Any], scale: npt.NDArray[Any], form: ScaledFormat, layout: ScaleLayout
) -> npt.NDArray[Any]:
    """The numbers (f32) of codes and scales, in NumPy."""
    result = np.empty(codes.shape, np.float32)
    with np.errstate(all="ignore"):
        for part, own, made in _by_rows(np.asarray(codes), np.asarray(scale), result, layout):
            made[...] = dequantize(NUMPY, part, own, form, layout)
    return result


_CHUNK_ELEMENTS = 1 << 16
"""Numbers computed at a time: it bounds intermediate arrays, and they stay in the cache."""


def _by_rows(
    x: npt.NDArray[Any], scale: npt.NDArray[Any], result: npt.NDArray[Any], layout: ScaleLayout
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
    """Rows of an array, their scales, and where their results go."""
    cols = x.shape[-1]
    rows, made = (
        x.reshape(math.prod(x.shape[:-1]), cols),
        result.reshape(math.prod(x.shape[:-1]), cols),
    )
    per_tensor = layout.kind is ScaleKind.PER_TENSOR
    own = scale if per_tensor else scale.reshape(len(rows), scale.shape[-1])
    step = max(1, _CHUNK_ELEMENTS // max(cols, 1))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        yield rows[some], own if per_tensor else own[some], made[some]
