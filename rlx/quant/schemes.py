"""Schemes of packed weights: what the bytes of a quantised matrix mean.

A scheme prints and parses by RLX's display name (``int8/32``, ``gguf_q4k``, ``mlx_affine/4/64``),
which is also how it stands in an op's attributes.

Shapes of a weight with K inputs and N outputs (b: block or group size; ⌈⌉ rounds up):

========================  ===============================  ======================  ================
scheme                    weight                           scale                   zero
========================  ===============================  ======================  ================
int8/b, int8a/b           i8[K, N]                         f32[⌈K/b⌉, N]           f32[⌈K/b⌉, N]
int4/b                    u8[⌈K·N/2⌉], row-major [K, N]    f32[⌈K/b⌉, N]           f32[⌈K/b⌉, N]
fp8e4m3, fp8e5m2          u8[K, N]                         f32[N], optional        none
nvfp4/16                  u8[⌈K·N/2⌉], row-major [K, N]    u8[⌈K/16⌉, N] (E4M3)    f32[1], global
gguf_*                    u8[N, K / elements · bytes]      none                    none
mlx_affine/bits/b         u32[N, K·bits/32]                f[N, K/b]               f[N, K/b], added
mlx_mxfp4/b, mlx_mxfp8/b  u32[N, K/8], u32[N, K/4]         u8[N, K/b] (E8M0)       none
mxfp4x2/b                 u8[2, N, K/2]                    u8[2, N, K/b] (E8M0)    none
========================  ===============================  ======================  ================

The zero of int8 and int4 is optional: zeros where it is left out. The low nibble of a byte comes
first. GGUF's Q1_0 and Q2_0 and Fermion's FV5 are not here: no public decoder defines their bits.
"""

from __future__ import annotations

import enum
import numbers
import re
from dataclasses import dataclass
from typing import final

from rlx.errors import ParseError, RlxError, did_you_mean


@final
class SchemeKind(enum.Enum):
    """The family of a scheme; the value is the first part of its display name."""

    INT8 = "int8"
    INT8_ASYM = "int8a"
    INT4 = "int4"
    FP8_E4M3 = "fp8e4m3"
    FP8_E5M2 = "fp8e5m2"
    NVFP4 = "nvfp4"
    MLX_AFFINE = "mlx_affine"
    MLX_MXFP4 = "mlx_mxfp4"
    MLX_MXFP8 = "mlx_mxfp8"
    MXFP4X2 = "mxfp4x2"
    GGUF_Q4_0 = "gguf_q4_0"
    GGUF_Q4_1 = "gguf_q4_1"
    GGUF_Q5_0 = "gguf_q5_0"
    GGUF_Q5_1 = "gguf_q5_1"
    GGUF_Q8_0 = "gguf_q8_0"
    GGUF_Q2K = "gguf_q2k"
    GGUF_Q3K = "gguf_q3k"
    GGUF_Q4K = "gguf_q4k"
    GGUF_Q5K = "gguf_q5k"
    GGUF_Q6K = "gguf_q6k"
    GGUF_Q8K = "gguf_q8k"
    GGUF_IQ4NL = "gguf_iq4nl"
    GGUF_IQ4XS = "gguf_iq4xs"
    GGUF_IQ2XXS = "gguf_iq2xxs"
    GGUF_IQ2XS = "gguf_iq2xs"
    GGUF_IQ2S = "gguf_iq2s"
    GGUF_IQ3XXS = "gguf_iq3xxs"
    GGUF_IQ3S = "gguf_iq3s"
    GGUF_IQ1S = "gguf_iq1s"
    GGUF_IQ1M = "gguf_iq1m"
    GGUF_TQ1_0 = "gguf_tq1_0"
    GGUF_TQ2_0 = "gguf_tq2_0"
    GGUF_MXFP4 = "gguf_mxfp4"
    GGUF_NVFP4 = "gguf_nvfp4"


