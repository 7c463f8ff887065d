"""SciPy's signals, transforms, special functions and factorisations, on drawn inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import DType
from rlx.ops.random import RngNormal, RngUniform, draw
from rlx.options.rng import RngOptions

pytest.importorskip("scipy", reason="SciPy is what results are compared with")
from scipy import fft, linalg, ndimage, signal, special, stats

pytestmark = pytest.mark.slow
OPS: Any = ops  # classes by name
RNG = np.random.default_rng()


def reals(*shape: int, low: float = -3.0, high: float = 3.0) -> Any:
    return RNG.uniform(low, high, shape)


def near(found: Any, wanted: Any, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)


def test_signals() -> None:
    x, ir = reals(3, 40), reals(9)
    wanted = signal.fftconvolve(x, ir[None], axes=1)
    near(OPS.PartitionedConv().evaluate(x, ir), wanted)
    image, kernel = reals(5, 6), reals(3, 2)
    conv = OPS.Conv(stride=(1, 1), padding=(0, 0), dilation=(1, 1))
    found = conv.evaluate(image[None, None], kernel[None, None])[0, 0]
    near(found, signal.correlate2d(image, kernel, mode="valid"))
    spectra = np.fft.rfft(reals(1, 8, 32))
    block = np.concatenate([spectra.real, spectra.imag], axis=-1)
    peaks = OPS.WelchPeaks(k=4, n_segments=8).evaluate(block).reshape(4, 2)
    power = (np.abs(spectra[0]) ** 2).mean(axis=0)
    order = np.argsort(-power)[:4]
    near(peaks, np.stack([order, power[order]], axis=-1))


def test_edges_and_zoom() -> None:
    x = reals(5, 4)
    modes = {"REFLECT": "mirror", "REPLICATE": "nearest", "CIRCULAR": "grid-wrap"}
    from rlx.ops.shape import EdgeMode

    places = np.mgrid[-2:7, -3:6]
    for name, mode in modes.items():
        op = OPS.PadEdges(low=(2, 3), high=(2, 2), mode=EdgeMode[name])
        near(op.evaluate(x), ndimage.map_coordinates(x, places, order=0, mode=mode))


def test_transforms() -> None:
    from rlx.ops.complex_fft import BlockNorm

    z = reals(3, 12) + 1j * reals(3, 12)
    near(OPS.BlockFft().evaluate(z), fft.fft(z))
    near(OPS.BlockFft(inverse=True, norm=BlockNorm.ORTHO).evaluate(z), fft.ifft(z, norm="ortho"))
    near(OPS.BlockFft(inverse=True).evaluate(z), fft.ifft(z, norm="forward"))


def test_special_functions() -> None:
    """Identities that the functions obey, as SciPy's own values are what our meaning is made of."""
    x, a = reals(60, low=0.1, high=6), reals(60, low=0.5, high=6)
    near(OPS.Igamma().evaluate(a, x), stats.gamma(a).cdf(x))
    near(OPS.Igammac().evaluate(a, x), stats.gamma(a).sf(x))
    p = reals(60, low=0.01, high=0.99)
    near(OPS.RegularizedIncompleteBeta().evaluate(a, x, p), stats.beta(a, x).cdf(p))
    near(OPS.Erf().evaluate(x / 4), 2 * stats.norm.cdf(x / 4 * np.sqrt(2)) - 1)
    near(OPS.ErfInv().evaluate(p), stats.norm.ppf((p + 1) / 2) / np.sqrt(2))
    near(np.exp(OPS.Lgamma().evaluate(x)), special.gamma(x))
    near(OPS.Digamma().evaluate(x + 1), OPS.Digamma().evaluate(x) + 1 / x)
    near(OPS.BesselI0e().evaluate(x) * np.exp(x), special.iv(0, x))
    near(OPS.BesselI1e().evaluate(x) * np.exp(x), special.iv(1, x))
    one = np.ones_like(x)
    near(OPS.Polygamma().evaluate(one, x), OPS.Zeta().evaluate(2 * one, x))


def test_factorisations() -> None:
    a = reals(5, 5)
    lu, pivots, order = OPS.Lu().evaluate(a)
    wanted_lu, wanted_pivots = linalg.lu_factor(a)
    near(lu, wanted_lu)
    assert np.array_equal(pivots, wanted_pivots)
    near(np.tril(lu, -1) @ np.triu(lu) + np.triu(lu), a[order])
    symmetric = a @ a.T + np.eye(5)
    near(OPS.Cholesky().evaluate(symmetric), linalg.cholesky(symmetric, lower=True))
    b = reals(5, 2)
    near(OPS.DenseSolve().evaluate(a, b), linalg.solve(a, b), rtol=1e-7)
    values = OPS.EighBatch().evaluate(symmetric)[:5]
    near(values, linalg.eigvalsh(symmetric))


def test_streams_have_their_distributions() -> None:
    options = RngOptions.philox(int(RNG.integers(2**63)))
    normal = draw(RngNormal(dtype=DType.F64, shape=(20000,), mean=1.0, scale=2.0), options)
    assert stats.kstest(normal, stats.norm(1, 2).cdf).pvalue > 1e-6
    uniform = draw(RngUniform(dtype=DType.F64, shape=(20000,), low=-1.0, high=2.0), options)
    assert stats.kstest(uniform, stats.uniform(-1, 3).cdf).pvalue > 1e-6
    ort = RngOptions.ort(int(RNG.integers(2**31)))
    normal = draw(RngNormal(dtype=DType.F64, shape=(20000,)), ort)
    assert stats.kstest(normal, stats.norm.cdf).pvalue > 1e-6
