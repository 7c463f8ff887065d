"""Draws that the elementwise families share; it has no op of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.op import Op
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    INTS,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)
from tests.samples.shape import DATA

BOOL = (DType.BOOL,)
# As far as the installed jaxlib gets them right.
SUB_BYTE = tuple(d for d in DATA if d.is_integer and d.bits < 8)
INTEGERS = (*INTS, *UINTS)
REALS = (*FLOATS, *INTEGERS)
NUMBERS = (*REALS, *COMPLEX)
F8 = (DType.F8E4M3FN, DType.F8E5M2)
TINY = (*SUB_BYTE, *F8)
SHAPES = ((0,), (1,), (63,), (5, 13), ())


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from ()


def error_samples() -> Iterator[ErrorSample]:
    yield from ()


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield from ()


def elementwise(
    rng: np.random.Generator,
    op: Op,
    dtypes: Sequence[DType],
    *,
    arity: int = 1,
    special: bool = True,
    complex_special: bool = False,
    low: float = -3.0,
    high: float = 3.0,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    max_ulp: dict[DType, float] | float | None = None,
    **more: Any,
) -> Iterator[Sample]:
    """Every shape in the first dtype, and 65 elements in each of the others."""
    for position, dtype in enumerate(dtypes):
        for shape in shapes if position == 0 else ((65,),):
            extreme = complex_special if dtype.is_complex else special
            inputs = [
                draw(rng, dtype, shape, low=low, high=high, special=extreme) for _ in range(arity)
            ]
            # Let extremes meet one another, not only themselves.
            inputs[1:] = [rng.permutation(x.reshape(-1)).reshape(shape) for x in inputs[1:]]
            bound = max_ulp.get(dtype) if isinstance(max_ulp, dict) else max_ulp
            yield Sample(op, tuple(inputs), f"{dtype}{list(shape)}", max_ulp=bound, **more)


def unary_errors(op: Callable[[], Op], refused: str) -> Iterator[ErrorSample]:
    """C1 of an op of one input."""
    yield ErrorSample(op, (f"{refused}[2]",), DTypeError, "C1", f"{refused}[2]")


def binary_errors(
    op: Callable[[], Op], accepted: tuple[str, str], refused: str
) -> Iterator[ErrorSample]:
    """C1, C2 and C3 of an op of two inputs."""
    first, second = accepted
    yield ErrorSample(op, (f"{first}[2]", f"{first}[3]"), ShapeError, "C1", f"{first}[3]")
    yield ErrorSample(op, (f"{first}[2]", f"{second}[2]"), DTypeError, "C2", f"{second}[2]")
    kind = refused if refused == "token" else f"{refused}[2]"
    yield ErrorSample(op, (kind, kind), DTypeError, "C3", kind)
