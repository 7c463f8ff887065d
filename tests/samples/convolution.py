"""Samples of convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ops.convolution import Conv, ConvGeneralDilated, ConvTranspose
from rlx.ops.dot import DotPrecision
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


def general(rank: int, **changes: Any) -> ConvGeneralDilated:
    """A convolution of ``rank`` axes in channels-first layout."""
    order, ones = tuple(range(rank)), (1,) * (rank - 2)
    attributes: dict[str, Any] = {
        "window_strides": ones,
        "padding": ((0, 0),) * (rank - 2),
        "lhs_dilation": ones,
        "rhs_dilation": ones,
        "lhs_spec": order,
        "rhs_spec": order,
        "out_spec": order,
    }
    return ConvGeneralDilated(**{**attributes, **changes})


NHWC = {"lhs_spec": (0, 3, 1, 2), "rhs_spec": (3, 2, 0, 1), "out_spec": (0, 3, 1, 2)}
CASES = (
    ((2, 3, 7, 6), (4, 3, 3, 2), general(4, padding=((1, 1), (0, 2)), window_strides=(2, 1))),
    ((2, 7, 5, 4), (3, 2, 4, 5), general(4, **NHWC, padding=((1, 1), (1, 0)))),
    ((1, 2, 65), (3, 2, 1), general(3, window_strides=(3,))),
    ((0, 2, 5), (3, 2, 3), general(3)),
    ((2, 2, 2), (3, 2, 3), general(3)),
    ((2, 4, 9), (6, 2, 3), general(3, feature_group_count=2, rhs_dilation=(2,))),
    ((2, 4, 9), (4, 1, 3), general(3, feature_group_count=4, padding=((2, 0),))),
    ((2, 4, 5, 5), (8, 1, 3, 2), general(4, feature_group_count=4, padding=((1, 1), (0, 0)))),
    ((6, 2, 5), (4, 2, 2), general(3, batch_group_count=2)),
    ((1, 2, 5, 4), (3, 2, 2, 2), general(4, lhs_dilation=(2, 3), padding=((1, 2), (-1, -2)))),
    ((2, 3), (4, 3), general(2)),
    ((1, 2, 3, 4, 3), (2, 2, 2, 1, 3), general(5, padding=((1, 0), (0, 0), (1, 1)))),
)
OTHERS = (*INTS, *UINTS, *COMPLEX, *NARROW_FLOATS, DType.I4)


def _numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Positive floats, so that a relative bound makes sense; integers of the whole range."""
    if dtype.is_complex:
        real, imag = (draw(rng, dtype.real, shape, low=0.5, high=1.5) for _ in "ri")
        return (real + 0.1j * imag).astype(dtype.numpy)
    return draw(rng, dtype, shape, low=0.25, high=1.5, special=dtype.is_integer)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*FLOATS, *OTHERS):
        some = rng.permutation(len(CASES))[:3]
        picked = CASES if dtype is DType.F32 else [CASES[i] for i in some]
        for left, right, op in picked:
            inputs = (_numbers(rng, dtype, left), _numbers(rng, dtype, right))
            yield Sample(op, inputs, f"{dtype}{left}{right}")
    for lhs, rhs, result in (
        (DType.BF16, DType.BF16, DType.F32),
        (DType.F16, DType.F16, DType.F32),
        (DType.I8, DType.I8, DType.I32),
        (DType.F32, DType.F32, DType.F64),
    ):
        inputs = (_numbers(rng, lhs, (2, 3, 7)), _numbers(rng, rhs, (4, 3, 3)))
        yield Sample(general(3, preferred_element_type=result), inputs, f"{lhs} {result}")
    high = (DotPrecision.HIGH, DotPrecision.HIGHEST)
    inputs = (_numbers(rng, DType.F32, (2, 3, 7)), _numbers(rng, DType.F32, (4, 3, 3)))
    yield Sample(general(3, precision=high), inputs, "precision")
    for dtype in FLOATS:
        for x, w, op in (
            ((2, 3, 7, 6), (4, 3, 3, 2), Conv(stride=(2, 1), padding=(1, 0), dilation=(1, 2))),
            ((2, 4, 9), (6, 2, 3), Conv(stride=(1,), padding=(2,), dilation=(1,), groups=2)),
            ((2, 3, 4, 5), (3, 2, 3, 2), _transposed((2, 1), (1, 0), (1, 0), (1, 2), 1)),
            ((2, 4, 5), (4, 3, 3), _transposed((3,), (1,), (2,), (1,), 2)),
            ((1, 1, 1), (1, 1, 1), _transposed((1,), (0,), (0,), (1,), 1)),
        ):
            inputs = (_numbers(rng, dtype, x), _numbers(rng, dtype, w))
            yield Sample(op, inputs, f"{dtype}{x}{w}")


