"""What gathers and scatters share: modes, checks of axes, and where an index vector points."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from rlx.errors import DTypeError

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.op import Op
    from rlx.types import TensorType


@final
class IndexMode(enum.Enum):
    """What happens where an index points outside.

    ``CLIP`` moves the window inside. ``FILL_OR_DROP`` reads a fill value, and writes nothing.
    ``PROMISE_IN_BOUNDS`` is the caller's word that it does not happen; XLA's CPU then clips
    reads and drops writes, and so does NumPy here.
    """

    CLIP = "clip"
    FILL_OR_DROP = "fill_or_drop"
    PROMISE_IN_BOUNDS = "promise_in_bounds"


def require_integers(op: Op, label: str, indices: TensorType, name: str = "indices") -> None:
    """Require an integer dtype."""
    op.require(
        label,
        indices.dtype.is_integer,
        lambda: f"{name} are required to be integers; got {indices}. Convert them to i32.",
        DTypeError,
    )


def require_one_dtype(op: Op, label: str, x: TensorType, other: TensorType, name: str) -> None:
    """Require the dtype of x."""
    op.require(
        label,
        other.dtype is x.dtype,
        lambda: f"one dtype is required, that of x: {x}; got {name}: {other}. Convert it.",
        DTypeError,
    )


def require_components(op: Op, label: str, indices: TensorType, axes: Sequence[int]) -> None:
    """Require that the last axis of indices holds one component for each of ``axes``."""
    op.require(
        label,
        indices.rank >= 1 and indices.shape[-1] == len(axes),
        lambda: (
            f"the last axis of indices is required to have {len(axes)} components, one for each "
            f"axis in {tuple(axes)}; got indices: {indices}. Reshape them."
        ),
    )


def whole_numbers(indices: Array) -> Array:
    """Indices as i64; those beyond its range become the largest i64."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    return indices.astype(np.int64)


def window_starts(
    indices: Array,
    sizes: Sequence[int],
    windows: Sequence[int],
    mapped: Sequence[int],
    batching: Sequence[tuple[int, int]],
    *,
    clip: bool,
) -> tuple[list[Array], Array]:
    """Where each index vector puts its window.

    Args:
        indices: ``[*batch, k]``.
        sizes: dims of the operand.
        windows: dims of the window, one for each axis of the operand.
        mapped: the operand's axis that each of the k components is for.
        batching: pairs of an operand's axis and the batch axis it runs along with.
        clip: whether a window is moved inside.

    Returns:
        The first element along each axis of the operand, and whether the window is inside; arrays
        that broadcast to ``[*batch]``.
    """
    batch = indices.shape[:-1]
    starts: list[Array] = [np.zeros((1,) * len(batch), np.int64) for _ in sizes]
    inside = np.ones(batch, np.bool_)
    numbers = whole_numbers(indices)
    for component, axis in enumerate(mapped):
        start = numbers[..., component]
        last = sizes[axis] - windows[axis]
        if clip:
            start = np.maximum(np.minimum(start, last), 0)
        inside &= (start >= 0) & (start <= last)
        starts[axis] = start
    for axis, batch_axis in batching:
        column = [1] * len(batch)
        column[batch_axis] = -1
        starts[axis] = np.arange(int(batch[batch_axis])).reshape(column)
    return starts, inside


def window_positions(starts: Sequence[Array], windows: Sequence[int]) -> tuple[Array, ...]:
    """Index arrays, one per axis of the operand, that broadcast to ``[*batch, *windows]``."""
    rank = len(windows)
    found: list[Array] = []
    for axis, (start, size) in enumerate(zip(starts, windows, strict=True)):
        column = [1] * rank
        column[axis] = size
        found.append(start.reshape(*start.shape, *[1] * rank) + np.arange(size).reshape(column))
    return tuple(found)
