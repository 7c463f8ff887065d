"""Parts of complex numbers, and Fourier transforms."""

from __future__ import annotations

import enum
import math

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.errors import DTypeError, ShapeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import parts, require_kind, require_same_type
from rlx.types import TensorType

_COMPLEX = frozenset({Kind.COMPLEX})
_WHOLE = {DType.F32: DType.C64, DType.F64: DType.C128}


@define_op("real")
class Real(Op):
    """Real part.

    y = Re x

    Inputs:
        x: T[...]   complex.

    Result:
        f32[...] for c64, f64[...] for c128.

    Constraints:
        C1: x is complex.

    Source: StableHLO `real`, `jax.lax.real`.
    """

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, _COMPLEX)
        return x.with_dtype(x.dtype.real)

    def evaluate(self, x: Array) -> Array:
        return parts(x)[0].copy()


@define_op("imag")
class Imag(Op):
    """Imaginary part.

    y = Im x

    Inputs:
        x: T[...]   complex.

    Result:
        f32[...] for c64, f64[...] for c128.

    Constraints:
        C1: x is complex.

    Source: StableHLO `imag`, `jax.lax.imag`.
    """

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, _COMPLEX)
        return x.with_dtype(x.dtype.real)

    def evaluate(self, x: Array) -> Array:
        return parts(x)[1].copy()


@define_op("complex")
class Complex(Op):
    """A complex number from its parts.

    y = lhs + i · rhs

    Inputs:
        lhs: T[...]   f32 or f64, the real part.
        rhs: T[...]   same type as lhs, the imaginary part.

    Result:
        c64[...] for f32, c128[...] for f64.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.
        C3: the dtype is f32 or f64.

    Source: StableHLO `complex`, `jax.lax.complex`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        require_same_type(self, "lhs", lhs, "rhs", rhs)
        self.require(
            "C3",
            lhs.dtype in _WHOLE,
            f"the parts are required to be f32 or f64; got {lhs}. Convert them.",
            DTypeError,
        )
        return lhs.with_dtype(_WHOLE[lhs.dtype])

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        whole = np.empty(lhs.shape, np.result_type(lhs.dtype, np.complex64))
        whole.real, whole.imag = lhs, rhs
        return whole


@define_op("conj")
class Conj(Op):
    """Complex conjugate.

    y = Re x - i · Im x

    Inputs:
        x: T[...]   complex.

    Result:
        Same type as x.

    Constraints:
        C1: x is complex.

    Source: `jax.lax.conj`.
    """

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, _COMPLEX)
        return x

    def evaluate(self, x: Array) -> Array:
        return np.conj(x)


class FftType(enum.Enum):
    """Which transform."""

    FFT = "fft"
    IFFT = "ifft"
    RFFT = "rfft"
    IRFFT = "irfft"


class FftNorm(enum.Enum):
    """Which direction is scaled: the inverse by 1/n, the forward one by 1/n, or both by 1/√n."""

    BACKWARD = "backward"
    FORWARD = "forward"
    ORTHO = "ortho"


@define_op("fft")
class Fft(Op):
    """Discrete Fourier transform over the last axes.

    y[k] = scale · Σ_j x[j] · e^(∓2πi · j·k/n);  - forward (fft, rfft), + inverse (ifft, irfft)

    Inputs:
        x: T[..., n_1, …, n_m]   f32 or f64 for rfft, complex for the others.

    Attributes:
        fft_type: fft, ifft, rfft (real to half of the complex spectrum) or irfft (back).
        fft_lengths: n_1 … n_m; the sizes of the transform, those of the result for irfft.
        norm: what is scaled; backward (default) scales the inverse by 1/(n_1 … n_m).

    Result:
        Same type as x for fft and ifft; the last axis has n_m // 2 + 1 complex elements for rfft,
        and n_m real ones for irfft.

    Constraints:
        C1: there are 1 to rank(x) fft_lengths, all ≥ 1.
        C2: x is f32 or f64 for rfft, and complex for the others.
        C3: the last axes of x are fft_lengths (the very last n_m // 2 + 1 for irfft).

    Source: StableHLO `fft`, `jax.lax.fft`; RLX `Op::Fft` and its `FftNorm`.
    """

    fft_type: FftType
    fft_lengths: tuple[int, ...]
    norm: FftNorm = FftNorm.BACKWARD

    def infer(self, x: TensorType) -> TensorType:
        lengths = self.fft_lengths
        self.require(
            "C1",
            1 <= len(lengths) <= x.rank and min(lengths, default=0) >= 1,
            f"fft_lengths are required to be 1 to {x.rank} numbers ≥ 1 for x: {x}; got {lengths}. "
            "Name the sizes of the last axes.",
            ShapeError,
        )
        real_input = self.fft_type is FftType.RFFT
        self.require(
            "C2",
            x.dtype in _WHOLE if real_input else x.dtype.is_complex,
            f"{self.fft_type.value} is required to get {'f32 or f64' if real_input else 'complex'}"
            f"; got {x}. Convert it.",
            DTypeError,
        )
        half = (*lengths[:-1], lengths[-1] // 2 + 1)
        wanted = half if self.fft_type is FftType.IRFFT else lengths
        self.require_same_dims(
            "C3",
            x.shape[-len(lengths) :],
            wanted,
            f"the last axes of x are required to be {wanted} for {self.fft_type.value} of lengths "
            f"{lengths}; got {x}. Slice or pad it.",
        )
        lead = x.shape[: -len(lengths)]
        if real_input:
            return TensorType(_WHOLE[x.dtype], (*lead, *half))
        if self.fft_type is FftType.IRFFT:
            return TensorType(x.dtype.real, (*lead, *lengths))
        return x

    def evaluate(self, x: Array) -> Array:
        axes = tuple(range(-len(self.fft_lengths), 0))
        real_input = self.fft_type is FftType.RFFT
        wide = x.astype(np.float64 if real_input else np.complex128)
        if not x.size:
            tail = list(self.fft_lengths)
            if real_input:
                tail[-1] = tail[-1] // 2 + 1
            return np.zeros((*x.shape[: -len(tail)], *tail), self._result_dtype(x))
        transform = {
            FftType.FFT: np.fft.fftn,
            FftType.IFFT: np.fft.ifftn,
            FftType.RFFT: np.fft.rfftn,
            FftType.IRFFT: np.fft.irfftn,
        }[self.fft_type]
        result = transform(wide, s=self.fft_lengths, axes=axes, norm=self.norm.value)
        return np.asarray(result).astype(self._result_dtype(x))

    def scale(self) -> float:
        """What the transform is multiplied with on top of the scaling that backward has."""
        count = math.prod(self.fft_lengths)
        forward = self.fft_type in (FftType.FFT, FftType.RFFT)
        if self.norm is FftNorm.BACKWARD:
            return 1.0
        if self.norm is FftNorm.ORTHO:
            return 1 / math.sqrt(count) if forward else math.sqrt(count)
        return 1 / count if forward else float(count)

    def _result_dtype(self, x: Array) -> np.dtype[np.generic]:
        single = x.dtype in (np.dtype(np.float32), np.dtype(np.complex64))
        if self.fft_type is FftType.IRFFT:
            return np.dtype(np.float32 if single else np.float64)
        return np.dtype(np.complex64 if single else np.complex128)