def _transposed(
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> ConvTranspose:
    return ConvTranspose(
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
    )


def error_samples() -> Iterator[ErrorSample]:
    good = ("f32[2, 4, 9]", "f32[6, 4, 3]")
    for label, types, error, changes, match in (
        ("C1", ("f32[2, 4, 9]", "f32[6, 4]"), ShapeError, {}, "f32[6, 4]"),
        ("C1", good, ShapeError, {"out_spec": (0, 1, 1)}, "(0, 1, 1)"),
        ("C1", good, ShapeError, {"padding": ()}, "0"),
        ("C2", good, ShapeError, {"window_strides": (0,)}, "(0,)"),
        ("C3", good, ShapeError, {"feature_group_count": 2}, "f32[6, 4, 3]"),
        ("C3", good, ShapeError, {"feature_group_count": 2, "batch_group_count": 2}, "2 and 2"),
        ("C3", ("f32[2, 8, 9]", "f32[3, 4, 3]"), ShapeError, {"feature_group_count": 2}, "3"),
        ("C4", ("f32[3, 4, 9]", "f32[6, 4, 3]"), ShapeError, {"batch_group_count": 2}, "3"),
        ("C5", ("f32[2, 4, 9]", "f16[6, 4, 3]"), DTypeError, {}, "f16[6, 4, 3]"),
        ("C6", good, ShapeError, {"precision": ()}, "0"),
    ):
        build = lambda changes=changes: general(3, **changes)  # noqa: E731
        yield ErrorSample(build, types, error, label, match)
    for op in (Conv, ConvTranspose):
        more = {"output_padding": (0,)} if op is ConvTranspose else {}
        same = ("f32[2, 4, 9]", "f32[4, 4, 3]")
        for label, types, error, stride, groups, match in (
            ("C1", same, ShapeError, (1, 1), 1, "2"),
            ("C2", same, ShapeError, (0,), 1, "(0,)"),
            ("C3", ("f32[2, 3, 9]", "f32[4, 4, 3]"), ShapeError, (1,), 1, "f32[2, 3, 9]"),
            ("C4", ("f32[2, 4, 9]", "f16[4, 4, 3]"), DTypeError, (1,), 1, "f16[4, 4, 3]"),
        ):
            build = lambda op=op, s=stride, g=groups, m=more: op(  # noqa: E731
                stride=s, padding=(0,), dilation=(1,), groups=g, **m
            )
            yield ErrorSample(build, types, error, label, match)
    yield ErrorSample(
        lambda: Conv(stride=(1,), padding=(0,), dilation=(1,), groups=2),
        ("f32[2, 4, 9]", "f32[3, 2, 3]"),
        ShapeError,
        "C3",
        "multiple of 2",
    )


def symbolic_samples() -> Iterator[SymbolicSample]:
    conv = Conv(stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    yield SymbolicSample(conv, ("f32[b, 3, h, 9]", "f32[4, 3, 3, 3]"), {"b": 2, "h": 5})
    up = _transposed((2,), (1,), (1,), (1,), 1)
    yield SymbolicSample(up, ("f32[b, 3, s]", "f32[3, 4, 3]"), {"b": 2, "s": 5})
    grouped = general(3, batch_group_count=2)
    yield SymbolicSample(grouped, ("f32[2*b, 3, s]", "f32[4, 3, 1]"), {"b": 2, "s": 5})
