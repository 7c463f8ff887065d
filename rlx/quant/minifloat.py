"""Small floats: their formats, and the codec between f32 and their codes (u8).

Encoding takes the nearest finite number (ties to the even code), saturates beyond the greatest one
and gives code 0 for NaN and for everything that rounds to zero.

Source: OCP 8-bit floating point (2023) and OCP microscaling formats (2023) for the named ones;
RLX `ScaledFormat`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from rlx.dtypes import DType
from rlx.errors import ParseError, RlxError
from rlx.quant.lanes import NUMPY, AbstractLanes, Lane

if TYPE_CHECKING:
    import numpy.typing as npt


@final
class Specials(enum.Enum):
    """Which codes of a format are no finite numbers."""

    NONE = "none"
    """Every code is finite."""
    LAST = "last"
    """Exponent and mantissa all ones is NaN; there is no infinity."""
    IEEE = "ieee"
    """The top exponent holds infinity (mantissa 0) and NaN."""
    FNUZ = "fnuz"
    """The code of −0 is NaN; there is no infinity and no −0."""


@final
@dataclass(frozen=True)
class ScaledFormat:
    """A float of at most eight bits: sign, exponent, mantissa from the highest bit down.

    Attributes:
        exp_bits: width of the exponent, ≥ 1.
        mant_bits: width of the mantissa, ≥ 0.
        bias: what is subtracted from a stored exponent.
        specials: which codes are no finite numbers.
        hardware: the label of a named format, or an empty string for a custom one.
    """

    exp_bits: int
    mant_bits: int
    bias: int
    specials: Specials = Specials.NONE
    hardware: str = ""

    NAMED: ClassVar[tuple[ScaledFormat, ...]]
    F8E4M3: ClassVar[ScaledFormat]
    F8E5M2: ClassVar[ScaledFormat]
    F8E4M3_FNUZ: ClassVar[ScaledFormat]
    F8E5M2_FNUZ: ClassVar[ScaledFormat]
    F6E2M3: ClassVar[ScaledFormat]
    F6E3M2: ClassVar[ScaledFormat]
    F4E2M1: ClassVar[ScaledFormat]

    def __post_init__(self) -> None:
        good = self.exp_bits >= 1 and self.mant_bits >= 0 and self.bit_width <= 8
        least, most = 1 - self.bias - self.mant_bits, self._top_exponent if good else 0
        if not good or least < -126 or most > 126:
            raise RlxError(
                "minifloat: exp_bits ≥ 1, mant_bits ≥ 0, 1 + exp_bits + mant_bits ≤ 8 and numbers "
                f"that f32 holds as normal ones are required; got exp_bits {self.exp_bits}, "
                f"mant_bits {self.mant_bits}, bias {self.bias}. Choose other widths or bias."
            )

    @staticmethod
    def custom(exp_bits: int, mant_bits: int) -> ScaledFormat:
        """An all-finite format with the bias 2^(exp_bits−1) − 1.

        Raises:
            RlxError: the widths do not fit eight bits.
        """
        return ScaledFormat(exp_bits, mant_bits, _default_bias(exp_bits))

    @staticmethod
    def custom_with_bias(exp_bits: int, mant_bits: int, bias: int) -> ScaledFormat:
        """An all-finite format with a bias of one's own.

        Raises:
            RlxError: the widths do not fit eight bits, or f32 does not hold its numbers.
        """
        return ScaledFormat(exp_bits, mant_bits, bias)

    @staticmethod
    def parse(text: str) -> ScaledFormat:
        """Read a name: ``f8e4m3``, ``f8e4m3fnuz``, ``f4e3m0``, ``f4e3m0b5`` (its bias after b).

        Raises:
            ParseError: the text is no format's name.
        """
        for known in ScaledFormat.NAMED:
            if known.hardware == text:
                return known
        match = _NAME.fullmatch(text)
        if match is not None:
            width, exp_bits, mant_bits = (int(g) for g in match.groups()[:3])
            bias = _default_bias(exp_bits) if match.group(4) is None else int(match.group(4))
            if width == 1 + exp_bits + mant_bits and exp_bits >= 1 and width <= 8:
                try:
                    return ScaledFormat(exp_bits, mant_bits, bias)
                except RlxError as error:
                    raise ParseError(str(error)) from error
        raise ParseError(f'invalid minifloat format "{text}" (expected e.g. "f4e3m0")')

    def __str__(self) -> str:
        if self.hardware:
            return self.hardware
        name = f"f{self.bit_width}e{self.exp_bits}m{self.mant_bits}"
        plain = self.bias == _default_bias(self.exp_bits)
        # A custom format must not read back as the hardware's of the same widths.
        clash = any(known.hardware == name for known in ScaledFormat.NAMED)
        return name if plain and not clash else f"{name}b{self.bias}"

    @property
    def bit_width(self) -> int:
        """Bits of a code, the sign included."""
        return 1 + self.exp_bits + self.mant_bits

    @property
    def fields(self) -> tuple[int, int, int]:
        """exp_bits, mant_bits and bias."""
        return self.exp_bits, self.mant_bits, self.bias

    @property
    def is_named(self) -> bool:
        """Whether it is one of the seven formats that hardware has."""
        return bool(self.hardware)

    @property
    def is_custom(self) -> bool:
        """Whether it is a format of one's own."""
        return not self.hardware

    @property
    def is_fnuz(self) -> bool:
        """Whether the code of −0 is NaN."""
        return self.specials is Specials.FNUZ

    @property
    def has_inf(self) -> bool:
        """Whether there are infinities."""
        return self.specials is Specials.IEEE

    @property
    def is_native_fp8(self) -> bool:
        """Whether matrix units of current GPUs multiply it (F8E4M3, F8E5M2)."""
        return self in (ScaledFormat.F8E4M3, ScaledFormat.F8E5M2)

    @property
    def dtype(self) -> DType | None:
        """The dtype of 8-bit codes with the same numbers, or None."""
        return _DTYPES.get(self.hardware)

    @property
    def kernel_id(self) -> int:
        """RLX's number of the format: 0 to 6 for the named ones."""
        if self.is_named:
            return ScaledFormat.NAMED.index(self)
        return 0x80000000 | self.exp_bits | self.mant_bits << 4 | (self.bias & 0xFF) << 8

    @property
    def max_code(self) -> int:
        """The code of the greatest finite number."""
        top = (1 << (self.exp_bits + self.mant_bits)) - 1
        if self.specials is Specials.LAST:
            return top - 1
        return top - (1 << self.mant_bits) if self.specials is Specials.IEEE else top

    @cached_property
    def max_finite(self) -> float:
        """The greatest finite number."""
        return float(self.decode(np.array([self.max_code], np.uint8))[0])

    @property
    def _top_exponent(self) -> int:
        return (self.max_code >> self.mant_bits) - self.bias

    def decode(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers of codes (u8), as f32; bits above the format's width are ignored."""
        return self._in_parts(decode, np.asarray(codes, np.uint8), np.float32)

    def encode(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The codes (u8) of the numbers nearest to x (f32)."""
        return self._in_parts(encode, np.asarray(x, np.float32), np.uint8)

    def _in_parts(
        self,
        codec: Callable[[AbstractLanes, ScaledFormat, Lane], Lane],
        source: npt.NDArray[Any],
        dtype: type[np.generic],
    ) -> npt.NDArray[Any]:
        """Run a codec on parts that stay in the cache."""
        flat, result = source.reshape(-1), np.empty(source.size, dtype)
        with np.errstate(all="ignore"):
            for start in range(0, source.size, _CHUNK_ELEMENTS):
                some = slice(start, start + _CHUNK_ELEMENTS)
                result[some] = codec(NUMPY, self, flat[some])
        return result.reshape(source.shape)

    def quantize(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers nearest to x: decode(encode(x))."""
        return self.decode(self.encode(x))

    def representable_values(self) -> npt.NDArray[Any]:
        """Every finite number of the format once, ascending, as f32."""
        values = self.decode(np.arange(1 << self.bit_width, dtype=np.uint8))
        return np.unique(values[np.isfinite(values)])


_CHUNK_ELEMENTS = 1 << 16
"""Elements that a codec takes at a time in NumPy."""

_NAME = re.compile(r"f([1-8])e([0-9])m([0-9])(?:b(-?[0-9]{1,3}))?")
_DTYPES = {
    "f8e4m3": DType.F8E4M3FN,
    "f8e5m2": DType.F8E5M2,
    "f8e4m3fnuz": DType.F8E4M3FNUZ,
    "f8e5m2fnuz": DType.F8E5M2FNUZ,
}


def _default_bias(exp_bits: int) -> int:
    return 2 ** max(exp_bits - 1, 0) - 1


ScaledFormat.F8E4M3 = ScaledFormat(4, 3, 7, Specials.LAST, "f8e4m3")
ScaledFormat.F8E5M2 = ScaledFormat(5, 2, 15, Specials.IEEE, "f8e5m2")
ScaledFormat.F8E4M3_FNUZ = ScaledFormat(4, 3, 8, Specials.FNUZ, "f8e4m3fnuz")
ScaledFormat.F8E5M2_FNUZ = ScaledFormat(5, 2, 16, Specials.FNUZ, "f8e5m2fnuz")
ScaledFormat.F6E2M3 = ScaledFormat(2, 3, 1, Specials.NONE, "f6e2m3")
ScaledFormat.F6E3M2 = ScaledFormat(3, 2, 3, Specials.NONE, "f6e3m2")
ScaledFormat.F4E2M1 = ScaledFormat(2, 1, 1, Specials.NONE, "f4e2m1")
ScaledFormat.NAMED = (
    ScaledFormat.F8E4M3,
    ScaledFormat.F8E5M2,
    ScaledFormat.F8E4M3_FNUZ,
    ScaledFormat.F8E5M2_FNUZ,
    ScaledFormat.F6E2M3,
    ScaledFormat.F6E3M2,
    ScaledFormat.F4E2M1,
)


def encode(lanes: AbstractLanes, form: ScaledFormat, x: Lane) -> Lane:
    """Codes (u8) of the numbers of a format that are nearest to x (f32)."""
    mant, least = form.mant_bits, 1 - form.bias
    size = lanes.select(lanes.equal(x, x), lanes.minimum(abs(x), form.max_finite), 0.0)
    exponent = lanes.convert(lanes.shift_right(lanes.bits(size, DType.U32), 23), DType.I32) - 127
    exponent = lanes.maximum(exponent, least)
    # A power of two that makes the last place of the code's mantissa a one: exact.
    factor = lanes.shift_left(lanes.convert(-exponent + (127 + mant), DType.U32), 23)
    steps = size * lanes.bits(factor, DType.F32)
    rounded = lanes.convert(lanes.round_even(steps), DType.I32)
    above = exponent - least
    if mant == 0:
        # Without a mantissa the even code is the one with the even exponent.
        rounded = lanes.select(lanes.equal(steps, 1.5), -(above & 1) + 2, rounded)
    code = above * (1 << mant) + rounded
    signed = code + (1 << (form.bit_width - 1))
    return lanes.convert(lanes.select((x < 0.0) & (code > 0), signed, code), DType.U8)


def decode(lanes: AbstractLanes, form: ScaledFormat, codes: Lane) -> Lane:
    """Numbers (f32) of codes (u8)."""
    mant, bias = form.mant_bits, form.bias
    wide = lanes.convert(codes, DType.U32)
    size = wide & ((1 << (form.bit_width - 1)) - 1)
    small = lanes.convert(size, DType.F32) * (2.0 ** (1 - bias - mant))
    # Exponent and mantissa move up together; then the difference of the biases is added.
    large = lanes.bits(lanes.shift_left(size, 23 - mant) + ((127 - bias) << 23), DType.F32)
    value = lanes.select(size < (1 << mant), small, large)
    signed = lanes.equal(wide & (1 << (form.bit_width - 1)), 1 << (form.bit_width - 1))
    top = (1 << (form.bit_width - 1)) - 1
    match form.specials:
        case Specials.NONE:
            pass
        case Specials.LAST:
            value = lanes.select(lanes.equal(size, top), float("nan"), value)
        case Specials.IEEE:
            infinity = form.max_code + 1
            value = lanes.select(lanes.equal(size, infinity), float("inf"), value)
            value = lanes.select(size < infinity + 1, value, float("nan"))
        case Specials.FNUZ:
            value = lanes.select(lanes.equal(wide & 0xFF, 0x80), float("nan"), value)
    return lanes.select(signed, -value, value)


def decode_e8m0(lanes: AbstractLanes, codes: Lane) -> Lane:
    """Powers of two 2^(code − 127) as f32; 255 is NaN."""
    wide = lanes.convert(codes, DType.U32)
    bits = lanes.select(lanes.equal(wide, 0), 0x00400000, lanes.shift_left(wide, 23))
    return lanes.select(lanes.equal(wide, 255), float("nan"), lanes.bits(bits, DType.F32))


def encode_e8m0(lanes: AbstractLanes, x: Lane) -> Lane:
    """Codes (u8) of the least powers of two ≥ x (f32); 0 for what is not positive and finite.

    Source: RLX: rounds up, unlike the floor of OCP's reference.
    """
    wide = lanes.bits(x, DType.U32)
    exponent = lanes.shift_right(wide, 23)
    code = exponent + lanes.convert((wide & 0x7FFFFF) > 0, DType.U32)
    # Subnormals may be read as zero, so they give 0; a sign bit makes the exponent ≥ 256.
    good = (exponent > 0) & (exponent < 255)
    return lanes.convert(lanes.select(good, lanes.minimum(code, 254), 0), DType.U8)
