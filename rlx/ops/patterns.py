"""Checks of families whose inputs share named axes: ``x[b, s, h]``, ``a[h, n]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlx.errors import DTypeError

if TYPE_CHECKING:
    from rlx.ir.op import Op
    from rlx.types import Dim, TensorType


def bind_axes(
    op: Op, label: str, known: Mapping[str, Dim], **inputs: tuple[TensorType, str]
) -> dict[str, Dim]:
    """Check shapes against named axes, and return the size of each name.

    Args:
        op: the op that requires it.
        label: its constraint.
        known: sizes that attributes fix.
        inputs: by name, the type and its axes, as ``"b s h"``; a name gets its size where it
            first appears.

    Raises:
        ShapeError: a rank or a size differs.
        InconclusiveDimError: symbolic sizes may or may not be equal.
    """
    sizes = dict(known)
    for name, (found, pattern) in inputs.items():
        axes = pattern.split()
        message = _message(name, found, axes, dict(sizes))
        op.require(label, found.rank == len(axes), message)
        for axis, size in zip(axes, found.shape, strict=True):
            sizes.setdefault(axis, size)
        op.require_same_dims(label, found.shape, tuple(sizes[a] for a in axes), message)
    return sizes


def require_one_float(op: Op, label: str, **inputs: TensorType) -> None:
    """Check that all inputs have one floating dtype.

    Raises:
        DTypeError: they differ, or are not floating.
    """
    first = next(iter(inputs.values()))
    op.require(
        label,
        first.dtype.is_float and all(t.dtype is first.dtype for t in inputs.values()),
        lambda: (
            f"{', '.join(inputs)} are required to have one floating dtype; got "
            f"{', '.join(f'{n}: {t}' for n, t in inputs.items())}. Convert them."
            if len(inputs) > 1
            else f"{next(iter(inputs))} is required to be floating; got {first}. Convert it."
        ),
        DTypeError,
    )


def require_positive(op: Op, label: str, **sizes: int) -> None:
    """Check that attributes are ≥ 1.

    Raises:
        ShapeError: one is not.
    """
    for name, size in sizes.items():
        op.require(
            label,
            size >= 1,
            f"{name} is required to be ≥ 1; got {size}. Use a positive number.",
        )


def _message(name: str, found: TensorType, axes: list[str], sizes: Mapping[str, Dim]) -> str:
    fixed = ", ".join(f"{a} = {sizes[a]}" for a in axes if a in sizes)
    return (
        f"{name} is required to have the axes [{', '.join(axes)}]"
        + (f" with {fixed}" if fixed else "")
        + f"; got {found}. Reshape it, or pass the array that fits."
    )
