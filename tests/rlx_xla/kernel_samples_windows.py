"""Samples of convolutions and windows, for CPU kernels to carry out or to refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.pooling import ReduceWindow, SelectAndScatterAdd, WindowKind, WindowSelect
from rlx.tolerances import Tolerance
from tests.samples.base import Sample, draw
from tests.samples.convolution import NHWC, general

NWC = {"lhs_spec": (0, 2, 1), "rhs_spec": (2, 1, 0), "out_spec": (0, 2, 1)}

CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    # Image and kernel, channels first; the last entry holds attributes.
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 3, 7, 6), (4, 3, 3, 2), {"padding": ((1, 1), (0, 2)), "window_strides": (2, 1)}),
    ((1, 3, 9, 9), (17, 3, 3, 3), {"padding": ((1, 1), (1, 1)), "window_strides": (2, 2)}),
    ((1, 8, 5, 33), (33, 8, 1, 1), {}),
    ((1, 5, 6, 6), (7, 5, 3, 3), {"padding": ((-1, 2), (3, -1))}),
    ((3, 4, 4, 4), (5, 4, 2, 3), {"padding": ((4, 4), (5, 5)), "rhs_dilation": (3, 2)}),
    ((1, 40, 9, 8), (45, 8, 3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 5}),
    ((2, 134, 3, 5), (40, 67, 3, 2), {"padding": ((1, 1), (1, 1)), "feature_group_count": 2}),
    ((2, 12, 11, 3), (24, 6, 2, 1), {"window_strides": (3, 2), "feature_group_count": 2}),
    ((1, 130, 2, 2), (3, 130, 2, 2), {"padding": ((1, 1), (1, 1))}),
    ((1, 300, 3, 3), (20, 300, 1, 1), {}),
    # Few channels a group, in planes: sets of groups, strides, distances, several bands.
    ((1, 99, 9, 10), (66, 3, 3, 2), {"padding": ((1, 1), (1, 0)), "feature_group_count": 33}),
    (
        (2, 40, 14, 13),
        (35, 8, 3, 3),
        {"padding": ((1, 1), (0, 2)), "window_strides": (2, 3), "feature_group_count": 5},
    ),
    ((1, 64, 15, 14), (64, 16, 3, 3), {"rhs_dilation": (2, 1), "feature_group_count": 4}),
    ((1, 21, 50, 40), (24, 7, 3, 3), {"padding": ((1, 1), (1, 1)), "feature_group_count": 3}),
    ((2, 18, 70), (27, 2, 5), {"padding": ((2, 2),), "feature_group_count": 9}),
    # A kernel for each channel; the last one has more taps than those sums take.
    (
        (2, 37, 9, 7),
        (37, 1, 3, 3),
        {"padding": ((1, 1), (0, 2)), "window_strides": (2, 1), "feature_group_count": 37},
    ),
    (
        (1, 24, 8, 9),
        (24, 1, 5, 5),
        {"padding": ((3, 4), (-1, 2)), "rhs_dilation": (1, 2), "feature_group_count": 24},
    ),
    (
        (3, 19, 30),
        (19, 1, 4),
        {"padding": ((5, 1),), "window_strides": (3,), "feature_group_count": 19},
    ),
    ((1, 2, 13, 12), (2, 1, 12, 11), {"feature_group_count": 2}),
    ((1, 50, 9, 17), (50, 1, 7, 7), {"padding": ((3, 3), (3, 3)), "feature_group_count": 50}),
    (
        (2, 33, 8, 23),
        (33, 1, 5, 5),
        {"padding": ((2, 2), (1, 2)), "window_strides": (2, 2), "feature_group_count": 33},
    ),
    ((0, 2, 5, 5), (3, 2, 3, 3), {}),
    ((1, 2, 2, 2), (3, 2, 3, 3), {}),
    ((2, 3, 65), (5, 3, 4), {"window_strides": (3,), "padding": ((2, 1),)}),
    ((1, 6, 50), (9, 2, 3), {"feature_group_count": 3, "rhs_dilation": (4,)}),
    ((1, 3, 40, 40), (16, 3, 7, 7), {"padding": ((3, 3), (3, 3)), "window_strides": (2, 2)}),
    ((1, 256, 7, 7), (512, 256, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((2, 8, 14, 14), (64, 8, 1, 1), {}),
    ((1, 300, 7, 7), (70, 300, 1, 1), {}),
    # One image of few places, of which some are left of whole vectors.
    ((1, 120, 5, 7), (66, 60, 3, 3), {"padding": ((1, 1), (2, 0)), "feature_group_count": 2}),
    ((1, 80, 6, 6), (70, 40, 2, 5), {"padding": ((1, 1), (2, 2)), "feature_group_count": 2}),
    ((2, 134, 5, 7), (66, 67, 1, 1), {"feature_group_count": 2}),
    ((1, 64, 20, 20), (64, 64, 3, 3), {}),  # gains nothing
    ((1, 2, 4, 4, 4), (2, 2, 2, 2, 2), {}),  # too many axes
    ((1, 2, 5, 5), (2, 2, 2, 2), {"lhs_dilation": (2, 1)}),
    ((4, 2, 5, 5), (4, 2, 2, 2), {"batch_group_count": 2}),
)


def convolutions(rng: np.random.Generator) -> Iterator[Sample]:
    """Both layouts; terms of up to 9 cancel, and are added up in another order."""
    image: Sequence[int]
    window: Sequence[int]
    for image, window, attributes in CONVOLUTIONS:
        for dtype in (DType.F32, DType.BF16, DType.F16):
            if dtype is not DType.F32 and rng.integers(3):
                continue
            for last in (False, True):
                left, right = tuple(image), tuple(window)
                specs: dict[str, Any] = {}
                if last and len(image) <= 4:
                    left = (image[0], *image[2:], image[1])
                    right = (*window[2:], window[1], window[0])
                    specs = NHWC if len(image) == 4 else NWC
                x, w = draw(rng, dtype, left), draw(rng, dtype, right)
                op = general(len(image), **specs, **attributes)
                terms = int(np.prod(window[1:]))
                near = {DType.F32: 1e-5, DType.BF16: 1e-2, DType.F16: 2e-3}[dtype]
                bound = Tolerance(atol=near * max(terms, 1) ** 0.5 * 4, rtol=near)
                yield Sample(op, (x, w), f"{dtype}{left}{right}", tolerance=bound)
    x, w = draw(rng, DType.F32, (1, 4, 6, 6)), draw(rng, DType.F32, (5, 4, 3, 3))
    x[0, 1, 2, 3], x[0, 2, 5, 5], w[0, 0, 0, 0] = np.nan, np.inf, -np.inf
    bound = Tolerance(atol=1e-4, rtol=1e-5)
    yield Sample(general(4, padding=((1, 1),) * 2), (x, w), "infinities", tolerance=bound)
    x, w = draw(rng, DType.F32, (1, 6, 6, 21)), draw(rng, DType.F32, (3, 3, 1, 21))
    x[0, 1, 2, 3], x[0, 5, 5, 20], w[0, 0, 0, 7], w[2, 1, 0, 19] = np.nan, np.inf, -np.inf, np.nan
    op = general(4, **NHWC, padding=((1, 1),) * 2, feature_group_count=21)
    yield Sample(op, (x, w), "infinities of channels", tolerance=bound)
    # At the corners a tap lies outside of the image, and its weight is not finite.
    for last in (False, True):
        shapes = ((1, 2, 2, 64), (3, 3, 64, 13)) if last else ((1, 64, 2, 2), (13, 64, 3, 3))
        x, w = (draw(rng, DType.F32, shape) for shape in shapes)
        w[(0, 0, 5, 3) if last else (3, 5, 0, 0)] = np.inf
        op = general(4, **(NHWC if last else {}), padding=((1, 1),) * 2)
        bound = Tolerance(atol=1e-3, rtol=1e-5)
        yield Sample(op, (x, w), f"infinities of taps, {last}", tolerance=bound)


WINDOWS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Any], ...] = (
    # Shape, window, strides, padding.
    ((1, 17, 19, 8), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))),
    ((2, 3, 30, 31), (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 0), (0, 1))),
    ((2, 3, 20, 33), (1, 1, 5, 2), (1, 1, 1, 3), ((0, 0), (0, 0), (2, 2), (1, 3))),
    ((1, 2, 9, 75), (1, 1, 3, 4), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (-1, 3))),
    ((1, 12, 13, 70), (1, 3, 3, 1), (1, 1, 1, 1), ((0, 0), (-1, 2), (2, -1), (0, 0))),
    ((3, 40, 65), (1, 1, 7), (1, 1, 1), ((0, 0), (0, 0), (3, 3))),
    ((40, 65), (5, 2), (3, 1), ((0, 0), (0, 0))),
    ((4, 9, 9, 5), (1, 9, 9, 1), (1, 9, 9, 1), ((0, 0), (0, 0), (0, 0), (0, 0))),
    ((2, 7, 8, 100), (1, 2, 3, 1), (1, 3, 4, 1), ((0, 0), (5, 5), (4, 4), (0, 0))),
    ((1, 4, 4, 2), (1, 3, 3, 1), (1, 1, 1, 1), ((0, 0), (0, 0), (0, 0), (0, 0))),  # too small
    ((9, 9, 9, 9), (3, 1, 1, 3), (1, 1, 1, 1), ((0, 0),) * 4),  # not neighbours
    ((64, 64, 2), (1, 1, 1), (1, 1, 1), ((0, 0),) * 3),
)


def _values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], kind: int) -> Any:
    """Any numbers; or few, so that many are equal; or among them NaN, infinities and zeros."""
    x = draw(rng, dtype, shape)
    if kind == 1:
        x = np.round(x)
    if kind == 2:
        extremes = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
        with np.errstate(all="ignore"):
            some = rng.choice(extremes, shape).astype(dtype.numpy)
        x = np.where(rng.integers(3, size=shape) == 0, some, x)
    return x


def windows(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, window, strides, padding in WINDOWS:
        for kind in WindowKind:
            dtypes = [DType.F32, (DType.BF16, DType.F16, DType.I32)[rng.integers(3)]]
            for dtype in dtypes:
                values = int(rng.integers(2)) if kind in (WindowKind.SUM, WindowKind.PROD) else 2
                x = _values(rng, dtype, shape, 0 if dtype is DType.I32 else values)
                ones = (1,) * len(shape)
                op = ReduceWindow(
                    kind=kind,
                    window_dimensions=window,
                    window_strides=strides,
                    padding=padding,
                    base_dilation=ones,
                    window_dilation=ones,
                )
                bound = Tolerance(atol=2e-4, rtol=2e-5) if dtype is DType.F32 else None
                yield Sample(op, (x,), f"{dtype}{shape}{kind.value}", tolerance=bound)


def selections(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, window, strides, padding in WINDOWS:
        for select in WindowSelect:
            for kind in range(3):
                op = SelectAndScatterAdd(
                    select=select, window_dimensions=window, window_strides=strides, padding=padding
                )
                x = _values(rng, DType.F32, shape, kind)
                counts = [
                    max(0, (n + low + high - k) // s + 1)
                    for n, k, s, (low, high) in zip(shape, window, strides, padding, strict=True)
                ]
                source = draw(rng, DType.F32, counts)
                bound = Tolerance(atol=1e-4, rtol=1e-5)
                yield Sample(op, (source, x), f"{shape}{select.value}", tolerance=bound)
    x = draw(rng, DType.BF16, (1, 20, 20, 8))
    ones = (1, 3, 3, 1)
    op = SelectAndScatterAdd(
        select=WindowSelect.GE, window_dimensions=ones, window_strides=ones, padding=((0, 0),) * 4
    )
    yield Sample(op, (draw(rng, DType.BF16, (1, 6, 6, 8)), x), "bf16")


TABLE = {
    ConvGeneralDilated: convolutions,
    ReduceWindow: windows,
    SelectAndScatterAdd: selections,
}
