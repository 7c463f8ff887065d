"""Shared checks of ops that speak of axes and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx import dims
from rlx.errors import InconclusiveDimError

if TYPE_CHECKING:
    from rlx.ir.op import Op
    from rlx.types import Dim


def require_axis(op: Op, label: str, axis: int, rank: int, what: str = "axis") -> None:
    """Require 0 ≤ axis < rank."""
    op.require(
        label,
        0 <= axis < rank,
        lambda: (
            f"{what} is required to be in [0, {rank}); got {axis}. "
            "Axes inside a graph are non-negative."
        ),
    )


def require_axes(
    op: Op, label: str, axes: Sequence[int], rank: int, what: str = "axes", *, sort: bool = False
) -> None:
    """Require distinct axes in [0, rank); with ``sort``, increasing ones."""
    good = not axes or (min(axes) >= 0 and max(axes) < rank and len(set(axes)) == len(axes))
    if sort:
        good = good and list(axes) == sorted(axes)
    if not good:
        op.require(
            label,
            False,
            f"{what} are required to be distinct{' and increasing' if sort else ''}, "
            f"in [0, {rank}); got {tuple(axes)}. Axes inside a graph are non-negative.",
        )


def require_at_most(op: Op, label: str, low: Dim, high: Dim, message: str) -> None:
    """Require low ≤ high for every binding.

    Raises:
        ShapeError: low > high.
        InconclusiveDimError: it depends on the binding; carries the label.
    """
    try:
        fits = dims.less_equal(low, high)
    except InconclusiveDimError as error:
        raise InconclusiveDimError(
            f"{op.op_name} [{label}]: {message} {error}", label=label
        ) from error
    op.require(label, fits, message)
