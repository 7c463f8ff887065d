"""Samples of effects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.ops.effect import CreateToken
from tests.samples.base import ErrorSample, Sample, SymbolicSample


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield Sample(CreateToken(), (), xla=False, limitation="a token cannot leave a module")


def error_samples() -> Iterator[ErrorSample]:
    yield from ()


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield from ()
