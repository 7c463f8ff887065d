"""What a sample is, and how random arrays of every dtype are drawn.

A family module ``tests/samples/<family>.py`` has three functions, and every test uses them:

* ``samples(rng)`` yields ``Sample``: an op with concrete inputs;
* ``error_samples()`` yields ``ErrorSample``: an op or its inputs being refused, with the label;
* ``symbolic_samples()`` yields ``SymbolicSample``: types with symbols and a binding for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.ir.op import Op
from rlx.tolerances import Tolerance

SIZES = (0, 1, 63, 65)

FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)
NARROW_FLOATS = (
    DType.F8E3M4, DType.F8E4M3, DType.F8E4M3B11FNUZ, DType.F8E4M3FN, DType.F8E4M3FNUZ,
    DType.F8E5M2, DType.F8E5M2FNUZ,
)  # fmt: skip
INTS = (DType.I8, DType.I16, DType.I32, DType.I64)
UINTS = (DType.U8, DType.U16, DType.U32, DType.U64)
SUB_BYTE = (DType.I2, DType.I4, DType.U2, DType.U4)
COMPLEX = (DType.C64, DType.C128)


@dataclass(frozen=True)
class Sample:
    """One op applied to concrete arrays.

    Attributes:
        op: the op.
        inputs: arrays in operand order.
        label: short name, for test output.
        check: compares (found, wanted, inputs) where a plain comparison has no meaning (results
            unique up to sign, backend-defined bits); it asserts by itself.
        tolerance: a tighter or op-specific bound with its reason in a comment beside it.
        max_ulp: bound in units in the last place for transcendental functions, instead of
            ``tolerance`` (XLA's own accuracy is measured in those).
        xla: False where XLA has no such op-dtype pair on the CPU; the reason goes into
            ``limitation``.
        limitation: why ``xla`` is False.
    """

    op: Op
    inputs: tuple[np.ndarray[Any, Any], ...]
    label: str = ""
    check: Callable[..., None] | None = None
    tolerance: Tolerance | None = None
    max_ulp: float | None = None
    xla: bool = True
    limitation: str = ""


@dataclass(frozen=True)
class ErrorSample:
    """An op or a node that is refused.

    Attributes:
        build: makes the op (it may raise itself).
        types: input types as text, in operand order.
        error: the expected class.
        label: the constraint, ``"C1"``.
        match: a part of the message, literal.
    """

    build: Callable[[], Op]
    types: tuple[str, ...]
    error: type[Exception]
    label: str
    match: str = ""


@dataclass(frozen=True)
class SymbolicSample:
    """Types with symbols: binding before or after inference gives the same types."""

    op: Op
    types: tuple[str, ...]
    binding: dict[str, int] = field(default_factory=dict[str, int])


def draw(
    rng: np.random.Generator,
    dtype: DType,
    shape: Sequence[int],
    *,
    low: float = -3.0,
    high: float = 3.0,
    special: bool = False,
) -> np.ndarray[Any, Any]:
    """Random elements; with ``special`` the extreme ones (NaN, Inf, −0, limits) come first.

    Floats are uniform in [low, high); integers cover [low, high] clipped to the dtype, or the
    whole range when ``special``.
    """
    size = int(np.prod(shape))
    if dtype.kind is Kind.BOOL:
        return rng.integers(0, 2, size).astype(np.bool_).reshape(shape)
    if dtype.is_integer:
        bits = dtype.bits
        least = -(2 ** (bits - 1)) if dtype.kind is Kind.INT else 0
        most = 2 ** (bits - 1) - 1 if dtype.kind is Kind.INT else 2**bits - 1
        lo, hi = (least, most) if special else (max(least, int(low)), min(most, int(high)))
        unsigned = dtype.numpy == np.uint64
        values = rng.integers(
            lo, hi, size, endpoint=True, dtype=np.uint64 if unsigned else np.int64
        )
        if special:
            extremes = np.array(
                [least, most, 0, 1, max(least, -1)], dtype=values.dtype if lo >= 0 else np.int64
            )
            values[: len(extremes)] = extremes[:size]
        return values.astype(dtype.numpy).reshape(shape)
    if dtype.is_complex:
        real, imag = (
            draw(rng, dtype.real, shape, low=low, high=high, special=special) for _ in "ri"
        )
        if special:
            imag = np.roll(imag.reshape(-1), 1).reshape(shape)
        values = np.empty(shape, dtype.numpy)
        values.real, values.imag = real, imag  # a product with 1j would spread NaN
        return values
    values = rng.uniform(low, high, size)
    if special:
        values[:8] = specials(dtype)[: min(size, 8)]
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy).reshape(shape)


def specials(dtype: DType) -> np.ndarray[Any, Any]:
    """NaN, ±Inf, ±0, a large and a small normal number and one, as float64."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype.numpy)
    return np.array(
        [np.nan, np.inf, -np.inf, -0.0, 0.0, float(info.max), float(info.smallest_normal), 1.0]
    )
