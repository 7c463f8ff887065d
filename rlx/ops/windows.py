"""Sliding windows: their number, and NumPy views of them (convolution and pooling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlx import dims
from rlx.errors import InconclusiveDimError

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.op import Op
    from rlx.types import Dim

Padding = Sequence[Sequence["Dim"]]


def dilated(size: Dim, dilation: int) -> Dim:
    """How long an axis is with ``dilation − 1`` gaps between its elements."""
    if dilation == 1:
        return size
    if isinstance(size, int):
        return (size - 1) * dilation + 1 if size else 0
    return (size - 1) * dilation + 1


def count(
    size: Dim, window: Dim, stride: int, padding: Sequence[Dim], dilation: int, window_dilation: int
) -> Dim:
    """How many windows fit on one axis.

    Args:
        size: elements of the axis.
        window: elements of the window.
        stride: distance between the starts of windows.
        padding: elements added before and after; negative ones take away.
        dilation: distance between neighbours on the axis once it is dilated.
        window_dilation: the same for the window.
    """
    low, high = padding
    room = dilated(size, dilation) + low + high - dilated(window, window_dilation)
    return dims.max_(0, dims.floordiv_(room, stride) + 1)


def check_windows(
    op: Op,
    rank: int,
    window: Sequence[Dim],
    *,
    strides: Sequence[int],
    padding: Padding,
    dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> None:
    """Check C1 (as many entries as axes) and C2 (window, strides and dilations are positive)."""
    lengths = [len(v) for v in (window, strides, padding, dilation, window_dilation)]
    op.require(
        "C1",
        lengths == [rank] * 5 and all(len(p) == 2 for p in padding),
        lambda: (
            f"window, strides, padding pairs, dilation and window dilation are required to have "
            f"{rank} entries each, one for each axis; got {lengths}. Give one for each axis."
        ),
    )
    op.require(
        "C2",
        all(n > 0 for v in (strides, dilation, window_dilation) for n in v)
        and all(_positive(op, n) for n in window),
        lambda: (
            f"window, strides and dilations are required to be positive; got window "
            f"{tuple(window)}, strides {tuple(strides)}, dilation {tuple(dilation)}, window "
            f"dilation {tuple(window_dilation)}. Use at least 1."
        ),
    )


def _positive(op: Op, size: Dim) -> bool:
    try:
        return dims.less(0, size)
    except InconclusiveDimError as error:
        raise InconclusiveDimError(
            f"{op.op_name} [C2]: the window is required to be positive. {error}", label="C2"
        ) from error


def spread(x: Array, padding: Padding, dilation: Sequence[int], fill: Any) -> Array:
    """Dilate and pad every axis with a fill value; negative padding takes elements away."""
    pairs = [(int(cast("int", low)), int(cast("int", high))) for low, high in padding]
    shape: list[int] = []
    inner: list[slice] = []
    kept: list[slice] = []
    for size, (low, high), step in zip(x.shape, pairs, dilation, strict=True):
        length = cast("int", dilated(size, step))
        before, after = max(low, 0), max(high, 0)
        shape.append(before + length + after)
        inner.append(slice(before, before + length, step))
        kept.append(slice(max(-low, 0), max(shape[-1] - max(-high, 0), 0)))
    result: Array = np.full(shape, fill, x.dtype)
    result[tuple(inner)] = x
    return result[tuple(kept)]


def view(
    x: Array, window: Sequence[int], strides: Sequence[int], window_dilation: Sequence[int]
) -> Array:
    """Every window of a padded array: ``[*windows, *window]``, a read-only view."""
    counts = [
        cast("int", count(size, n, stride, (0, 0), 1, step))
        for size, n, stride, step in zip(x.shape, window, strides, window_dilation, strict=True)
    ]
    steps = [s * n for s, n in zip(x.strides, strides, strict=True)]
    steps += [s * n for s, n in zip(x.strides, window_dilation, strict=True)]
    return np.lib.stride_tricks.as_strided(x, (*counts, *window), steps, writeable=False)
