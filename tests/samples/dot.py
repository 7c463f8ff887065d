"""Samples of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops.dot import DotAlgorithm, DotGeneral, DotPrecision, Matmul, RaggedDot
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    INTS,
    NARROW_FLOATS,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)
from tests.samples.reduction import some

PLAIN: dict[str, Any] = {"lhs_contracting": (1,), "rhs_contracting": (0,)}
BATCHED: dict[str, Any] = {
    "lhs_contracting": (0, 3),
    "rhs_contracting": (2, 1),
    "lhs_batch": (1,),
    "rhs_batch": (3,),
}
CASES: tuple[Any, ...] = (
    ((3, 65), (65, 2), PLAIN),
    ((1, 1), (1, 63), PLAIN),
    ((2, 0), (0, 3), PLAIN),
    ((3, 2, 2, 5), (4, 5, 3, 2), BATCHED),
    ((3,), (2,), {}),
)
DTYPES = (
    *FLOATS,
    *INTS,
    *UINTS,
    *COMPLEX,
    *NARROW_FLOATS,
    DType.BOOL,
    DType.I4,
    DType.U4,
    DType.I2,
)
MIXED = (
    (DType.BF16, DType.BF16, DType.F32),
    (DType.F16, DType.F16, DType.F32),
    (DType.BF16, DType.F32, DType.F32),
    (DType.F32, DType.BF16, DType.F32),
    (DType.F32, DType.F64, DType.F64),
    (DType.I8, DType.I8, DType.I32),
    (DType.U8, DType.I8, DType.I32),
    (DType.I4, DType.I4, DType.I32),
    (DType.I8, DType.I8, DType.F32),
    (DType.F32, DType.I8, DType.F32),
    (DType.BF16, DType.I4, DType.F32),
    (DType.F8E4M3FN, DType.F8E4M3FN, DType.F32),
    (DType.F8E4M3FN, DType.F8E5M2, DType.BF16),
    (DType.F8E5M2, DType.F8E5M2, DType.F16),
    (DType.F32, DType.C64, DType.C64),
)


# The algorithms that XLA's CPU takes; it reads f32 operands of a bf16 one as they are.
ALGORITHMS = (
    (DotAlgorithm.F16_F16_F16, DType.F16, None),
    (DotAlgorithm.F16_F16_F16, DType.BF16, None),
    (DotAlgorithm.BF16_BF16_F32, DType.F32, None),
    (DotAlgorithm.BF16_BF16_F32, DType.BF16, DType.F32),
    (DotAlgorithm.BF16_BF16_F32, DType.BF16, None),
    (DotAlgorithm.BF16_BF16_F32_X3, DType.F32, None),
    (DotAlgorithm.BF16_BF16_F32_X6, DType.F16, None),
    (DotAlgorithm.F32_F32_F32, DType.BF16, DType.F32),
    (DotAlgorithm.F64_F64_F64, DType.F32, None),
    (DotAlgorithm.F64_F64_F64, DType.F64, None),
)

# Free, contracting and batch axes that are grouped; one or many lists of sizes.
RAGGED: tuple[Any, ...] = (
    ((5, 4), (3, 4, 2), (3,), {"rhs_contracting": (1,)}),
    ((5, 4), (3, 2, 4), (3,), {"rhs_contracting": (2,)}),
    (
        (2, 5, 4),
        (3, 2, 4, 3),
        (2, 3),
        {
            "lhs_contracting": (2,),
            "rhs_contracting": (2,),
            "lhs_batch": (0,),
            "rhs_batch": (1,),
            "lhs_ragged": 1,
        },
    ),
    (
        (4, 5, 2, 3),
        (5, 2, 4, 3),
        (4,),
        {
            "lhs_contracting": (0, 1),
            "rhs_contracting": (2, 0),
            "lhs_batch": (3,),
            "rhs_batch": (3,),
            "lhs_ragged": 1,
            "rhs_group": None,
        },
    ),
    ((6, 3), (6, 2), (4,), {"lhs_contracting": (0,), "rhs_contracting": (0,), "rhs_group": None}),
    (
        (3, 2, 4),
        (3, 4, 2),
        (2,),
        {
            "lhs_contracting": (2,),
            "rhs_contracting": (1,),
            "lhs_batch": (0,),
            "rhs_batch": (0,),
            "rhs_group": None,
        },
    ),
)


def _numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Positive floats, so that a relative bound makes sense; integers of the whole range."""
    if dtype.is_complex:  # the parts of the product stay away from 0
        real, imag = (draw(rng, dtype.real, shape, low=0.5, high=1.5) for _ in "ri")
        return (real + 0.1j * imag).astype(dtype.numpy)
    return draw(rng, dtype, shape, low=0.25, high=1.5, special=dtype.is_integer)


