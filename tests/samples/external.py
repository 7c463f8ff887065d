"""Samples of opaque nodes: a doubling that NumPy and StableHLO both know."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Opaque
from rlx.ops.external import External
from tests.samples.base import SIZES, ErrorSample, Sample, SymbolicSample, draw


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for size in SIZES:
        op = External(
            name="double",
            dtypes=(DType.F32,),
            shapes=((size,),),
            live=Opaque(None, lambda x: (np.ldexp(x, 1),)),
        )
        inputs = (draw(rng, DType.F32, (size,)),)
        yield Sample(
            op, inputs, f"f32[{size}]", xla=False, limitation="tests/rlx_xla/test_external.py"
        )


def error_samples() -> Iterator[ErrorSample]:
    yield from ()


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(
        External(name="double", dtypes=(DType.F32,), shapes=((3,),)), ("f32[b]",), {"b": 3}
    )
