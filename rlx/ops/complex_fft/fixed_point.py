"""Transforms by radix-2 stages: in fixed point, and one stage of floats behind a gate."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.complex_fft.block import BlockNorm
from rlx.ops.elementwise import FLOATING, require_kind, round_to
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value

FRACTION_BITS = 15
"""Twiddle factors are integers over 2¹⁵."""


@final
class FftQScale(enum.Enum):
    """Whether numbers grow with the sums, or each stage halves them."""

    NONE = "none"
    PER_STAGE = "per_stage"


@define_op("fft_q")
class FftQ(Op):
    """Discrete Fourier transform in fixed point, by radix-2 stages.

    (a, b) → (a + t, a − t),  t = (b · w + 2¹⁴) >> 15,  w = round(2¹⁵ · e^(∓2πi · j/2h))

    Inputs:
        x: i16 or i32[..., 2N]   N real parts, then N imaginary parts; N is a power of two.

    Attributes:
        inverse: which direction.
        norm: backward scales neither direction; forward shifts the inverse by log2 N bits; ortho
            multiplies both by round(2¹⁵ / √N) and shifts.
        scale: per_stage halves what comes out of every stage, rounding halves up, so that the
            result is 1/N of the transform.

    Result:
        Same type as x; numbers are i64 on the way and saturate at the end.

    Constraints:
        C1: x is i16 or i32.
        C2: x has a last axis of 2N elements, N a known power of two.

    Numerics: integers only, so that every device gives the same bits. Right shifts round halves up.
    Source: RLX `Op::FftQ`, of which only the attributes are documented; Cooley & Tukey 1965.
    """

    inverse: bool = False
    norm: BlockNorm = BlockNorm.BACKWARD
    scale: FftQScale = FftQScale.NONE

    def infer(self, x: TensorType) -> TensorType:
        self.require(
            "C1",
            x.dtype in (DType.I16, DType.I32),
            lambda: f"x is required to be i16 or i32; got {x}. Quantize it.",
            DTypeError,
        )
        size = x.shape[-1] if x.rank else 0
        self.require(
            "C2",
            isinstance(size, int) and size >= 2 and size & (size - 1) == 0,
            lambda: (
                f"x is required to have a last axis of 2N elements, N a known power of two; got "
                f"{x}. Pad it and bind its symbols."
            ),
        )
        return x

    def decompose(self, x: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.arithmetic import Max, Min
        from rlx.ops.indexing import Gather
        from rlx.ops.shape import Concatenate

        count = dims.evaluate(x.shape[-1], {}) // 2
        rows = dims.product(x.shape[:-1])
        order = constant(_bit_reversed(count))
        wide = x.convert(DType.I64).reshape(rows, 2, count)
        both: Value = Gather(axis=2)(wide, order)
        real, imag = (both.narrow(1, i, 1).reshape(rows, count) for i in (0, 1))
        for stage in range(count.bit_length() - 1):
            real, imag = self._stage(real, imag, stage)
        made: Value = Concatenate(axis=1)(real, imag)
        made = self._scaled(made, count)
        limits = np.iinfo(x.dtype.numpy)
        for op, limit in ((Max(), int(limits.min)), (Min(), int(limits.max))):
            made = op(made, broadcast_to(constant(limit, DType.I64), made.shape))
        return made.convert(x.dtype).reshape(x.shape)

    def _stage(self, real: Value, imag: Value, stage: int) -> tuple[Value, Value]:
        from rlx.ir.operators import broadcast_to, constant

        rows, count = real.shape
        half = 1 << stage
        shape = (rows, dims.floordiv_(count, 2 * half), half)
        twiddle = np.rint(_twiddles(half, self.inverse) * 2**FRACTION_BITS)
        cosine, sine = (
            broadcast_to(constant(part.astype(np.int64)), shape)
            for part in (twiddle.real, twiddle.imag)
        )
        (a_real, b_real), (a_imag, b_imag) = (_pairs(v, shape) for v in (real, imag))
        t_real = _shifted(b_real * cosine - b_imag * sine, FRACTION_BITS)
        t_imag = _shifted(b_real * sine + b_imag * cosine, FRACTION_BITS)
        bits = 1 if self.scale is FftQScale.PER_STAGE else 0
        return (
            _joined(_shifted(a_real + t_real, bits), _shifted(a_real - t_real, bits)),
            _joined(_shifted(a_imag + t_imag, bits), _shifted(a_imag - t_imag, bits)),
        )

    def _scaled(self, x: Value, count: int) -> Value:
        if self.norm is BlockNorm.ORTHO:
            return _shifted(x * round(2**FRACTION_BITS / math.sqrt(count)), FRACTION_BITS)
        if self.norm is BlockNorm.FORWARD and self.inverse:
            return _shifted(x, count.bit_length() - 1)
        return x


@define_op("fft_butterfly_stage")
class FftButterflyStage(Op):
    """One stage of a radix-2 transform, blended with its input.

    for each pair (a, b) = (x[i], x[i + 2^stage]), w = e^(−2πi · j/2^(stage + 1)):
    y = (1 − gate) · (a, b) + gate · (a + b·w, a − b·w)

    Inputs:
        x: T[batch, n_fft, 2]   real and imaginary parts along the last axis.
        gate: T[n_fft / 2]   one for each pair, in the order of a; 1 is the stage itself.

    Attributes:
        stage: which one, from 0; stages 0, 1, … on bit-reversed input with gates of 1 make up the
            transform.
        n_fft: its size, a power of two.

    Result:
        Same type as x.

    Constraints:
        C1: n_fft is a power of two ≥ 2, and 2^(stage + 1) ≤ n_fft.
        C2: x is [batch, n_fft, 2] and gate [n_fft / 2].
        C3: one dtype, a float.

    Numerics: floats narrower than f32 are computed in f32 and rounded once.
    Source: RLX `Op::FftButterflyStage`, of which only the attributes are documented.
    """

    stage: int
    n_fft: int

    def infer(self, x: TensorType, gate: TensorType) -> TensorType:
        n = self.n_fft
        self.require(
            "C1",
            n >= 2 and n & (n - 1) == 0 and 0 <= self.stage < n.bit_length() - 1,
            f"n_fft is required to be a power of two and stage from 0 to log2(n_fft) − 1; got "
            f"{n} and {self.stage}. Correct the attribute.",
        )
        message = (
            f"x is required to be [batch, {n}, 2] and gate [{n // 2}]; got {x} and {gate}. "
            "Reshape them."
        )
        self.require("C2", (x.rank, gate.rank) == (3, 1), message)
        self.require_same_dims("C2", (*x.shape[1:], *gate.shape), (n, 2, n // 2), message)
        require_kind(self, "C3", "x", x, FLOATING)
        self.require(
            "C3",
            gate.dtype is x.dtype,
            lambda: f"x and gate are required to have one dtype; got {x} and {gate}. Convert one.",
            DTypeError,
        )
        return x

    def evaluate(self, x: Array, gate: Array) -> Array:
        dtype = as_dtype(x.dtype)
        wide: Any = x.astype(np.float64)
        half = 1 << self.stage
        groups = self.n_fft // (2 * half)
        z = (wide[..., 0] + 1j * wide[..., 1]).reshape(x.shape[0], groups, 2, half)
        weight = gate.astype(np.float64).reshape(1, -1, half)
        a, t = z[:, :, 0], z[:, :, 1] * _twiddles(half, False)
        made = np.stack([a + t, a - t], axis=2)
        mixed = (z * (1 - weight[:, :, None]) + made * weight[:, :, None]).reshape(x.shape[:2])
        return round_to(np.stack([mixed.real, mixed.imag], axis=-1), dtype)

    def decompose(self, x: Value, gate: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.shape import Concatenate

        wide = x.dtype.compute
        half, batch = 1 << self.stage, x.shape[0]
        shape = (batch, self.n_fft // (2 * half), half)
        x_wide = x.convert(wide)
        real, imag = (x_wide.narrow(2, i, 1).reshape(batch, self.n_fft) for i in (0, 1))
        weight = broadcast_to(gate.convert(wide).reshape(shape[1:]), shape)
        twiddle = _twiddles(half, False)
        cosine, sine = (
            broadcast_to(constant(part.astype(wide.numpy)), shape)
            for part in (twiddle.real, twiddle.imag)
        )
        (a_real, b_real), (a_imag, b_imag) = (_pairs(v, shape) for v in (real, imag))
        t_real = b_real * cosine - b_imag * sine
        t_imag = b_real * sine + b_imag * cosine
        rest = 1.0 - weight
        columns = [
            _joined(rest * a + weight * (a + t), rest * b + weight * (a - t)).reshape(
                batch, self.n_fft, 1
            )
            for a, b, t in ((a_real, b_real, t_real), (a_imag, b_imag, t_imag))
        ]
        made: Value = Concatenate(axis=2)(*columns)
        return made.convert(x.dtype)


def _twiddles(half: int, inverse: bool) -> Any:
    """e^(∓2πi · j / 2h) for j < h."""
    turn = np.arange(half) / (2 * half)
    return np.exp((2j if inverse else -2j) * np.pi * turn)


def _bit_reversed(count: int) -> Array:
    """Where each element of bit-reversed order comes from, as i32[count]."""
    places = np.arange(count)
    result = np.zeros_like(places)
    for _ in range(count.bit_length() - 1):
        result, places = result << 1 | places & 1, places >> 1
    return result.astype(np.int32)


def _pairs(x: Value, shape: tuple[Any, ...]) -> tuple[Value, Value]:
    """[rows, count] as the two halves [rows, groups, half] of each group."""
    rows, groups, half = shape
    grouped = x.reshape(rows, groups, 2, half)
    first, second = (grouped.narrow(2, i, 1).reshape(shape) for i in (0, 1))
    return first, second


def _joined(a: Value, b: Value) -> Value:
    from rlx.ops.shape import Concatenate

    rows, groups, half = a.shape
    columns = (v.reshape(rows, groups, 1, half) for v in (a, b))
    made: Value = Concatenate(axis=2)(*columns)
    return made.reshape(rows, groups * 2 * half)


def _shifted(x: Value, bits: int) -> Value:
    """X / 2^bits, halves rounded up."""
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.bitwise import ShiftRightArithmetic

    if not bits:
        return x
    amount = broadcast_to(constant(bits, x.dtype), x.shape)
    return ShiftRightArithmetic()(x + (1 << (bits - 1)), amount)
