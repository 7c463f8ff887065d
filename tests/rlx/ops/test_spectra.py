"""Transforms by RLX's short names, against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, ShapeError
from rlx.ir.graph import Value
from rlx.ir.interpret import run
from rlx.ops import complex_fft as fft
from rlx.ops.complex_fft import BlockNorm, FftButterflyStage, FftQ, FftQScale

Array = np.ndarray[Any, Any]
NUMPY: dict[tuple[bool, BlockNorm], Any] = {
    (False, BlockNorm.BACKWARD): "backward",
    (False, BlockNorm.FORWARD): "backward",
    (False, BlockNorm.ORTHO): "ortho",
    (True, BlockNorm.BACKWARD): "forward",
    (True, BlockNorm.FORWARD): "backward",
    (True, BlockNorm.ORTHO): "ortho",
}


def values(function: Callable[..., Any], *arrays: Array) -> list[Array]:
    """Apply a function of graph values to arrays."""
    b = rlx.GraphBuilder("g")
    leaves = [
        b.input(f"x{i}", rlx.TensorType(as_dtype(a.dtype), a.shape)) for i, a in enumerate(arrays)
    ]
    made: Value | tuple[Value, ...] = function(*leaves)
    outputs = made if isinstance(made, tuple) else (made,)
    return run(b.build(*outputs), list(arrays))


def reals(*shape: int) -> Array:
    return np.random.default_rng().normal(size=shape)


def complexes(*shape: int) -> Array:
    return reals(*shape) + 1j * reals(*shape)


def near(found: Array, wanted: Array) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", BlockNorm)
@pytest.mark.parametrize("inverse", [False, True])
def test_along_an_axis(inverse: bool, norm: BlockNorm) -> None:
    x = complexes(3, 5, 4)
    numpy = np.fft.ifft if inverse else np.fft.fft
    for axis in (0, 1, -1):
        wanted = numpy(x, axis=axis, norm=NUMPY[inverse, norm])
        near(values(lambda v: fft.fft_axis(v, axis, inverse=inverse, norm=norm), x)[0], wanted)  # noqa: B023
        block = np.concatenate([x.real, x.imag], axis=axis)
        made = values(lambda v: fft.fft_axis(v, axis, inverse=inverse, norm=norm), block)[0]  # noqa: B023
        near(made, np.concatenate([wanted.real, wanted.imag], axis=axis))


def test_the_inverse_is_not_scaled_by_default() -> None:
    x = complexes(6)
    op = fft.BlockFft()
    near(values(lambda v: fft.BlockFft(inverse=True)(op(v)), x)[0], 6 * x)
    scaled = fft.BlockFft(inverse=True, norm=BlockNorm.FORWARD)
    near(values(lambda v: scaled(op(v)), x)[0], x)


def test_along_several_axes() -> None:
    x = complexes(3, 4, 5)
    near(values(fft.fftn, x)[0], np.fft.fftn(x))
    near(values(lambda v: fft.fftn(v, (0, -1)), x)[0], np.fft.fftn(x, axes=(0, -1)))
    near(values(fft.ifftn, x)[0], np.fft.ifftn(x, norm="forward"))
    near(values(lambda v: fft.ifftn(v, norm=BlockNorm.FORWARD), x)[0], np.fft.ifftn(x))
    with pytest.raises(DTypeError, match=r"fftn: x is required to be complex; got f64\[3\]"):
        values(fft.fftn, reals(3))
    with pytest.raises(DTypeError, match="ifftn: x is required to be complex"):
        values(fft.ifftn, reals(3))


def test_spectra_of_real_signals_are_padded_to_a_power_of_two() -> None:
    x = reals(2, 13)
    padded = np.pad(x, ((0, 0), (0, 3)))
    near(values(fft.pad_last_axis_to_pow2, x)[0], padded)
    real, imag = values(fft.fft_real, x)
    near(real + 1j * imag, np.fft.fft(padded))
    real, imag = values(fft.rfft, x)
    near(real + 1j * imag, np.fft.rfft(padded))
    near(values(lambda v: fft.irfft(*fft.rfft(v), 13), x)[0], x)
    near(values(lambda v: fft.irfft(*fft.rfft(v)), x)[0], padded)
    unscaled = values(lambda v: fft.irfft(*fft.rfft(v), norm=BlockNorm.BACKWARD), x)[0]
    near(unscaled, 16 * padded)
    back = values(lambda v: fft.ifft_spectrum(*fft.fft_real(v), norm=BlockNorm.FORWARD), x)
    near(back[0], padded)
    near(back[1], np.zeros_like(padded))
    power = np.abs(np.fft.rfft(padded)) ** 2 / 16
    near(values(fft.psd_real, x)[0], power)
    z = complexes(3, 6)
    near(values(fft.psd, z)[0], np.abs(np.fft.fft(z)) ** 2 / 6)
    assert values(fft.psd_real, reals(2, 1))[0].shape == (2, 1)


def test_parts_of_a_spectrum() -> None:
    z = complexes(2, 3)
    real, imag = values(fft.split_spectrum, z)
    near(real + 1j * imag, z)
    block = values(fft.join_spectrum, z.real.copy(), z.imag.copy())[0]
    real, imag = values(fft.split_spectrum, block)
    near(real + 1j * imag, z)
    with pytest.raises(ShapeError, match=r"split_spectrum: an even last axis is required; got"):
        values(fft.split_spectrum, reals(5))


def test_short_time_spectra() -> None:
    x, window = reals(2, 23), reals(6)
    found = values(lambda v, w: fft.stft(v, 6, 4, w), x, window)[0]
    starts = range(0, 23 - 6 + 1, 4)
    for row, start in zip(found, starts, strict=True):
        frame = np.pad(x[:, start : start + 6] * window, ((0, 0), (0, 2)))
        wanted = np.fft.rfft(frame)
        near(row, np.concatenate([wanted.real, wanted.imag], axis=-1))
    assert found.shape == (5, 2, 10)
    assert values(lambda v: fft.stft(v, 8, 8), x)[0].shape == (2, 2, 10)
    message = r"stft: 1 ≤ frame_length ≤ 23 and hop ≥ 1 are required .*; got 24 and 1"
    with pytest.raises(ShapeError, match=message):
        values(lambda v: fft.stft(v, 24, 1), x)


@pytest.mark.parametrize(("length", "taps"), [(1, 1), (5, 1), (13, 4), (3, 9)])
def test_convolution_by_a_transform(length: int, taps: int) -> None:
    x, ir = reals(2, length), reals(taps)
    wanted = np.array([np.convolve(row, ir) for row in x])
    near(values(fft.fft_conv1d, x, ir)[0], wanted)


def test_frequencies_count_the_middle_one_as_positive() -> None:
    for n in (1, 2, 5, 8):
        found = values(lambda _: fft.fftfreq(n, 0.5), reals(1))[0]  # noqa: B023
        wanted = np.fft.fftfreq(n, 0.5)
        near(found, np.where(np.arange(n) * 2 == n, -wanted, wanted))
        near(values(lambda _: fft.rfftfreq(n, 0.5), reals(1))[0], np.fft.rfftfreq(n, 0.5))  # noqa: B023
    assert found.dtype == np.float64
    with pytest.raises(ShapeError, match="fftfreq: n ≥ 1 is required; got 0"):
        fft.fftfreq(0)


def test_sizes_must_be_known() -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[n]")
    message = r"rfft|pad_last_axis_to_pow2: a last axis of known size ≥ 1 is required; got f32\[n\]"
    with pytest.raises(ShapeError, match=message):
        fft.rfft(x)
    with pytest.raises(ShapeError, match=r"irfft: at least 2 bins .* got 1 bins and n = None"):
        values(fft.irfft, reals(1), reals(1))
    with pytest.raises(ShapeError, match=r"got 3 bins and n = 5"):
        values(lambda a, c: fft.irfft(a, c, 5), reals(3), reals(3))


def test_stages_make_up_the_transform() -> None:
    x = reals(2, 8, 2)
    order = [0, 4, 2, 6, 1, 5, 3, 7]
    made = x[:, order]
    for stage in range(3):
        made = FftButterflyStage(stage=stage, n_fft=8).evaluate(made, np.ones(4))
    near(made[..., 0] + 1j * made[..., 1], np.fft.fft(x[..., 0] + 1j * x[..., 1]))
    near(FftButterflyStage(stage=1, n_fft=8).evaluate(x, np.zeros(4)), x)


def test_fixed_point_is_near_the_transform() -> None:
    x = np.random.default_rng().integers(-3000, 3000, (3, 128)).astype(np.int16)
    z = x[:, :64] + 1j * x[:, 64:]
    wanted = np.fft.fft(z)
    wide = FftQ().evaluate(x.astype(np.int32))
    assert np.abs(wide[:, :64] + 1j * wide[:, 64:] - wanted).max() < 40
    scaled = FftQ(scale=FftQScale.PER_STAGE).evaluate(x)
    assert np.abs(scaled[:, :64] + 1j * scaled[:, 64:] - wanted / 64).max() < 6
    # Unscaled, a part that does not fit stays at the end of the range.
    same = np.full((1, 128), 3000, np.int16)
    assert FftQ().evaluate(same)[0, 0] == FftQ().evaluate(same)[0, 64] == 2**15 - 1
