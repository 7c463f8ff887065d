"""Shared checks of ops that speak of axes and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx import dims
from rlx.errors import InconclusiveDimError
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.op import Op
    from rlx.types import Dim, Shape


def require_axis(
    op: Op,
    label: str,
    axis: int,
    x: TensorType | Shape | int,
    name: str = "x",
    what: str = "axis",
    *,
    negative: bool = False,
) -> None:
    """Require an axis of a type, a shape or a rank; if ``negative`` it may count from the end."""
    rank = _rank(x)
    op.require(
        label,
        (-rank if negative else 0) <= axis < rank,
        lambda: (
            f"{what} is required to be {_in_range(name, x, negative)}; got {axis}. Choose another "
            "axis."
        ),
    )


def require_axes(
    op: Op,
    label: str,
    axes: Sequence[int],
    x: TensorType | Shape | int,
    name: str = "x",
    what: str = "axes",
    *,
    sort: bool = False,
) -> None:
    """Require distinct axes of a type, a shape or a rank; with ``sort``, increasing ones."""
    rank = _rank(x)
    good = not axes or (min(axes) >= 0 and max(axes) < rank and len(set(axes)) == len(axes))
    if sort:
        good = good and list(axes) == sorted(axes)
    if not good:
        op.require(
            label,
            False,
            f"{what} are required to be distinct{', increasing' if sort else ''} and "
            f"{_in_range(name, x)}; got {tuple(axes)}. Choose other axes.",
        )


def _rank(x: TensorType | Shape | int) -> int:
    return x if isinstance(x, int) else x.rank if isinstance(x, TensorType) else len(x)


def _in_range(name: str, x: TensorType | Shape | int, negative: bool = False) -> str:
    """In range for x: f32[2, 3], 0 ≤ axis < 2."""
    rank, text = _rank(x), f"{name}: {x}"
    if isinstance(x, int):
        text = f"{name} of rank {x}"
    elif not isinstance(x, TensorType):
        text = f"{name} [{', '.join(map(str, x))}]"
    return f"in range for {text}, {f'−{rank}' if negative and rank else 0} ≤ axis < {rank}"


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
