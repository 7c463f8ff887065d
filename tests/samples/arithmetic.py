"""Samples of elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops import arithmetic as ops
from tests.samples.base import (
    COMPLEX,
    FLOATS,
    INTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)
from tests.samples.elementwise import (
    BOOL,
    F8,
    INTEGERS,
    NUMBERS,
    REALS,
    SUB_BYTE,
    TINY,
    binary_errors,
    elementwise,
    unary_errors,
)

_SIGNED_TINY = (*(d for d in SUB_BYTE if d.is_signed), *F8)
# XLA's power is exp(rhs · log(lhs)) with extra bits.
_POW_ULP = {DType.F32: 4, DType.F64: 4, DType.F16: 1, DType.BF16: 1}


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from elementwise(rng, ops.Add(), (*NUMBERS, *BOOL, *TINY), arity=2, complex_special=True)
    yield from elementwise(rng, ops.Sub(), (*NUMBERS, *TINY), arity=2, complex_special=True)
    yield from elementwise(rng, ops.Mul(), (*NUMBERS, *BOOL, *TINY), arity=2)
    yield from elementwise(rng, ops.Div(), (*NUMBERS, *TINY), arity=2)
    yield from elementwise(rng, ops.Rem(), (*REALS, *SUB_BYTE), arity=2)
    for op in (ops.Max(), ops.Min()):
        yield from elementwise(rng, op, (*NUMBERS, *BOOL, *TINY), arity=2, complex_special=True)
    yield from elementwise(rng, ops.NextAfter(), FLOATS, arity=2)
    yield from elementwise(rng, ops.MulHi(), INTEGERS, arity=2)
    yield from _powers(rng)
    yield from elementwise(rng, ops.Neg(), (*NUMBERS, *TINY), complex_special=True)
    yield from elementwise(rng, ops.Abs(), (*FLOATS, *INTS, *COMPLEX, *_SIGNED_TINY))
    yield from elementwise(rng, ops.Sign(), (*NUMBERS, *TINY))
    yield from elementwise(rng, ops.Square(), (*NUMBERS, *TINY))
    yield from elementwise(rng, ops.OneMinusSquare(), NUMBERS)
    for op in (ops.Floor(), ops.Ceil(), ops.IsFinite()):
        yield from elementwise(rng, op, (*FLOATS, *F8))
    for ties in ops.Ties:
        yield from elementwise(rng, ops.Round(ties=ties), (*FLOATS, *F8))
        halves = np.arange(-4, 5).astype(np.float32) / 2
        yield Sample(ops.Round(ties=ties), (halves,), "halves")
    yield from _clamps(rng)
    for dtype in (DType.F32, DType.I32, DType.C64):
        inputs = [draw(rng, dtype, (2, 5), low=-1, high=1) for _ in range(4)]
        yield Sample(ops.Polynomial(), tuple(inputs), f"{dtype}")
    yield Sample(ops.Polynomial(), tuple(inputs[:2]), "constant")


def _powers(rng: np.random.Generator) -> Iterator[Sample]:
    yield from elementwise(
        rng, ops.Pow(), FLOATS, arity=2, low=0.1, max_ulp=_POW_ULP, special=False
    )
    for dtype in (DType.F32, DType.F64):
        inputs = tuple(draw(rng, dtype, (65,), special=True) for _ in range(2))
        yield Sample(ops.Pow(), (inputs[0], np.round(inputs[1])), f"{dtype} special", max_ulp=4)
    for dtype in (*INTEGERS, *COMPLEX):
        inputs = tuple(draw(rng, dtype, (63,), special=False) for _ in range(2))
        yield Sample(ops.Pow(), inputs, f"{dtype}")
    for exponent in (-3, -1, 0, 1, 2, 3, 6):
        narrow = FLOATS[2:] if abs(exponent) <= 3 else ()
        whole = INTEGERS[2:6:3] if exponent >= 0 else ()
        dtypes = (*FLOATS[:2], *narrow, *whole, DType.C64)
        for dtype in dtypes:
            special = not dtype.is_complex
            x = draw(rng, dtype, (9,), low=0.5, special=special)
            yield Sample(ops.IntegerPow(exponent=exponent), (x,), f"{dtype}^{exponent}")


def _clamps(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*REALS, *BOOL):
        lower, x, upper = (draw(rng, dtype, (63,), special=True) for _ in range(3))
        yield Sample(ops.Clamp(), (lower, x, upper[::-1].copy()), f"{dtype} full")
    for shape in ((0,), (1,), (3, 5), ()):
        lower, upper = (np.asarray(v, np.float32) for v in (-1, 2))
        x = draw(rng, DType.F32, shape)
        yield Sample(ops.Clamp(), (lower, x, upper), f"scalar bounds {shape}")
        yield Sample(ops.Clamp(), (x, x, upper), f"one scalar bound {shape}")


def error_samples() -> Iterator[ErrorSample]:
    for op in (ops.Add, ops.Mul, ops.Max, ops.Min):
        yield from binary_errors(op, ("f32", "f16"), "token")
    for op in (ops.Sub, ops.Div, ops.Pow, ops.Rem, ops.NextAfter):
        yield from binary_errors(op, ("f32", "f16"), "bool")
    yield from binary_errors(ops.MulHi, ("i32", "i16"), "i4")
    for op in (ops.Neg, ops.Sign, ops.Square, ops.OneMinusSquare):
        yield from unary_errors(op, "bool")
    yield from unary_errors(ops.Abs, "u8")
    for op in (ops.Floor, ops.Ceil, ops.Round, ops.IsFinite):
        yield from unary_errors(op, "i32")
    yield from unary_errors(lambda: ops.IntegerPow(exponent=2), "bool")
    yield ErrorSample(lambda: ops.IntegerPow(exponent=-1), ("i32[2]",), DTypeError, "C2", "-1")
    yield ErrorSample(ops.Clamp, ("f32[3]", "f32[2]", "f32[]"), ShapeError, "C1", "f32[3]")
    yield ErrorSample(ops.Clamp, ("f32[]", "f32[2]", "f16[]"), DTypeError, "C2", "f16[]")
    yield ErrorSample(ops.Clamp, ("c64[]", "c64[2]", "c64[]"), DTypeError, "C3", "c64[2]")
    yield from binary_errors(ops.Polynomial, ("f32", "f16"), "bool")
    yield ErrorSample(ops.Polynomial, ("f32[2]",), ShapeError, "C4", "got none")


def symbolic_samples() -> Iterator[SymbolicSample]:
    two = ("f32[b, 4]", "f32[b, 4]")
    yield SymbolicSample(ops.Add(), two, {"b": 3})
    yield SymbolicSample(ops.Polynomial(), (*two, "f32[b, 4]"), {"b": 3})
    yield SymbolicSample(ops.Clamp(), ("f32[]", "f32[2*b]", "f32[b+b]"), {"b": 3})
    yield SymbolicSample(ops.Abs(), ("c64[b, s]",), {"b": 3, "s": 2})
    yield SymbolicSample(ops.IsFinite(), ("f32[b, s]",), {"b": 3, "s": 2})
