"""Short names for transforms, as RLX's graph builder has them.

Spectra of real signals come as a pair (real part, imaginary part). Sizes along transformed axes
are numbers: bind symbols first. Functions that say so pad to a power of two, as RLX does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from rlx import dims
from rlx.errors import DTypeError, ShapeError
from rlx.ir.graph import Value
from rlx.ir.operators import broadcast_to, constant, located, normalise_axis
from rlx.ops.complex_fft.block import BlockFft, BlockNorm, ComplexNormSq
from rlx.ops.complex_fft.general import Complex, Fft, FftNorm, FftType, Imag, Real


def fft_axis(
    x: Value, axis: int, *, inverse: bool = False, norm: BlockNorm = BlockNorm.BACKWARD
) -> Value:
    """`block_fft` along any axis: complex, or real with the imaginary parts behind the real ones.

    Args:
        x: f32, f64 or complex.
        axis: which axis; negative ones count from the end.
        inverse: which direction.
        norm: what is scaled; backward scales nothing.

    Raises:
        ShapeError: the axis is out of range.
    """
    axis = normalise_axis(axis, x.rank, "fft_axis")
    if not 0 <= axis < x.rank:
        error = ShapeError(
            f"fft_axis: axis is required to be in range for x: {x.type}, −{x.rank} ≤ axis < "
            f"{x.rank}; got {axis}. Choose another axis."
        )
        raise located(error)
    order = [a for a in range(x.rank) if a != axis] + [axis]
    back = [order.index(a) for a in range(x.rank)]
    return BlockFft(inverse=inverse, norm=norm)(x.transpose(order)).transpose(back)


def fftn(
    x: Value, axes: Sequence[int] | None = None, *, norm: BlockNorm = BlockNorm.BACKWARD
) -> Value:
    """Transform along several axes, all by default, of a complex tensor.

    Raises:
        DTypeError: x is not complex; only one axis can hold parts in blocks.
    """
    return _along(x, axes, False, norm)


def ifftn(
    x: Value, axes: Sequence[int] | None = None, *, norm: BlockNorm = BlockNorm.BACKWARD
) -> Value:
    """Inverse of `fftn`; with the default norm unscaled, as RLX's.

    Raises:
        DTypeError: x is not complex; only one axis can hold parts in blocks.
    """
    return _along(x, axes, True, norm)


def _along(x: Value, axes: Sequence[int] | None, inverse: bool, norm: BlockNorm) -> Value:
    if not x.dtype.is_complex:
        raise DTypeError(
            f"{'ifftn' if inverse else 'fftn'}: x is required to be complex; got {x.type}. "
            "Make it with rlx.ops.Complex, or use fft_axis for one axis."
        )
    result = x
    if not isinstance(cast("object", axes), list | tuple | range | None):
        raise ShapeError(
            f"{'ifftn' if inverse else 'fftn'}: axes are required to be a list, or None; got "
            f"{axes!r}. Use fft_axis for one axis."
        )
    for axis in range(x.rank) if axes is None else axes:
        result = fft_axis(result, axis, inverse=inverse, norm=norm)
    return result


def pad_last_axis_to_pow2(x: Value) -> Value:
    """Zeros behind the last axis, up to the next power of two."""
    from rlx.ops.shape import Pad

    size = _size("pad_last_axis_to_pow2", x)
    wanted = 1 << (size - 1).bit_length()
    if wanted == size:
        return x
    none = (0,) * x.rank
    zero = constant(np.zeros((), x.dtype.numpy))
    return Pad(low=none, high=(*none[1:], wanted - size), interior=none)(x, zero)


def split_spectrum(x: Value) -> tuple[Value, Value]:
    """Real and imaginary part of a spectrum, complex or in two blocks along the last axis."""
    if x.dtype.is_complex:
        return Real()(x), Imag()(x)
    size = _size("split_spectrum", x)
    if size % 2:
        raise ShapeError(
            f"split_spectrum: an even last axis is required; got {x.type}. Pass real and "
            "imaginary parts one behind the other."
        )
    axis = x.rank - 1
    return x.narrow(axis, 0, size // 2), x.narrow(axis, size // 2, size // 2)


def join_spectrum(real: Value, imag: Value) -> Value:
    """The two parts as one tensor: imaginary parts behind the real ones along the last axis."""
    from rlx.ops.shape import Concatenate

    return Concatenate(axis=real.rank - 1)(real, imag)


def fft_real(x: Value) -> tuple[Value, Value]:
    """Whole spectrum of real signals along the last axis, padded to a power of two.

    Returns:
        Real and imaginary part, each [..., n_pad].
    """
    padded = pad_last_axis_to_pow2(x)
    zeros = broadcast_to(constant(0.0, x.dtype), padded.shape)
    return split_spectrum(BlockFft()(Complex()(padded, zeros)))


def ifft_spectrum(
    real: Value, imag: Value, *, norm: BlockNorm = BlockNorm.BACKWARD
) -> tuple[Value, Value]:
    """Inverse transform of a whole spectrum given by its parts; unscaled by default."""
    made = BlockFft(inverse=True, norm=norm)(Complex()(real, imag))
    return split_spectrum(made)


def rfft(x: Value) -> tuple[Value, Value]:
    """Half of the spectrum of real signals along the last axis, padded to a power of two.

    Returns:
        Real and imaginary part, each [..., n_pad / 2 + 1].
    """
    padded = pad_last_axis_to_pow2(x)
    size = _size("rfft", padded)
    return split_spectrum(Fft(fft_type=FftType.RFFT, fft_lengths=(size,))(padded))


def irfft(
    real: Value, imag: Value, n: int | None = None, *, norm: BlockNorm = BlockNorm.FORWARD
) -> Value:
    """Real signals from half of their spectrum, whose other half is its mirror image.

    Args:
        real: real part, [..., h].
        imag: imaginary part, of real's type.
        n: how many samples to keep, at most 2·(h − 1); all by default.
        norm: forward (default) scales by 1 over the full size, so that irfft undoes rfft.

    Raises:
        ShapeError: the spectrum is too short for n samples.
    """
    half = _size("irfft", real)
    size = 2 * (half - 1)
    kept = size if n is None else n
    if half < 2 or not _whole(kept) or not 0 <= kept <= size:
        raise ShapeError(
            f"irfft: at least 2 bins and at most 2·(bins − 1) samples are required; got {half} "
            f"bins and n = {n}. Pass the whole half spectrum."
        )
    scaling = {
        BlockNorm.FORWARD: FftNorm.BACKWARD,
        BlockNorm.BACKWARD: FftNorm.FORWARD,
        BlockNorm.ORTHO: FftNorm.ORTHO,
    }[norm]
    op = Fft(fft_type=FftType.IRFFT, fft_lengths=(size,), norm=scaling)
    signal: Value = op(Complex()(real, imag))
    return signal.narrow(real.rank - 1, 0, kept)


def stft(x: Value, frame_length: int, hop: int, window: Value | None = None) -> Value:
    """Spectra of overlapping frames of real signals, without padding at the ends.

    Args:
        x: f32 or f64[..., n].
        frame_length: samples of a frame; it is padded to a power of two n_pad.
        hop: samples between the starts of frames.
        window: x's dtype[frame_length], multiplied with each frame; ones by default.

    Returns:
        [frames, ..., 2 · half], half = n_pad / 2 + 1: real parts, then imaginary parts.

    Raises:
        ShapeError: no frame fits into x, or a length is not positive.
    """
    from rlx.ops.indexing import Gather

    size = _size("stft", x)
    whole = _whole(frame_length) and _whole(hop)
    if not whole or frame_length < 1 or hop < 1 or frame_length > size:
        raise ShapeError(
            f"stft: 1 ≤ frame_length ≤ {size} and hop ≥ 1 are required for x: {x.type}; got "
            f"{frame_length} and {hop}. Pad x or choose shorter frames."
        )
    starts = np.arange((size - frame_length) // hop + 1) * hop
    places = (starts[:, None] + np.arange(frame_length)).astype(np.int32)
    frames: Value = Gather(axis=x.rank - 1)(x, constant(places))
    if window is not None:
        frames = frames * broadcast_to(window, frames.shape)
    order = (x.rank - 1, *range(x.rank - 1), x.rank)
    return join_spectrum(*rfft(frames.transpose(order)))


def fft_conv1d(x: Value, ir: Value) -> Value:
    """Full linear convolution along the last axis by a transform: [..., L] with [M]."""
    from rlx.ops.shape import Pad

    length, taps = _size("fft_conv1d", x), _size("fft_conv1d", ir)
    total = length + taps - 1

    def spectrum(signal: Value, room: int) -> Value:
        none = (0,) * signal.rank
        pad = Pad(low=none, high=(*none[1:], room), interior=none)
        wide = pad_last_axis_to_pow2(pad(signal, constant(0.0, signal.dtype)))
        return Complex()(*rfft(wide))

    least = 1 if total == 1 else 0  # half a spectrum has at least two bins
    left, right = spectrum(x, taps - 1 + least), spectrum(ir, length - 1 + least)
    product = left * broadcast_to(right, left.shape)
    return irfft(*split_spectrum(product), n=total)


def psd(x: Value) -> Value:
    """Power of every bin of complex signals along the last axis: |fft(x)|² / n."""
    spectrum: Value = BlockFft()(x)
    return ComplexNormSq()(spectrum) / float(_size("psd", x))


def psd_real(x: Value) -> Value:
    """Power of every bin of the half spectrum of real signals: |rfft(x)|² / n_pad."""
    real, imag = rfft(x)
    return (real * real + imag * imag) / float(2 * (_size("psd_real", real) - 1) or 1)


def fftfreq(n: int, d: float = 1.0) -> Value:
    """Frequencies of the bins of a transform, as f64[n]; unlike NumPy's, n/2 is positive.

    Args:
        n: size of the transform, ≥ 1.
        d: time between samples; frequencies are in cycles per unit of it.
    """
    _check_count("fftfreq", n)
    _check_step("fftfreq", d)
    k = np.arange(n)
    return constant(np.where(k <= n / 2, k, k - n) / (n * d))


def rfftfreq(n: int, d: float = 1.0) -> Value:
    """Frequencies of the bins of half a spectrum, as f64[n // 2 + 1].

    Args:
        n: size of the transform, ≥ 1.
        d: time between samples; frequencies are in cycles per unit of it.
    """
    _check_count("rfftfreq", n)
    _check_step("rfftfreq", d)
    return constant(np.arange(n // 2 + 1) / (n * d))


def _check_count(where: str, n: int) -> None:
    if not _whole(n) or not 1 <= n < 2**31:
        raise ShapeError(f"{where}: n ≥ 1 is required; got {n}. Pass the transform's size.")


def _check_step(where: str, d: float) -> None:
    if not isinstance(cast("object", d), int | float | np.number) or not d:
        raise ShapeError(
            f"{where}: d is required to be a number that is not 0; got {d!r}. Pass the time "
            "between samples."
        )


def _whole(n: object) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool)


def _size(where: str, x: Value) -> int:
    """The number of elements of the last axis."""
    if not x.rank or isinstance(x.shape[-1], dims.DimExpr) or x.shape[-1] == 0:
        raise ShapeError(
            f"{where}: a last axis of known size ≥ 1 is required; got {x.type}. "
            "Bind its symbols with rlx.bind first."
        )
    return x.shape[-1]
