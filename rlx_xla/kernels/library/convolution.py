"""Convolutions on the CPU (``cc/conv.h``).

XLA convolves the groups of a grouped convolution one after another, turns channels-first arrays
round at each call, multiplies what lies outside of the image, and loses its cache where the kernel
is larger than the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rlx.dtypes import DType
from rlx.ops.convolution import ConvGeneralDilated
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import bound
from rlx_xla.kernels.select import register_kernel

DTYPES = (DType.F32, DType.BF16, DType.F16)

MAX_CHANNELS = 1 << 16
"""Most channels of a group that the handler takes."""


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What decides whether a convolution gains.

    Attributes:
        channels_last: whether channels are the last axis.
        groups: how many.
        places: of the result, of the whole batch.
        features: input channels of a group.
        outputs: output channels of a group.
        taps: places of the kernel.
    """

    channels_last: bool
    groups: int
    places: int
    features: int
    outputs: int
    taps: int

    @property
    def products(self) -> int:
        """Products that are added up."""
        return self.groups * self.places * self.features * self.outputs * self.taps


def sizes_of(op: ConvGeneralDilated, types: Sequence[TensorType]) -> Sizes | Refused:
    """Read a convolution in the handler's terms, or say why it is not one of its."""
    lhs, rhs = types
    result = op.infer(lhs, rhs)
    for name, type_ in (("lhs", lhs), ("rhs", rhs), ("the result", result)):
        if type_.dtype not in DTYPES or type_.dtype is not lhs.dtype:
            return Refused(f"{name} is {type_.dtype}, and f32, bf16 and f16 are taken, all of one")
        if not type_.is_static:
            return Refused(f"{type_} is not static")
    if lhs.rank not in (3, 4):
        return Refused(f"{lhs.rank - 2} spatial axes are not one or two")
    last = _is_channels_last(op, lhs.rank)
    if last is None:
        return Refused(
            "the axes are neither batch, places, channels with a kernel of places, in, out nor "
            "batch, channels, places with a kernel of out, in, places"
        )
    if any(n != 1 for n in op.lhs_dilation):
        return Refused("lhs is dilated")
    if op.batch_group_count != 1:
        return Refused("the batch is in groups")
    outputs, features, *window = (rhs.shape[i] for i in op.rhs_spec)
    batch, _, *places = (result.shape[i] for i in op.out_spec)
    counts = [_static(n) for n in (outputs, features)]
    if counts[1] > MAX_CHANNELS:
        return Refused(f"{features} channels of a group are more than {MAX_CHANNELS}")
    return Sizes(
        channels_last=last,
        groups=op.feature_group_count,
        places=math.prod(_static(n) for n in (batch, *places)),
        features=counts[1],
        outputs=counts[0] // op.feature_group_count,
        taps=math.prod(_static(n) for n in window),
    )


def _static(dim: object) -> int:
    assert isinstance(dim, int)
    return dim


def _is_channels_last(op: ConvGeneralDilated, rank: int) -> bool | None:
    """Which of the two layouts the specs are; None for others."""
    specs = (op.lhs_spec, op.rhs_spec, op.out_spec)
    space = tuple(range(1, rank - 1))
    if specs == (
        (0, rank - 1, *space),
        (rank - 1, rank - 2, *range(rank - 2)),
        (0, rank - 1, *space),
    ):
        return True
    return False if specs == (tuple(range(rank)),) * 3 else None


_SIZES = (1 << 12, 1 << 15, 1 << 17, 1 << 19, 1 << 20, 1 << 21)
LARGE_KERNEL = {
    True: bound("conv_general_dilated.cpu.ffi/channels_last", 1 << 17, _SIZES),
    False: bound("conv_general_dilated.cpu.ffi/channels_first", 1 << 17, _SIZES),
}
"""Fewest elements of a kernel that gains, channels last and first."""

MIN_OUTPUTS = 16
"""Fewest output channels of such a kernel: they are a vector."""

SMALL_PRODUCTS = 1 << 16
"""Up to as many products XLA spends more time on setting out than on multiplying."""

FEW_FEATURES = {True: 32, False: 4}
"""Most input channels, last and first, whose windows gain from being copied."""

MAX_TAPS = 9
"""Most taps of a channels-first kernel of few input channels that gains."""


def _gains(sizes: Sizes) -> str:
    """Why a convolution gains nothing, or an empty string."""
    last = sizes.channels_last
    kernel = sizes.features * sizes.outputs * sizes.taps
    if sizes.groups > 1 or sizes.products <= SMALL_PRODUCTS:
        return ""
    if LARGE_KERNEL[last].admits(kernel) and sizes.outputs >= MIN_OUTPUTS:
        return ""
    if sizes.taps == 1:
        return "" if not last else "XLA multiplies one tap, channels last, as fast"
    if sizes.features <= FEW_FEATURES[last] and (last or sizes.taps <= MAX_TAPS):
        return ""
    return (
        f"{sizes.features} input channels, {'last' if last else 'first'}, with a kernel of "
        f"{kernel} elements gain nothing (groups, at most {FEW_FEATURES[last]} channels, "
        f"{LARGE_KERNEL[last]} elements for at least {MIN_OUTPUTS} output channels, or at most "
        f"{SMALL_PRODUCTS} products in all do)"
    )


def _check(op: ConvGeneralDilated, types: Sequence[TensorType]) -> Supported | Refused:
    sizes = sizes_of(op, types)
    if isinstance(sizes, Refused):
        return sizes
    reason = _gains(sizes)
    return Refused(reason) if reason else Supported()


def _attributes(op: ConvGeneralDilated, types: Sequence[TensorType]) -> dict[str, int | bool]:
    del types
    low = [_static(pair[0]) for pair in op.padding]
    spatial = list(zip(op.window_strides, low, op.rhs_dilation, strict=True))
    if len(spatial) == 1:
        spatial.insert(0, (1, 0, 1))
    found: dict[str, int | bool] = {
        "channels_last": op.lhs_spec[1] != 1,
        "groups": op.feature_group_count,
    }
    for axis, values in zip("hw", spatial, strict=True):
        found |= {
            f"{n}_{axis}": v for n, v in zip(("stride", "low", "dilation"), values, strict=True)
        }
    return found


register_kernel(
    FfiKernel(
        name="conv_general_dilated.cpu.ffi",
        op=ConvGeneralDilated,
        platforms=("cpu",),
        symbol=lambda op, types: f"rlx_conv_{types[0].dtype}_cpu",
        check=_check,
        attributes=_attributes,
    )
)
