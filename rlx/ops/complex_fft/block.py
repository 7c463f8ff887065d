"""RLX's transform, its layout of spectra as two blocks of reals, and power."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType, Kind
from rlx.errors import DTypeError, InconclusiveDimError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most
from rlx.ops.complex_fft.general import Complex, Fft, FftNorm, FftType, Imag, Real
from rlx.ops.elementwise import parts, require_kind
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("complex_norm_sq")
class ComplexNormSq(Op):
    """Squared modulus.

    y = (Re x)² + (Im x)²

    Inputs:
        x: T[...]   complex.

    Result:
        f32[...] for c64, f64[...] for c128.

    Constraints:
        C1: x is complex.

    Source: RLX `Op::ComplexNormSq`.
    """

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, frozenset({Kind.COMPLEX}))
        return x.with_dtype(x.dtype.real)

    def evaluate(self, x: Array) -> Array:
        real, imag = parts(x)
        with np.errstate(all="ignore"):
            return np.asarray(real * real + imag * imag)

    def decompose(self, x: Value) -> Value:
        real, imag = Real()(x), Imag()(x)
        return real * real + imag * imag


@final
class BlockNorm(enum.Enum):
    """RLX's norms: nothing is scaled, the inverse by 1/N, or both directions by 1/√N."""

    BACKWARD = "backward"
    FORWARD = "forward"
    ORTHO = "ortho"


@define_op("block_fft")
class BlockFft(Op):
    """Discrete Fourier transform over the last axis, in RLX's layout and scaling.

    y[k] = scale · Σ_j x[j] · e^(∓2πi · j·k/N), − forward, + inverse

    Inputs:
        x: f32 or f64[..., 2N]   N real parts, then N imaginary parts; or complex[..., N].

    Attributes:
        inverse: which direction.
        norm: backward (default) scales neither direction, so that the inverse of the forward one
            is N · x; forward scales the inverse by 1/N; ortho scales both by 1/√N.

    Result:
        Same type as x.

    Constraints:
        C1: x is f32, f64 or complex.
        C2: x has a last axis of at least one element, an even number of them for real dtypes.

    Source: RLX `Op::Fft`; `fft` is the transform with JAX's meaning.
    """

    inverse: bool = False
    norm: BlockNorm = BlockNorm.BACKWARD

    def infer(self, x: TensorType) -> TensorType:
        self.require(
            "C1",
            x.dtype in (DType.F32, DType.F64) or x.dtype.is_complex,
            lambda: f"x is required to be f32, f64 or complex; got {x}. Convert it.",
            DTypeError,
        )
        check_block(self, "C2", "x", x)
        return x

    def evaluate(self, x: Array) -> Array:
        if x.dtype.kind == "c":
            return self._transform(x).astype(x.dtype)
        real, imag = np.split(x.astype(np.float64), 2, axis=-1)
        made = self._transform(real + 1j * imag)
        return np.concatenate(parts(made), axis=-1).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        from rlx.ops.shape import Concatenate

        real = not x.dtype.is_complex
        size = x.shape[-1]
        if not isinstance(size, int):
            raise InconclusiveDimError(
                f"block_fft: the last axis of x is required to be known for the decomposition; got "
                f"x: {x.type}. Bind {size} first."
            )
        count = size // (2 if real else 1)
        kind = FftType.IFFT if self.inverse else FftType.FFT
        op = Fft(fft_type=kind, fft_lengths=(count,), norm=self._numpy_norm())
        if not real:
            return op(x)
        axis = x.rank - 1
        made: Value = op(Complex()(x.narrow(axis, 0, count), x.narrow(axis, count, count)))
        return Concatenate(axis=axis)(Real()(made), Imag()(made))

    def _transform(self, x: Array) -> Array:
        if not x.size:
            return x
        function = np.fft.ifft if self.inverse else np.fft.fft
        wide = x.astype(np.complex128)
        return np.asarray(function(wide, axis=-1, norm=self._numpy_norm().value))

    def _numpy_norm(self) -> FftNorm:
        if self.norm is BlockNorm.ORTHO:
            return FftNorm.ORTHO
        unscaled_inverse = self.inverse and self.norm is BlockNorm.BACKWARD
        return FftNorm.FORWARD if unscaled_inverse else FftNorm.BACKWARD


def check_block(op: Op, label: str, name: str, x: TensorType) -> None:
    """Require a last axis of 2N elements, N ≥ 1, for a real dtype; of N for a complex one."""
    least = 1 if x.dtype.is_complex else 2
    message = (
        f"{name} is required to have a last axis of {'N' if least == 1 else '2N'} elements, "
        f"N ≥ 1; got {x}. Put the imaginary parts behind the real ones."
    )
    op.require(label, x.rank >= 1, message)
    require_at_most(op, label, least, x.shape[-1], message)
    try:
        op.require(label, dims.divisible(x.shape[-1], least), message)
    except InconclusiveDimError as error:
        raise InconclusiveDimError(
            f"{op.op_name} [{label}]: {message} {error}", label=label
        ) from error