_GGUF: dict[SchemeKind, tuple[str, int, int, int]] = {
    # kind: (name in files, number in files, elements of a block, bytes of a block)
    SchemeKind.GGUF_Q4_0: ("Q4_0", 2, 32, 18),
    SchemeKind.GGUF_Q4_1: ("Q4_1", 3, 32, 20),
    SchemeKind.GGUF_Q5_0: ("Q5_0", 6, 32, 22),
    SchemeKind.GGUF_Q5_1: ("Q5_1", 7, 32, 24),
    SchemeKind.GGUF_Q8_0: ("Q8_0", 8, 32, 34),
    SchemeKind.GGUF_Q2K: ("Q2_K", 10, 256, 84),
    SchemeKind.GGUF_Q3K: ("Q3_K", 11, 256, 110),
    SchemeKind.GGUF_Q4K: ("Q4_K", 12, 256, 144),
    SchemeKind.GGUF_Q5K: ("Q5_K", 13, 256, 176),
    SchemeKind.GGUF_Q6K: ("Q6_K", 14, 256, 210),
    SchemeKind.GGUF_Q8K: ("Q8_K", 15, 256, 292),
    SchemeKind.GGUF_IQ2XXS: ("IQ2_XXS", 16, 256, 66),
    SchemeKind.GGUF_IQ2XS: ("IQ2_XS", 17, 256, 74),
    SchemeKind.GGUF_IQ3XXS: ("IQ3_XXS", 18, 256, 98),
    SchemeKind.GGUF_IQ1S: ("IQ1_S", 19, 256, 50),
    SchemeKind.GGUF_IQ4NL: ("IQ4_NL", 20, 32, 18),
    SchemeKind.GGUF_IQ3S: ("IQ3_S", 21, 256, 110),
    SchemeKind.GGUF_IQ2S: ("IQ2_S", 22, 256, 82),
    SchemeKind.GGUF_IQ4XS: ("IQ4_XS", 23, 256, 136),
    SchemeKind.GGUF_IQ1M: ("IQ1_M", 29, 256, 56),
    SchemeKind.GGUF_TQ1_0: ("TQ1_0", 34, 256, 54),
    SchemeKind.GGUF_TQ2_0: ("TQ2_0", 35, 256, 66),
    SchemeKind.GGUF_MXFP4: ("MXFP4", 39, 32, 17),
    SchemeKind.GGUF_NVFP4: ("NVFP4", 40, 64, 36),
}
_BY_FILE_NAME = {name: kind for kind, (name, _, _, _) in _GGUF.items()}
_BY_FILE_NUMBER = {number: kind for kind, (_, number, _, _) in _GGUF.items()}

_BLOCKED = (SchemeKind.INT8, SchemeKind.INT8_ASYM, SchemeKind.INT4)
_GROUPED = (SchemeKind.MLX_MXFP4, SchemeKind.MLX_MXFP8, SchemeKind.MXFP4X2)
MLX_BITS = (2, 3, 4, 5, 6, 8)
"""Widths of codes that MLX's affine scheme has."""


