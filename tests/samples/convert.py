"""Samples of changes of element type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops import convert as ops
from tests.samples.base import (
    FLOATS,
    NARROW_FLOATS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)
from tests.samples.elementwise import BOOL, NUMBERS, SHAPES, SUB_BYTE, TINY, elementwise

_TARGETS = (*NUMBERS, *BOOL, *NARROW_FLOATS, *SUB_BYTE, DType.F4E2M1FN, DType.F8E8M0FNU)
_SIX_BITS = (DType.F6E2M3FN, DType.F6E3M2FN)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for target in _TARGETS:
        x = draw(rng, DType.F32, (65,), low=-300, high=300, special=True)
        yield Sample(ops.Convert(dtype=target), (x,), f"f32 to {target}")
        source = _TARGETS[int(rng.integers(len(_TARGETS)))]
        yield from _conversion(rng, source, target)
        yield from _conversion(rng, target, DType.F32)
    for target in _SIX_BITS:
        x = draw(rng, DType.F32, (65,), special=False)
        limitation = "XLA's CPU compiles no 6-bit floats"
        yield Sample(
            ops.Convert(dtype=target), (x,), f"f32 to {target}", xla=False, limitation=limitation
        )
    for target in (DType.I8, DType.I32, DType.U4):
        yield from _conversion(rng, DType.F4E2M1FN, target)
    for source in (DType.F64, DType.I64, DType.BOOL, DType.C64):
        for target in (DType.I32, DType.U8, DType.BF16, DType.F16, DType.BOOL, DType.C64):
            yield from _conversion(rng, source, target)
    for shape in SHAPES:
        yield Sample(ops.Convert(dtype=DType.I32), (draw(rng, DType.F32, shape),), f"{shape}")
    yield from _bitcasts(rng)
    for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (2, 1), (5, 0), (11, 52)):
        op = ops.ReducePrecision(exponent_bits=exponent, mantissa_bits=mantissa)
        yield from elementwise(rng, op, FLOATS)
    for op in (ops.Copy(), ops.StopGradient()):
        yield from elementwise(rng, op, (*NUMBERS, *BOOL, *TINY), complex_special=True)
    yield Sample(ops.OptimizationBarrier(), (draw(rng, DType.F32, (3,)),), "one")
    pair = draw(rng, DType.F32, (3, 2)), draw(rng, DType.I8, (5,))
    yield Sample(ops.OptimizationBarrier(), pair, "two")


def _conversion(rng: np.random.Generator, source: DType, target: DType) -> Iterator[Sample]:
    x = draw(rng, source, (65,), special=not source.is_complex)
    yield Sample(ops.Convert(dtype=target), (x,), f"{source} to {target}")


def _bitcasts(rng: np.random.Generator) -> Iterator[Sample]:
    same = (("f32", "i32"), ("i64", "f64"), ("bf16", "u16"), ("f8e5m2", "i8"), ("u4", "i4"))
    narrower = (("f32", "u8"), ("i64", "f32"), ("f64", "u16"), ("i8", "u4"), ("u32", "i4"))
    pairs = [(_named(a), _named(b)) for a, b in (*same, *narrower)]
    for source, target in pairs:
        for shape in ((0,), (7,), (2, 3), ()):
            x = draw(rng, source, shape, special=source.is_integer)
            yield Sample(ops.BitcastConvert(dtype=target), (x,), f"{source} to {target} {shape}")
    for wide, narrow in (pair for pair in pairs if pair[0].bits > pair[1].bits):
        for lead in ((), (5,), (0, 2)):
            x = draw(rng, narrow, (*lead, wide.bits // narrow.bits), special=narrow.is_integer)
            label = f"{narrow} to {wide} {lead}"
            yield Sample(ops.BitcastConvert(dtype=wide), (x,), label, check=_same_bits)
    x = draw(rng, DType.C64, (3,))
    yield Sample(ops.BitcastConvert(dtype=DType.C64), (x,), "same type")


def _named(label: str) -> DType:
    return next(d for d in DType if d.label == label)


def _same_bits(
    found: list[np.ndarray], wanted: list[np.ndarray], inputs: tuple[np.ndarray, ...]
) -> None:
    assert found[0].shape == wanted[0].shape
    assert found[0].dtype == wanted[0].dtype
    assert found[0].tobytes() == wanted[0].tobytes()


def error_samples() -> Iterator[ErrorSample]:
    yield ErrorSample(lambda: ops.Convert(dtype=DType.F32), ("token",), DTypeError, "C1", "token")
    yield ErrorSample(
        lambda: ops.Convert(dtype=DType.TOKEN), ("f32[2]",), DTypeError, "C2", "token"
    )

    def bitcast(dtype: DType) -> ops.BitcastConvert:
        return ops.BitcastConvert(dtype=dtype)

    yield ErrorSample(lambda: bitcast(DType.I8), ("bool[2]",), DTypeError, "C1", "bool[2]")
    yield ErrorSample(lambda: bitcast(DType.F8E5M2), ("f6e2m3fn[2]",), DTypeError, "C2", "6 bits")
    yield ErrorSample(lambda: bitcast(DType.I64), ("f32[3]",), ShapeError, "C3", "f32[3]")
    yield ErrorSample(lambda: bitcast(DType.I64), ("f32[]",), ShapeError, "C3", "f32[]")

    def reduced(exponent: int, mantissa: int) -> ops.ReducePrecision:
        return ops.ReducePrecision(exponent_bits=exponent, mantissa_bits=mantissa)

    yield ErrorSample(lambda: reduced(5, 10), ("i32[2]",), DTypeError, "C1", "i32[2]")
    yield ErrorSample(lambda: reduced(0, 10), ("f32[2]",), ShapeError, "C2", "got 0")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(ops.Convert(dtype=DType.I8), ("f32[b, 4]",), {"b": 3})
    yield SymbolicSample(ops.BitcastConvert(dtype=DType.I8), ("f32[b]",), {"b": 3})
    yield SymbolicSample(ops.BitcastConvert(dtype=DType.I32), ("i8[b, 4]",), {"b": 3})
    yield SymbolicSample(ops.OptimizationBarrier(), ("f32[b]", "i8[s]"), {"b": 3, "s": 2})
    for op in (ops.Copy(), ops.StopGradient()):
        yield SymbolicSample(op, ("f32[b]",), {"b": 3})
