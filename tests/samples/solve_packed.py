"""Samples of packed spectra, checked by what they solve: eigenvectors are unique up to a sign."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops.solve import EighBatch
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (DType.F32, DType.F64):
        for shape in ((0, 0), (1, 1), (2, 3, 4, 4), (17, 17)):
            x = draw(rng, dtype, shape)
            symmetric = x + np.swapaxes(x, -1, -2)
            yield Sample(EighBatch(), (symmetric,), f"{dtype} {shape}", check=_check)


def _check(found: Any, wanted: Any, inputs: Any) -> None:
    (x,) = inputs
    n, scale = x.shape[-1], 1e-5 if x.dtype == np.float32 else 1e-12
    bound = scale * max(n, 1) * 6
    for packed in (found[0], wanted[0]):
        assert packed.dtype == x.dtype
        values = packed[..., :n]
        vectors = packed[..., n:].reshape(x.shape)
        assert (np.diff(values, axis=-1) >= 0).all()
        product = x.astype(np.float64) @ vectors
        np.testing.assert_allclose(product, vectors * values[..., None, :], atol=bound)
        gram = np.swapaxes(vectors, -1, -2) @ vectors
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(n), x.shape), atol=bound)


def error_samples() -> Iterator[ErrorSample]:
    yield ErrorSample(EighBatch, ("f32[3]",), ShapeError, "C1", "[..., n, n]; got f32[3]")
    yield ErrorSample(EighBatch, ("f32[3, 2]",), ShapeError, "C1", "got f32[3, 2]")
    for dtype in ("c64", "bf16"):
        match = f"f32, f64; got {dtype}[3, 3]"
        yield ErrorSample(EighBatch, (f"{dtype}[3, 3]",), DTypeError, "C2", match)


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(EighBatch(), ("f32[b, n, n]",), {"b": 2, "n": 3})