def _positive(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Small positive numbers of any kind: a sum of mixed signs loses relative accuracy."""
    if dtype.is_integer:
        return rng.integers(1, 4, shape).astype(dtype.numpy)
    return _numbers(rng, dtype, shape)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DTYPES:
        for left, right, attributes in some(rng, CASES, dtype):
            inputs = (_numbers(rng, dtype, left), _numbers(rng, dtype, right))
            yield Sample(DotGeneral(**attributes), inputs, f"{dtype}{left}{right}")
        for left, right in (
            ((2, 5), (5, 3)),
            ((5,), (5,)),
            ((4, 2, 5), (5,)),
            ((5,), (4, 5, 3)),
            ((2, 5), (4, 5, 3)),
            ((4, 1, 2, 5), (3, 5, 1)),
            ((0, 5), (5, 2)),
        )[:: 1 if dtype in FLOATS else 4]:
            inputs = (_numbers(rng, dtype, left), _numbers(rng, dtype, right))
            yield Sample(Matmul(), inputs, f"{dtype}{left}{right}")
    for lhs, rhs, result in MIXED:
        op = DotGeneral(**PLAIN, preferred_element_type=result)
        make = _numbers if result.is_integer else _positive
        inputs = (make(rng, lhs, (3, 33)), make(rng, rhs, (33, 2)))
        yield Sample(op, inputs, f"{lhs} {rhs} {result}")
    for precision in DotPrecision:
        inputs = (_numbers(rng, DType.F32, (3, 65)), _numbers(rng, DType.F32, (65, 2)))
        op = DotGeneral(**PLAIN, precision=(precision, DotPrecision.DEFAULT))
        yield Sample(op, inputs, precision.value)
    for algorithm, dtype, result in ALGORITHMS:
        op = DotGeneral(**PLAIN, algorithm=algorithm, preferred_element_type=result)
        inputs = (_numbers(rng, dtype, (3, 17)), _numbers(rng, dtype, (17, 2)))
        yield Sample(op, inputs, f"{algorithm.value} {dtype} {result}")
    for algorithm in DotAlgorithm:
        if any(algorithm is known for known, _, _ in ALGORITHMS):
            continue
        dtype = DType.F8E4M3FN if algorithm.takes_f8 else algorithm.storage(DType.F32)
        op = DotGeneral(**PLAIN, algorithm=algorithm, preferred_element_type=DType.F32)
        inputs = (_numbers(rng, dtype, (3, 17)), _numbers(rng, dtype, (17, 2)))
        reason = "XLA's CPU has no such algorithm"
        yield Sample(op, inputs, algorithm.value, xla=False, limitation=reason)
    for dtype in (*FLOATS, DType.I32, DType.I8, DType.C64):
        for left, right, groups, attributes in RAGGED:
            sizes = rng.integers(0, 3, groups).astype(rng.choice(["i4", "u1", "i8"]))
            inputs = (_numbers(rng, dtype, left), _numbers(rng, dtype, right), sizes)
            yield Sample(RaggedDot(**attributes), inputs, f"{dtype}{left}{right}{groups}")
    op = RaggedDot(preferred_element_type=DType.F32, precision=(DotPrecision.HIGHEST,) * 2)
    inputs = (_numbers(rng, DType.BF16, (65, 7)), _numbers(rng, DType.BF16, (4, 7, 3)))
    yield Sample(op, (*inputs, np.array([20, 0, 40, 3], np.int32)), "bf16 bf16 f32")
    for integer in (DType.I8, DType.U8):  # places and sums that the dtype cannot hold
        inputs = (_numbers(rng, DType.F32, (300, 3)), _numbers(rng, DType.F32, (3, 3, 2)))
        sizes = np.array([100, 20, 100]).astype(integer.numpy)
        yield Sample(RaggedDot(), (*inputs, sizes), f"300 rows, sizes {integer}")
    for dtype in FLOATS:
        left = np.array([[np.nan, 1], [np.inf, 1], [np.inf, -np.inf]]).astype(dtype.numpy)
        inputs = (left, np.array([[1, 0], [1, 2]]).astype(dtype.numpy))
        yield Sample(DotGeneral(**PLAIN), inputs, f"{dtype} specials")


def error_samples() -> Iterator[ErrorSample]:
    def dot(**attributes: Any) -> Any:
        return lambda: DotGeneral(**attributes)

    yield ErrorSample(dot(**PLAIN), ("f32[2]", "f32[2]"), ShapeError, "C1", "f32[2]")
    yield ErrorSample(
        dot(lhs_contracting=(0,), rhs_contracting=()), ("f32[2]", "f32[2]"), ShapeError, "C1", "()"
    )
    yield ErrorSample(
        dot(lhs_contracting=(0,), lhs_batch=(0,)), ("f32[2]", "f32[2]"), ShapeError, "C1", "(0, 0)"
    )
    yield ErrorSample(dot(**PLAIN), ("f32[2, 3]", "f32[4, 2]"), ShapeError, "C2", "f32[4, 2]")
    yield ErrorSample(
        dot(lhs_batch=(0,), rhs_batch=(0,)), ("f32[2]", "f32[3]"), ShapeError, "C3", "f32[3]"
    )
    yield ErrorSample(dot(**PLAIN), ("f32[2, 3]", "f16[3, 2]"), DTypeError, "C4", "f16[3, 2]")
    yield ErrorSample(
        dot(**PLAIN, preferred_element_type=DType.I32),
        ("f32[2, 3]", "f32[3, 2]"),
        DTypeError,
        "C4",
        "i32",
    )
    yield ErrorSample(
        dot(**PLAIN, precision=(DotPrecision.HIGH,)),
        ("f32[2, 3]", "f32[3, 2]"),
        ShapeError,
        "C5",
        "1",
    )
    for algorithm, dtype, match in (
        (DotAlgorithm.F32_F32_F32, "i32", "i32[2, 3]"),
        (DotAlgorithm.ANY_F8_ANY_F8_ANY, "f32", "8-bit"),
    ):
        types = (f"{dtype}[2, 3]", f"{dtype}[3, 2]")
        yield ErrorSample(dot(**PLAIN, algorithm=algorithm), types, DTypeError, "C6", match)

    def ragged(**attributes: Any) -> Any:
        return lambda: RaggedDot(**attributes)

    good = ("f32[4, 3]", "f32[2, 3, 5]", "i32[2]")
    for label, types, attributes, error, match in (
        ("C1", good, {"lhs_contracting": (2,)}, ShapeError, "(2,)"),
        ("C1", good, {"rhs_contracting": ()}, ShapeError, "()"),
        ("C1", good, {"lhs_ragged": 2}, ShapeError, "got 2 and 0"),
        ("C1", good, {"rhs_group": 1}, ShapeError, "got 0 and 1"),
        ("C2", good, {"rhs_contracting": (2,)}, ShapeError, "f32[2, 3, 5]"),
        ("C3", ("f32[2, 4, 3]", "f32[2, 3, 5]", "i32[2]"),
         {"lhs_batch": (0,), "rhs_batch": (2,), "lhs_contracting": (2,), "lhs_ragged": 1},
         ShapeError, "f32[2, 3, 5]"),
        ("C4", ("f32[4, 3]", "f16[2, 3, 5]", "i32[2]"), {}, DTypeError, "f16"),
        ("C5", good, {"precision": (DotPrecision.HIGH,)}, ShapeError, "got 1"),
        ("C6", ("i32[4, 3]", "i32[2, 3, 5]", "i32[2]"),
         {"algorithm": DotAlgorithm.F16_F16_F32}, DTypeError, "f16_f16_f32"),
        ("C7", ("f32[4, 3]", "f32[2, 3, 5]", "f32[2]"), {}, DTypeError, "f32[2]"),
        ("C8", ("f32[4, 3]", "f32[2, 3, 5]", "i32[]"), {}, ShapeError, "i32[]"),
        ("C8", ("f32[4, 3]", "f32[2, 3, 5]", "i32[7, 2]"), {}, ShapeError, "i32[7, 2]"),
        ("C9", ("f32[4, 3]", "f32[2, 3, 5]", "i32[3]"), {}, ShapeError, "3 groups"),
        ("C9", good, {"rhs_group": None}, ShapeError, "got None"),
        ("C9", good, {"lhs_ragged": 1}, ShapeError, "got 0"),
    ):  # fmt: skip
        yield ErrorSample(ragged(**attributes), types, error, label, match)
    yield ErrorSample(Matmul, ("f32[]", "f32[2]"), ShapeError, "C1", "f32[]")
    yield ErrorSample(
        Matmul, ("f32[2, 3]", "f32[4, 2]"), ShapeError, "C2", "matmul K mismatch: 3 vs 4"
    )
    yield ErrorSample(Matmul, ("f32[2, 2, 3]", "f32[4, 3, 2]"), ShapeError, "C3", "f32[4, 3, 2]")
    yield ErrorSample(Matmul, ("f32[2, 3]", "f16[3, 2]"), DTypeError, "C4", "f16[3, 2]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(
        RaggedDot(), ("f32[m, k]", "f32[2, k, n]", "i32[2]"), {"m": 5, "k": 3, "n": 2}
    )
    yield SymbolicSample(
        RaggedDot(lhs_contracting=(0,), rhs_contracting=(0,), rhs_group=None),
        ("f32[k, m]", "f32[k, n]", "i32[3]"),
        {"m": 5, "k": 3, "n": 2},
    )
    yield SymbolicSample(Matmul(), ("f32[b, s, 4]", "f32[4, 8]"), {"b": 2, "s": 3})
    yield SymbolicSample(Matmul(), ("f32[b, h, s, 4]", "f32[b, 1, 4, s]"), {"b": 2, "h": 2, "s": 3})
    yield SymbolicSample(
        DotGeneral(**PLAIN), ("f32[b, 2*k]", "f32[2*k, n]"), {"b": 2, "k": 3, "n": 1}
    )