@final
@dataclass(frozen=True)
class QuantScheme:
    """What the bytes of a packed weight mean.

    Attributes:
        kind: the family.
        block: elements along K that share a scale; 0 where the kind says it (fp8, GGUF).
        bits: width of a code of ``mlx_affine``; 0 otherwise.
    """

    kind: SchemeKind
    block: int = 0
    bits: int = 0

    def __post_init__(self) -> None:
        kind, block = self.kind, self.block
        if not all(isinstance(n, numbers.Integral) for n in (block, self.bits)):
            raise RlxError(
                f"QuantScheme: block and bits are required to be ints; got {block!r} and "
                f"{self.bits!r}."
            )
        if kind in _BLOCKED:
            good, wanted = 0 < block < 2**31 and self.bits == 0, "a block > 0"
        elif kind is SchemeKind.MLX_AFFINE:
            good = self.bits in MLX_BITS and block in (32, 64, 128)
            wanted = f"bits of {', '.join(map(str, MLX_BITS))} and a group of 32, 64 or 128"
        elif kind is SchemeKind.NVFP4:
            good, wanted = block == 16 and self.bits == 0, "a group of 16"
        elif kind in _GROUPED:
            good = 0 < block < 2**31 and block % 8 == 0 and self.bits == 0
            wanted = "a group that is a multiple of 8"
        else:
            good, wanted = block == 0 and self.bits == 0, "neither block nor bits"
        if not good:
            raise RlxError(
                f"quant scheme {kind.value}: {wanted} is required; got block {block} and bits "
                f"{self.bits}. Choose other sizes."
            )

    @staticmethod
    def int8_block(block: int = 32) -> QuantScheme:
        """Signed bytes with a scale for each block."""
        return QuantScheme(SchemeKind.INT8, block)

    @staticmethod
    def int8_block_asym(block: int = 32) -> QuantScheme:
        """Signed bytes with a scale and a zero point for each block."""
        return QuantScheme(SchemeKind.INT8_ASYM, block)

    @staticmethod
    def int4_block(block: int = 32) -> QuantScheme:
        """Unsigned nibbles with a scale and a zero point for each block."""
        return QuantScheme(SchemeKind.INT4, block)

    @staticmethod
    def fp8_e4m3() -> QuantScheme:
        """OCP E4M3 bytes with a scale for each output."""
        return QuantScheme(SchemeKind.FP8_E4M3)

    @staticmethod
    def fp8_e5m2() -> QuantScheme:
        """OCP E5M2 bytes with a scale for each output."""
        return QuantScheme(SchemeKind.FP8_E5M2)

    @staticmethod
    def nvfp4_block() -> QuantScheme:
        """E2M1 nibbles with an E4M3 scale for each 16 and one f32 scale for all."""
        return QuantScheme(SchemeKind.NVFP4, 16)

    @staticmethod
    def mlx_affine(bits: int = 4, group_size: int = 64) -> QuantScheme:
        """MLX's integer codes with scale and bias for each group."""
        return QuantScheme(SchemeKind.MLX_AFFINE, group_size, bits)

    @staticmethod
    def mlx_mxfp4(group_size: int = 32) -> QuantScheme:
        """MLX's E2M1 nibbles with an E8M0 scale for each group."""
        return QuantScheme(SchemeKind.MLX_MXFP4, group_size)

    @staticmethod
    def mlx_mxfp8(group_size: int = 32) -> QuantScheme:
        """MLX's E4M3 bytes with an E8M0 scale for each group."""
        return QuantScheme(SchemeKind.MLX_MXFP8, group_size)

    @staticmethod
    def mxfp4x2_block(group_size: int = 32) -> QuantScheme:
        """Two planes of E2M1 nibbles, the second one of what the first leaves over."""
        return QuantScheme(SchemeKind.MXFP4X2, group_size)

    @staticmethod
    def gguf(type_: str | int) -> QuantScheme:
        """The scheme of a tensor type of GGUF files, by name (``"Q4_K"``) or number (12).

        Raises:
            RlxError: the type is unknown or not quantised.
        """
        if isinstance(type_, int):
            kind = _BY_FILE_NUMBER.get(type_)
        else:
            kind = _BY_FILE_NAME.get(str(type_).upper())
        if kind is None:
            raise RlxError(
                f"gguf type: one of {', '.join(_BY_FILE_NAME)} is required; got {type_!r}."
                f"{did_you_mean(str(type_).upper(), _BY_FILE_NAME)}"
            )
        return QuantScheme(kind)

    @staticmethod
    def parse(text: str) -> QuantScheme:
        """Read a display name, such as ``int8/32`` or ``gguf_q4k``.

        Raises:
            ParseError: the text is no scheme's name; the closest one is suggested.
        """
        name, *numbers = str(text).split("/")
        kinds = {kind.value: kind for kind in SchemeKind}
        kind = kinds.get(name)
        if kind is None:
            raise ParseError(
                f"quant scheme: a name such as 'int8/32', 'gguf_q4k' or 'mlx_affine/4/64' is "
                f"required; got {text!r}.{did_you_mean(name, kinds)}"
            )
        if not all(re.fullmatch("[1-9][0-9]{0,8}", number) for number in numbers):
            raise ParseError(
                f"quant scheme: sizes after '/' are required to be positive numbers; got {text!r}."
            )
        sizes = [int(number) for number in numbers]
        wanted = 2 if kind is SchemeKind.MLX_AFFINE else 1 if _has_block(kind) else 0
        if len(sizes) != wanted:
            raise ParseError(
                f"quant scheme: {name!r} is required to be followed by {wanted} sizes; "
                f"got {text!r}. Write {_EXAMPLES.get(kind, name)!r}."
            )
        try:
            if kind is SchemeKind.MLX_AFFINE:
                return QuantScheme(kind, sizes[1], sizes[0])
            return QuantScheme(kind, *sizes)
        except RlxError as error:
            raise ParseError(str(error)) from error

    def __str__(self) -> str:
        if self.kind is SchemeKind.MLX_AFFINE:
            return f"{self.kind.value}/{self.bits}/{self.block}"
        return f"{self.kind.value}/{self.block}" if self.block else self.kind.value

    @property
    def is_gguf(self) -> bool:
        """Whether the weight is rows of GGUF blocks, scales inside."""
        return self.kind in _GGUF

    @property
    def is_mlx(self) -> bool:
        """Whether it is one of MLX's schemes."""
        return self.kind.value.startswith("mlx_")

    @property
    def has_scale(self) -> bool:
        """Whether the scale is an input of its own (optional for fp8)."""
        return not self.is_gguf

    @property
    def has_zero_point(self) -> bool:
        """Whether a zero point (MLX: a bias) is required as an input of its own."""
        return self.kind in (SchemeKind.INT8_ASYM, SchemeKind.MLX_AFFINE)

    @property
    def takes_zero(self) -> bool:
        """Whether there may be a third tensor: zero point, bias or global scale."""
        return self.has_zero_point or self.kind in (
            SchemeKind.INT8, SchemeKind.INT4, SchemeKind.NVFP4,
        )  # fmt: skip

    @property
    def scale_is_fp8(self) -> bool:
        """Whether scales are E4M3 bytes."""
        return self.kind is SchemeKind.NVFP4

    @property
    def is_rows(self) -> bool:
        """Whether the weight is stored as [N, K] (GGUF, MLX, mxfp4x2) and not as [K, N]."""
        return self.is_gguf or self.is_mlx or self.kind is SchemeKind.MXFP4X2

    @property
    def block_size(self) -> int:
        """Elements along K that share a scale; 1 where only whole outputs do (fp8)."""
        return _GGUF[self.kind][2] if self.is_gguf else self.block or 1

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's codes (GGUF: and of its scales)."""
        if self.is_gguf:
            return _GGUF[self.kind][3]
        return self.block_size * self.code_bits // 8

    @property
    def gguf_block_size(self) -> int | None:
        """Elements of a GGUF block, or None."""
        return self.block_size if self.is_gguf else None

    @property
    def gguf_block_bytes(self) -> int | None:
        """Bytes of a GGUF block, or None."""
        return self.block_bytes if self.is_gguf else None

    @property
    def gguf_type(self) -> str | None:
        """The tensor type's name in GGUF files, or None."""
        return _GGUF[self.kind][0] if self.is_gguf else None

    @property
    def gguf_number(self) -> int | None:
        """The tensor type's number in GGUF files, or None."""
        return _GGUF[self.kind][1] if self.is_gguf else None

    @property
    def nvfp4_group_size(self) -> int | None:
        """Elements that share an E4M3 scale of nvfp4, or None."""
        return self.block if self.kind is SchemeKind.NVFP4 else None

    @property
    def mxfp4x2_config(self) -> int | None:
        """The group size of mxfp4x2, or None."""
        return self.block if self.kind is SchemeKind.MXFP4X2 else None

    @property
    def code_bits(self) -> int:
        """Bits of the code of one element, without scales (GGUF: the block's bits, floored)."""
        match self.kind:
            case SchemeKind.MLX_AFFINE:
                return self.bits
            case SchemeKind.INT4 | SchemeKind.NVFP4 | SchemeKind.MLX_MXFP4:
                return 4
            case _:
                if self.is_gguf:
                    return self.block_bytes * 8 // self.block_size
                return 8

    @property
    def bits_per_element(self) -> float:
        """Stored bits for one element, scales and zero points included (f32 where they are)."""
        if self.is_gguf:
            return self.block_bytes * 8 / self.block_size
        match self.kind:
            case SchemeKind.FP8_E4M3 | SchemeKind.FP8_E5M2:
                return 8.0
            case SchemeKind.INT8:
                return 8 + 32 / self.block
            case SchemeKind.INT8_ASYM | SchemeKind.INT4:
                return self.code_bits + 64 / self.block
            case SchemeKind.MLX_AFFINE:
                return self.bits + 32 / self.block  # scale and bias of 16 bits
            case SchemeKind.MXFP4X2:
                return 8 + 16 / self.block
            case _:
                return self.code_bits + 8 / self.block

    @property
    def bits_per_element_x10(self) -> int:
        """Ten times the stored bits for one element, rounded."""
        return round(self.bits_per_element * 10)


