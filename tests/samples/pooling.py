"""Samples of reductions over sliding windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops.pooling import (
    Pool,
    ReduceWindow,
    ReduceWindowGeneral,
    SelectAndGatherAdd,
    SelectAndScatterAdd,
    WindowKind,
    WindowSelect,
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
from tests.samples.reduction import scalar_graph, some


def window(*sizes: int, **changes: Any) -> dict[str, Any]:
    """Attributes of a plain window; ``changes`` replace some."""
    ones = (1,) * len(sizes)
    return {
        "window_dimensions": sizes,
        "window_strides": ones,
        "padding": ((0, 0),) * len(sizes),
        "base_dilation": ones,
        "window_dilation": ones,
        **changes,
    }


CASES = (
    ((2, 7, 6), window(1, 3, 2, window_strides=(1, 2, 1), padding=((0, 0), (1, 1), (0, 1)))),
    ((65,), window(4, window_strides=(3,), window_dilation=(2,))),
    ((9, 2), window(2, 1, base_dilation=(3, 1), padding=((1, -2), (0, 0)))),
    ((1,), window(1)),
    ((2,), window(3)),
    ((0, 3), window(1, 2)),
    ((), window()),
)


def _body(dtype: DType) -> Any:
    from rlx.ops.arithmetic import Add, Max

    return scalar_graph((dtype, DType.I32), lambda a, i, b, j: (Add()(a, b), Max()(i, j)))


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    ordered = (DType.BOOL, *INTS, *UINTS, *FLOATS, *NARROW_FLOATS)
    for kind in WindowKind:
        adds = kind in (WindowKind.SUM, WindowKind.PROD)
        for dtype in (*ordered[1:], *COMPLEX) if adds else ordered:
            for shape, attributes in some(rng, CASES, dtype, 1):
                x = draw(rng, dtype, shape, low=0.5, high=2)
                op = ReduceWindow(kind=kind, **attributes)
                yield Sample(op, (x,), f"{kind.value} {dtype}{list(shape)}")
    for dtype in FLOATS:
        x = np.array([1, np.nan, 2, 3, -np.inf, np.inf, 0, 4]).astype(dtype.numpy)
        for kind in (WindowKind.SUM, WindowKind.MAX, WindowKind.MIN):
            yield Sample(ReduceWindow(kind=kind, **window(2)), (x,), f"{kind.value} specials")
    for dtype in (DType.I32, DType.F32, DType.F64):
        for shape, attributes in CASES[1:]:
            x, y = draw(rng, dtype, shape, low=0.5), draw(rng, DType.I32, shape)
            initial = (np.asarray(0, dtype.numpy), np.asarray(-9, np.int32))
            op = ReduceWindowGeneral(body=_body(dtype), **attributes)
            yield Sample(op, (x, y, *initial), f"{dtype}{list(shape)}")
    for dtype in (*FLOATS, DType.I32, DType.I8):
        yield from _scatter(rng, dtype)
    for dtype in FLOATS:
        for shape, attributes in some(rng, CASES, dtype):
            select = WindowSelect.GE if rng.integers(0, 2) else WindowSelect.LE
            operand = rng.permutation(int(np.prod(shape))).reshape(shape).astype(dtype.numpy)
            tangents = draw(rng, dtype, shape)
            op = SelectAndGatherAdd(select=select, **attributes)
            yield Sample(op, (tangents, operand), f"{dtype}{list(shape)}")
    for dtype in (*FLOATS, DType.I32):
        for kind in WindowKind:
            mean = kind is WindowKind.SUM and dtype.is_float
            x = draw(rng, dtype, (2, 3, 7, 5), low=0.5, high=2)
            op = Pool(kind=kind, mean=mean, kernel=(3, 2), stride=(2, 1), padding=(1, 0))
            yield Sample(op, (x,), f"{dtype} {kind.value}")


def _scatter(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape, sizes, strides, padding in (
        ((2, 7, 6), (1, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 1))),
        ((65,), (4,), (3,), ((0, 0),)),
        ((5,), (1,), (1,), ((0, 0),)),
        ((2,), (3,), (1,), ((0, 0),)),
        ((6,), (2,), (1,), ((0, 0),)),
    ):
        select = WindowSelect.GE if rng.integers(0, 2) else WindowSelect.LE
        op = SelectAndScatterAdd(
            select=select, window_dimensions=sizes, window_strides=strides, padding=padding
        )
        operand = draw(rng, DType.I8, shape).astype(dtype.numpy)  # small whole numbers, with ties
        counts = [
            (n + low + high - k) // s + 1
            for n, k, s, (low, high) in zip(shape, sizes, strides, padding, strict=True)
        ]
        source = draw(rng, dtype, [max(n, 0) for n in counts], low=0.5, high=2)
        yield Sample(op, (source, operand), f"{dtype}{list(shape)} {select.value}")


def error_samples() -> Iterator[ErrorSample]:
    total, most = WindowKind.SUM, WindowKind.MAX
    for label, types, error, op, match in (
        ("C1", ("f32[2, 3]",), ShapeError, ReduceWindow(kind=total, **window(2)), "2 entries"),
        ("C2", ("f32[2]",), ShapeError, ReduceWindow(kind=total, **window(0)), "(0,)"),
        ("C3", ("bool[2]",), DTypeError, ReduceWindow(kind=total, **window(2)), "bool[2]"),
        ("C3", ("c64[2]",), DTypeError, ReduceWindow(kind=most, **window(2)), "c64[2]"),
    ):
        yield ErrorSample(lambda op=op: op, types, error, label, match)
    body = _body(DType.F32)
    good = ("f32[2]", "i32[2]", "f32[]", "i32[]")
    wrong = scalar_graph((DType.F32, DType.I32), lambda a, i, b, j: (i, a))
    for label, types, op, match in (
        ("C1", good, ReduceWindowGeneral(body=body, **window(2, 2)), "1 entries"),
        ("C2", good, ReduceWindowGeneral(body=body, **window(0)), "(0,)"),
        ("C2", good[:3], ReduceWindowGeneral(body=body, **window(2)), "3 inputs"),
        ("C3", ("f32[2]", "f32[]"), ReduceWindowGeneral(body=body, **window(2)), "f32[]"),
        ("C4", good, ReduceWindowGeneral(body=wrong, **window(2)), "i32[], f32[]"),
    ):
        yield ErrorSample(lambda op=op: op, types, ShapeError, label, match)
    plain = {n: v for n, v in window(2).items() if not n.endswith("dilation")}
    zero = {**plain, "window_strides": (0,)}
    for label, types, error, attributes, match in (
        ("C1", ("f32[1]", "f32[2, 1]"), ShapeError, plain, "2 entries"),
        ("C2", ("f32[1]", "f32[2]"), ShapeError, zero, "(0,)"),
        ("C3", ("f32[2]", "f32[2]"), ShapeError, plain, "f32[1]"),
        ("C4", ("f32[1]", "f16[2]"), DTypeError, plain, "f16[2]"),
    ):
        build = lambda a=attributes: SelectAndScatterAdd(select=WindowSelect.GE, **a)  # noqa: E731
        yield ErrorSample(build, types, error, label, match)
    for label, types, error, attributes, match in (
        ("C1", ("f32[2, 1]", "f32[2, 1]"), ShapeError, window(2), "2 entries"),
        ("C2", ("f32[2]", "f32[2]"), ShapeError, window(0), "(0,)"),
        ("C3", ("f32[1]", "f32[2]"), ShapeError, window(2), "f32[1]"),
        ("C4", ("i32[2]", "i32[2]"), DTypeError, window(2), "i32[2]"),
    ):
        build = lambda a=attributes: SelectAndGatherAdd(select=WindowSelect.GE, **a)  # noqa: E731
        yield ErrorSample(build, types, error, label, match)
    for label, types, error, attributes, match in (
        ("C1", ("f32[2, 3]",), ShapeError, {}, "f32[2, 3]"),
        ("C2", ("f32[2, 3, 4]",), ShapeError, {"padding": (-1,)}, "(-1,)"),
        ("C3", ("c64[2, 3, 4]",), DTypeError, {}, "c64[2, 3, 4]"),
        ("C3", ("f32[2, 3, 4]",), DTypeError, {"kind": most, "mean": True}, "max"),
    ):
        merged = {"kind": total, "kernel": (2,), "stride": (1,), "padding": (0,), **attributes}
        yield ErrorSample(lambda m=merged: Pool(**m), types, error, label, match)


def symbolic_samples() -> Iterator[SymbolicSample]:
    op = ReduceWindow(kind=WindowKind.MAX, **window(1, 3, window_strides=(1, 2)))
    yield SymbolicSample(op, ("f32[b, s]",), {"b": 2, "s": 7})
    pool = Pool(kind=WindowKind.SUM, mean=True, kernel=(2,), stride=(2,), padding=(1,))
    yield SymbolicSample(pool, ("f32[b, 3, s]",), {"b": 2, "s": 7})
    gather = SelectAndGatherAdd(select=WindowSelect.GE, **window(1, 2))
    yield SymbolicSample(gather, ("f32[b, s]", "f32[b, s]"), {"b": 2, "s": 7})
