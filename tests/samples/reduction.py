"""Samples of reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ops.io import Input
from rlx.ops.reduction import (
    Argmax,
    Argmin,
    CumLogSumExp,
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    LogSumExp,
    Mean,
    Reduce,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
)
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

SHAPES = (
    ((5,), (0,)),
    ((3, 65), (1,)),
    ((63, 2), (0,)),
    ((2, 1, 3), (0, 2)),
    ((0, 3), (0,)),
    ((2, 3), ()),
)
ARG_SHAPES = (((9,), 0), ((3, 65), 1), ((65, 3), 0), ((2, 1), 1), ((0, 3), 1))
INTEGERS = (*INTS, *UINTS)
SUB_BYTE = (DType.I4, DType.U4)


def some(rng: np.random.Generator, cases: Any, dtype: DType, count: int = 2) -> list[Any]:
    """All cases for f32, and a few drawn ones for another dtype, so that the suite stays short."""
    if dtype is DType.F32:
        return list(cases)
    return [cases[i] for i in rng.permutation(len(cases))[:count]]


def _extremes(rng: np.random.Generator, op: type[Op]) -> Iterator[Sample]:
    """Bool, integers and floats, with special values."""
    for dtype in (DType.BOOL, *INTEGERS, *SUB_BYTE, *FLOATS, *NARROW_FLOATS):
        for shape, axes in some(rng, SHAPES, dtype):
            x = draw(rng, dtype, shape, special=len(shape) < 2 or dtype.is_integer)
            yield Sample(op(axes=axes), (x,), f"{dtype}{list(shape)}")


def _sums(
    rng: np.random.Generator, op: type[Op], low: float, high: float, *, floats_only: bool = False
) -> Iterator[Sample]:
    """Numbers of one sign, so that relative bounds make sense."""
    exact = () if floats_only else (*INTEGERS, *SUB_BYTE)
    for dtype in (*exact, *FLOATS, *COMPLEX, *NARROW_FLOATS):
        for shape, axes in some(rng, SHAPES, dtype):
            x = draw(rng, dtype, shape, low=low, high=high, special=dtype.is_integer)
            yield Sample(op(axes=axes), (x,), f"{dtype}{list(shape)}")
    for dtype in FLOATS:
        specials = np.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, np.inf, 1]])
        yield Sample(op(axes=(1,)), (specials.astype(dtype.numpy),), f"{dtype} specials")


def _bits(rng: np.random.Generator, op: type[Op]) -> Iterator[Sample]:
    for dtype in (DType.BOOL, *INTEGERS, *SUB_BYTE):
        for shape, axes in SHAPES if dtype is DType.I32 else SHAPES[:2]:
            yield Sample(op(axes=axes), (draw(rng, dtype, shape, special=True),), f"{dtype}")


def _cumulative(
    rng: np.random.Generator, op: type[Op], dtypes: tuple[DType, ...], low: float, high: float
) -> Iterator[Sample]:
    for dtype in dtypes:
        for shape, axis in (((5,), 0), ((2, 65), 1), ((63, 1), 0), ((2, 0), 1)):
            reverse, exclusive = (bool(b) for b in rng.integers(0, 2, 2))
            x = draw(rng, dtype, shape, low=low, high=high)
            made = op(axis=axis, reverse=reverse, exclusive=exclusive)
            yield Sample(made, (x,), f"{dtype}{list(shape)} {reverse} {exclusive}")


def _arguments(rng: np.random.Generator, op: type[Op]) -> Iterator[Sample]:
    for dtype in (DType.BOOL, *INTEGERS, *FLOATS, *NARROW_FLOATS):
        for shape, axis in some(rng, ARG_SHAPES, dtype):
            special = bool(rng.integers(0, 2))
            x = draw(rng, dtype, shape, low=-2, high=2, special=special)
            if dtype in FLOATS:
                x = np.round(x.astype(np.float64)).astype(dtype.numpy)  # so that there are ties
            index = DType.I64 if rng.integers(0, 4) == 0 else DType.I32
            yield Sample(op(axis=axis, index_dtype=index), (x,), f"{dtype}{list(shape)}")
    for dtype in FLOATS:
        x = np.array(
            [[1, np.nan, 5, np.nan], [np.nan] * 4, [-np.inf] * 4, [np.inf] * 4, [0, -0.0] * 2]
        )
        yield Sample(op(axis=1), (x.astype(dtype.numpy),), f"{dtype} specials")


def scalar_graph(dtypes: tuple[DType, ...], combine: Callable[..., tuple[object, ...]]) -> Graph:
    """A graph of two scalars for each dtype: accumulators, then elements."""
    leaves = [Input(name=f"a{i}", dtype=d)() for i, d in enumerate(dtypes)]
    leaves += [Input(name=f"b{i}", dtype=d)() for i, d in enumerate(dtypes)]
    outputs = combine(*leaves)
    return Graph(leaves, (), outputs, name="body")  # type: ignore[arg-type]


def _add_body(*dtypes: DType) -> Graph:
    from rlx.ops.arithmetic import Add

    n = len(dtypes)
    return scalar_graph(dtypes, lambda *v: tuple(Add()(v[i], v[n + i]) for i in range(n)))


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _extremes(rng, ReduceMax)
    yield from _extremes(rng, ReduceMin)
    yield from _sums(rng, ReduceSum, 0.5, 3)
    yield from _sums(rng, ReduceProd, 0.9, 1.1)
    yield from _sums(rng, Mean, 0.5, 3, floats_only=True)
    for op in (ReduceAnd, ReduceOr, ReduceXor):
        yield from _bits(rng, op)
    yield from _arguments(rng, Argmax)
    yield from _arguments(rng, Argmin)
    ordered = (DType.BOOL, *INTEGERS, *FLOATS, DType.F8E5M2)
    yield from _cumulative(rng, CumSum, (*INTEGERS, *FLOATS, *COMPLEX, DType.F8E4M3FN), 0.5, 3)
    yield from _cumulative(rng, CumProd, (*INTEGERS, *FLOATS, DType.F8E4M3FN), 0.9, 1.1)
    yield from _cumulative(rng, CumProd, COMPLEX, 0.65, 0.75)  # of absolute value about 1
    yield from _cumulative(rng, CumMax, ordered, -3, 3)
    yield from _cumulative(rng, CumMin, ordered, -3, 3)
    yield from _cumulative(rng, CumLogSumExp, (*FLOATS, DType.F8E5M2), 1, 4)
    for dtype in FLOATS:
        x = np.array([[1, 2, np.nan, 3], [-np.inf, -np.inf, 0, np.inf]]).astype(dtype.numpy)
        for op in (CumSum, CumMax, CumMin, CumLogSumExp):
            yield Sample(op(axis=1, reverse=bool(rng.integers(0, 2))), (x,), f"{dtype} specials")
        for shape, axis in (((5,), 0), ((3, 65), 1), ((2, 1), 1), ((2, 0), 1)):
            x = draw(rng, dtype, shape, low=1, high=4)
            yield Sample(LogSumExp(axis=axis), (x,), f"{dtype}{list(shape)}")
        x = np.array([[1, np.nan], [-np.inf] * 2, [np.inf, 1], [1000, 999]]).astype(dtype.numpy)
        yield Sample(LogSumExp(axis=1), (x,), f"{dtype} specials")
    for dtype in (DType.I32, DType.F32, DType.F64):
        for shape, axes in (((5,), (0,)), ((3, 9), (1,)), ((2, 1, 3), (0, 2)), ((2, 0), (1,))):
            x = draw(rng, dtype, shape, low=0.5)
            y = draw(rng, DType.I32, shape)
            initial = (np.asarray(3, dtype.numpy), np.asarray(0, np.int32))
            body = _add_body(dtype, DType.I32)
            yield Sample(Reduce(axes=axes, body=body), (x, y, *initial), f"{dtype} {shape}")


def error_samples() -> Iterator[ErrorSample]:
    for op in (ReduceSum, ReduceProd, ReduceMax, ReduceMin, ReduceAnd, ReduceOr, ReduceXor, Mean):
        bad = "bool[2]" if op in (ReduceSum, ReduceProd, Mean) else "c64[2]"
        good = "f32[2, 3]" if op is Mean else "i32[2, 3]"
        yield ErrorSample(lambda op=op: op(axes=(2,)), (good,), ShapeError, "C1", "(2,)")
        yield ErrorSample(lambda op=op: op(axes=(1, 0)), (good,), ShapeError, "C1", "(1, 0)")
        yield ErrorSample(lambda op=op, bad=bad: op(axes=(0,)), (bad,), DTypeError, "C2", bad)
    for op in (CumSum, CumProd, CumMax, CumMin, CumLogSumExp, LogSumExp):
        bad = "bool[2]" if op in (CumSum, CumProd) else "c64[2]"
        yield ErrorSample(lambda op=op: op(axis=1), ("f32[2]",), ShapeError, "C1", "f32[2]")
        yield ErrorSample(lambda op=op: op(axis=0), (bad,), DTypeError, "C2", bad)
    for op in (Argmax, Argmin):
        yield ErrorSample(lambda op=op: op(axis=-1), ("f32[2]",), ShapeError, "C1", "-1")
        yield ErrorSample(lambda op=op: op(axis=0), ("c64[2]",), DTypeError, "C2", "c64[2]")
        yield ErrorSample(
            lambda op=op: op(axis=0, index_dtype=DType.F32), ("f32[2]",), DTypeError, "C3", "f32"
        )
        yield ErrorSample(lambda op=op: op(axis=0), ("f32[0]",), ShapeError, "C4", "f32[0]")
    two = _add_body(DType.F32)
    yield ErrorSample(
        lambda: Reduce(axes=(1,), body=two), ("f32[2]", "f32[]"), ShapeError, "C1", "1"
    )
    yield ErrorSample(
        lambda: Reduce(axes=(0,), body=two), ("f32[2]",), ShapeError, "C2", "1 inputs"
    )
    yield ErrorSample(
        lambda: Reduce(axes=(0,), body=two), ("f32[2]", "i32[]"), DTypeError, "C2", "i32[]"
    )
    yield ErrorSample(
        lambda: Reduce(axes=(0,), body=two), ("i32[2]", "i32[]"), ShapeError, "C3", "i32[]"
    )
    yield ErrorSample(
        lambda: Reduce(axes=(0,), body=scalar_graph((DType.F32,), lambda a, b: (a, b))),
        ("f32[2]", "f32[]"),
        ShapeError,
        "C4",
        "f32[], f32[]",
    )


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(ReduceSum(axes=(0,)), ("f32[b, s + 1]",), {"b": 3, "s": 4})
    yield SymbolicSample(Mean(axes=(0, 1)), ("f32[b, s, 2]",), {"b": 3, "s": 4})
    yield SymbolicSample(Argmax(axis=1), ("f32[b, s]",), {"b": 3, "s": 4})
    yield SymbolicSample(CumSum(axis=1), ("f32[b, s]",), {"b": 3, "s": 4})
    yield SymbolicSample(LogSumExp(axis=1), ("f32[b, s]",), {"b": 3, "s": 4})
    body = _add_body(DType.F32)
    yield SymbolicSample(Reduce(axes=(0,), body=body), ("f32[b, s]", "f32[]"), {"b": 3, "s": 4})