def _has_block(kind: SchemeKind) -> bool:
    return kind in _BLOCKED or kind in _GROUPED or kind is SchemeKind.NVFP4


_EXAMPLES = {
    SchemeKind.INT8: "int8/32",
    SchemeKind.INT8_ASYM: "int8a/32",
    SchemeKind.INT4: "int4/32",
    SchemeKind.NVFP4: "nvfp4/16",
    SchemeKind.MLX_AFFINE: "mlx_affine/4/64",
    SchemeKind.MLX_MXFP4: "mlx_mxfp4/32",
    SchemeKind.MLX_MXFP8: "mlx_mxfp8/32",
    SchemeKind.MXFP4X2: "mxfp4x2/32",
}


def all_schemes() -> tuple[QuantScheme, ...]:
    """One scheme of every kind, with the usual sizes."""
    return tuple(QuantScheme.parse(_EXAMPLES.get(kind, kind.value)) for kind in SchemeKind)


def require_scheme(where: str, scheme: object) -> None:
    """Refuse what is no scheme.

    Raises:
        RlxError: it is none.
    """
    if not isinstance(scheme, QuantScheme):
        raise RlxError(
            f"{where}: a QuantScheme is required; got {scheme!r}. Write "
            "rlx.quant.QuantScheme.parse('gguf_q8_0'), or another name."
        )
