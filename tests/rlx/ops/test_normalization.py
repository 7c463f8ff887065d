"""Softmax and the norms against their formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.ops.normalization import (
    AdaLayerNorm,
    BatchNormInference,
    GatedResidual,
    GroupNorm,
    LayerNorm,
    LayerNorm2d,
    LogSoftmax,
    RmsNorm,
    Softmax,
)

Array = np.ndarray[Any, Any]


def normalise(x: Array, axes: Any, eps: float) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.fixture
def x(rng: np.random.Generator) -> Array:
    return rng.uniform(-3, 3, (2, 6, 5))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(x: Array, axis: int) -> None:
    wanted = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
    np.testing.assert_allclose(Softmax(axis=axis).evaluate(x), wanted, rtol=1e-12)
    np.testing.assert_allclose(LogSoftmax(axis=axis).evaluate(x), np.log(wanted), rtol=1e-11)


def test_softmax_of_large_numbers_is_finite() -> None:
    x = np.array([1e4, 1e4, -1e4], np.float32)
    assert Softmax().evaluate(x).tolist() == [0.5, 0.5, 0.0]
    wanted = [-np.log(2), -np.log(2), -2e4 - np.log(2)]
    np.testing.assert_allclose(LogSoftmax().evaluate(x), wanted, rtol=1e-6)


def test_softmax_of_hidden_places() -> None:
    hidden = np.array([-np.inf, 0.0, -np.inf], np.float32)
    assert Softmax().evaluate(hidden).tolist() == [0.0, 1.0, 0.0]
    assert np.isnan(Softmax().evaluate(np.full(3, -np.inf, np.float32))).all()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_norms_along_one_axis(x: Array, axis: int, rng: np.random.Generator) -> None:
    gamma, beta = rng.uniform(-1, 1, (2, x.shape[axis]))
    along = [1, 1, 1]
    along[axis] = -1
    gain, offset = gamma.reshape(along), beta.reshape(along)
    wanted = normalise(x, axis, 1e-3) * gain + offset
    found = LayerNorm(axis=axis, eps=1e-3).evaluate(x, gamma, beta)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    wanted = x / np.sqrt((x * x).mean(axis, keepdims=True) + 1e-3) * gain + offset
    found = RmsNorm(axis=axis, eps=1e-3).evaluate(x, gamma, beta)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_group_norm(x: Array, rng: np.random.Generator) -> None:
    gamma, beta = rng.uniform(-1, 1, (2, 6))
    groups = [normalise(x[:, c : c + 2], (1, 2), 1e-5) for c in (0, 2, 4)]
    wanted = np.concatenate(groups, axis=1) * gamma[:, None] + beta[:, None]
    found = GroupNorm(num_groups=3).evaluate(x, gamma, beta)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_batch_norm_inference(x: Array, rng: np.random.Generator) -> None:
    gamma, beta, mean, variance = rng.uniform(0.5, 1.5, (4, 5))
    wanted = (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    found = BatchNormInference().evaluate(x, gamma, beta, mean, variance)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_ada_layer_norm(x: Array, rng: np.random.Generator) -> None:
    scale, shift = rng.uniform(-1, 1, (2, 2, 1, 5))
    wanted = normalise(x, -1, 1e-6) * (1 + scale) + shift
    np.testing.assert_allclose(AdaLayerNorm().evaluate(x, scale, shift), wanted, rtol=1e-10)


def test_layer_norm2d(rng: np.random.Generator) -> None:
    x = rng.uniform(-3, 3, (2, 6, 4, 5))
    gamma, beta = rng.uniform(-1, 1, (2, 6))
    wanted = np.empty_like(x)
    for n, i, j in np.ndindex(2, 4, 5):
        wanted[n, :, i, j] = normalise(x[n, :, i, j], 0, 1e-4) * gamma + beta
    found = LayerNorm2d(eps=1e-4).evaluate(x, gamma, beta)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_gated_residual(x: Array, rng: np.random.Generator) -> None:
    y, gate = rng.uniform(-1, 1, x.shape), rng.uniform(-1, 1, (2, 1, 5))
    np.testing.assert_allclose(GatedResidual().evaluate(x, y, gate), x + gate * y, rtol=1e-12)
    halves = tuple(a.astype(np.float16) for a in (x, y, gate))
    wide = (a.astype(np.float32) for a in halves)
    wanted = (lambda a, b, c: a + c * b)(*wide).astype(np.float16)
    np.testing.assert_array_equal(GatedResidual().evaluate(*halves), wanted)


def test_half_precision_keeps_its_statistics_in_f32() -> None:
    """x² summed in f16 would overflow."""
    x = np.full((1, 1024), 300, np.float16)
    x[0, ::2] = 304
    ones, zeros = np.ones(1024, np.float16), np.zeros(1024, np.float16)
    assert RmsNorm().evaluate(x, ones, zeros).max() == pytest.approx(1.0066, abs=1e-3)
    assert LayerNorm().evaluate(x, ones, zeros).max() == pytest.approx(1.0, abs=1e-3)
