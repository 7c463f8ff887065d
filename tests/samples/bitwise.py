"""Samples of logic on bits, shifts and bit counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.ir.op import Op
from rlx.ops import bitwise as ops
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw
from tests.samples.elementwise import (
    BOOL,
    INTEGERS,
    SUB_BYTE,
    binary_errors,
    elementwise,
    unary_errors,
)

_LOGIC: tuple[type[Op], ...] = (ops.And, ops.Or, ops.Xor)
_SHIFTS: tuple[type[Op], ...] = (
    ops.ShiftLeft,
    ops.ShiftRightArithmetic,
    ops.ShiftRightLogical,
)
_COUNTS: tuple[type[Op], ...] = (ops.PopulationCount, ops.Clz)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for op in _LOGIC:
        yield from elementwise(rng, op(), (*INTEGERS, *BOOL, *SUB_BYTE), arity=2)
    yield from elementwise(rng, ops.Not(), (*INTEGERS, *BOOL, *SUB_BYTE))
    for op in _SHIFTS:
        for dtype in (*INTEGERS, *SUB_BYTE):
            value = draw(rng, dtype, (65,), special=True)
            # Amounts on both sides of the width, negative ones among them.
            amount = draw(rng, dtype, (65,), low=-2, high=dtype.bits + 2)
            yield Sample(op(), (value, amount), f"{dtype}")
        empty = draw(rng, INTEGERS[0], (0,))
        yield Sample(op(), (empty, empty), "empty")
    for op in _COUNTS:
        yield from elementwise(rng, op(), (*INTEGERS, *SUB_BYTE))


def error_samples() -> Iterator[ErrorSample]:
    for op in _LOGIC:
        yield from binary_errors(op, ("i32", "u8"), "f32")
    for op in _SHIFTS:
        yield from binary_errors(op, ("i32", "u8"), "bool")
    yield from unary_errors(ops.Not, "f32")
    for op in _COUNTS:
        yield from unary_errors(op, "bool")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(ops.And(), ("i32[b, 4]", "i32[b, 4]"), {"b": 3})
    yield SymbolicSample(ops.Not(), ("bool[b, 4]",), {"b": 3})
