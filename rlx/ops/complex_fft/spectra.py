"""What is read off spectra: Whisper's log-mel features, and the strongest bins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most
from rlx.ops.complex_fft.block import check_block
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value

LEAST_POWER = 1e-10
"""What a mel power is raised to before its logarithm is taken."""


@define_op("log_mel")
class LogMel(Op):
    """Whisper's log-mel features of a spectrum.

    m = log10(max(filters · |spectrum|², 1e-10));  y = (max(m, max(m) − 8) + 4) / 4

    Inputs:
        spectrum: T[..., frames, 2K]   K real parts, then K imaginary parts.
        filters: T[mels, K]

    Result:
        T[..., frames, mels]; the inner maximum is over the frames and mels of one spectrum.

    Constraints:
        C1: spectrum is [..., frames, 2K] with K ≥ 1, and filters [mels, K].
        C2: one dtype, f32 or f64.

    Source: RLX `Op::LogMel`; Radford et al. 2022, arXiv:2212.04356.
    """

    def infer(self, spectrum: TensorType, filters: TensorType) -> TensorType:
        message = (
            f"spectrum is required to be [..., frames, 2K] and filters [mels, K]; got {spectrum} "
            f"and {filters}. Transpose or slice them."
        )
        self.require("C1", spectrum.rank >= 2 and filters.rank == 2, message)
        check_block(self, "C1", "spectrum", spectrum.with_dtype(DType.F32))
        self.require_same_dims("C1", (filters.shape[1] * 2,), spectrum.shape[-1:], message)
        _check_dtype(self, "spectrum", spectrum)
        self.require(
            "C2",
            filters.dtype is spectrum.dtype,
            lambda: (
                f"spectrum and filters are required to have one dtype; got {spectrum} and "
                f"{filters}. Convert one."
            ),
            DTypeError,
        )
        return spectrum.with_shape((*spectrum.shape[:-1], filters.shape[0]))

    def evaluate(self, spectrum: Array, filters: Array) -> Array:
        wide: Any = spectrum.astype(np.float64)
        real, imag = np.split(wide, 2, axis=-1)
        with np.errstate(all="ignore"):
            power = (real * real + imag * imag) @ filters.astype(np.float64).T
            logs = np.log10(np.maximum(power, LEAST_POWER))
            top = logs.max(axis=(-2, -1), keepdims=True, initial=-np.inf)
            return ((np.maximum(logs, top - 8) + 4) / 4).astype(spectrum.dtype)

    def decompose(self, spectrum: Value, filters: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.arithmetic import Max
        from rlx.ops.dot import DotGeneral

        power = _power(spectrum)
        product = DotGeneral(lhs_contracting=(power.rank - 1,), rhs_contracting=(1,))
        mel: Value = product(power, filters)
        least = broadcast_to(constant(LEAST_POWER, mel.dtype), mel.shape)
        logs = Max()(mel, least).log() * float(1 / np.log(10.0))
        top = logs.max((-2, -1), keepdims=True) - 8.0
        return (Max()(logs, broadcast_to(top, logs.shape)) + 4.0) / 4.0


@define_op("welch_peaks")
class WelchPeaks(Op):
    """The strongest bins of a power spectrum that is averaged over segments (Welch's method).

    p[b] = Σ_s |x[s, b]|² / n_segments;  y = [b_0, p_0, b_1, p_1, …],  p_0 ≥ p_1 ≥ …

    Inputs:
        x: T[batch, n_segments, 2K]   spectra: K real parts, then K imaginary parts.

    Attributes:
        k: how many bins.
        n_segments: over how many segments the power is averaged.

    Result:
        T[batch, 2·k]: pairs of a bin's number and its power; of equal ones the lower bin is first.

    Constraints:
        C1: x is [batch, n_segments, 2K] with K ≥ 1 and n_segments ≥ 1.
        C2: x is f32 or f64.
        C3: 1 ≤ k ≤ K.

    Source: RLX `Op::WelchPeaks`; Welch 1967.
    """

    k: int
    n_segments: int

    def infer(self, x: TensorType) -> TensorType:
        message = (
            f"x is required to be [batch, {self.n_segments}, 2K] with at least one segment; got "
            f"{x}. Reshape it."
        )
        self.require("C1", x.rank == 3 and self.n_segments >= 1, message)
        self.require_same_dims("C1", x.shape[1:2], (self.n_segments,), message)
        check_block(self, "C1", "x", x.with_dtype(DType.F32))
        _check_dtype(self, "x", x)
        text = f"k is required to be from 1 to the bins of x: {x}; got {self.k}. Choose another."
        self.require("C3", self.k >= 1, text)
        require_at_most(self, "C3", 2 * self.k, x.shape[2], text)
        return x.with_shape((x.shape[0], 2 * self.k))

    def evaluate(self, x: Array) -> Array:
        real, imag = np.split(x, 2, axis=-1)
        power = (real * real + imag * imag).sum(axis=1, dtype=x.dtype) / x.dtype.type(
            self.n_segments
        )
        order = np.argsort(-power, axis=-1, kind="stable")[:, : self.k]
        pairs = order.astype(x.dtype), np.take_along_axis(power, order, -1)
        return np.stack(pairs, axis=-1).reshape(x.shape[0], 2 * self.k)

    def decompose(self, x: Value) -> Value:
        from rlx.ops.shape import Concatenate
        from rlx.ops.sorting import TopK

        power = _power(x).sum(1) / float(self.n_segments)
        values, bins = TopK(k=self.k)(power)
        shape = (x.shape[0], self.k, 1)
        pairs: Value = Concatenate(axis=2)(
            bins.convert(x.dtype).reshape(shape), values.reshape(shape)
        )
        return pairs.reshape(x.shape[0], 2 * self.k)


def _check_dtype(op: Op, name: str, x: TensorType) -> None:
    op.require(
        "C2",
        x.dtype in (DType.F32, DType.F64),
        lambda: f"{name} is required to be f32 or f64; got {x}. Convert it.",
        DTypeError,
    )


def _power(x: Value) -> Value:
    """Squared moduli of a spectrum in two blocks."""
    axis = x.rank - 1
    count = dims.floordiv_(x.shape[axis], 2)
    real, imag = x.narrow(axis, 0, count), x.reshape(*x.shape[:-1], 2, count)
    imag = imag.narrow(axis, 1, 1).reshape(*x.shape[:-1], count)
    return real * real + imag * imag
