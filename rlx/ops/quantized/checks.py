"""Shared checks of the quantised ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.dtypes import DType
from rlx.errors import DTypeError, ParseError, ShapeError
from rlx.quant import shapes
from rlx.quant.minifloat import ScaledFormat
from rlx.quant.scaled import ScaleLayout
from rlx.quant.schemes import QuantScheme

if TYPE_CHECKING:
    from rlx.ir.op import Op
    from rlx.types import Shape, TensorType


def require_dtype(op: Op, label: str, name: str, found: TensorType, wanted: DType) -> None:
    """Require one dtype of an input."""
    op.require(
        label,
        found.dtype is wanted,
        lambda: f"{name} is required to be {wanted}; got {found}. Convert it.",
        DTypeError,
    )


def require_float(op: Op, label: str, name: str, found: TensorType) -> None:
    """Require a floating input."""
    op.require(
        label,
        found.dtype.is_float,
        lambda: f"{name} is required to be floating; got {found}. Convert it.",
        DTypeError,
    )


def require_rank(op: Op, label: str, name: str, found: TensorType, rank: int, axes: str) -> None:
    """Require a number of axes."""
    op.require(
        label,
        found.rank == rank,
        lambda: f"{name} is required to have the axes {axes}; got {found}. Reshape it.",
    )


def require_shape(op: Op, label: str, name: str, found: TensorType, wanted: Shape) -> None:
    """Require a shape of an input."""
    op.require_same_dims(
        label,
        found.shape,
        wanted,
        lambda: (
            f"{name} is required to have the shape [{', '.join(map(str, wanted))}]; got {found}. "
            "Reshape it."
        ),
    )


def scheme_of(op: Op, label: str, text: str) -> QuantScheme:
    """The scheme that an attribute names."""
    try:
        return QuantScheme.parse(text)
    except ParseError as error:
        op.require(label, False, f"scheme is required to name a scheme; {error}")
        raise


def format_of(op: Op, label: str, text: str) -> ScaledFormat:
    """The small float that an attribute names."""
    try:
        return ScaledFormat.parse(text)
    except ParseError as error:
        op.require(label, False, f"a format is required to be named; {error}.")
        raise


def layout_of(op: Op, label: str, text: str) -> ScaleLayout:
    """The scale layout that an attribute names."""
    try:
        return ScaleLayout.parse(text)
    except ParseError as error:
        op.require(label, False, f"a layout is required to be named; {error}.")
        raise


def packed_matrix(
    op: Op,
    label: str,
    scheme: QuantScheme,
    weight: TensorType,
    scale: TensorType | None,
    zero: TensorType | None,
    size: int = 0,
) -> tuple[int, int]:
    """Check the tensors of a packed weight; return (K, N), or (N, K) for schemes by rows."""
    try:
        return shapes.matrix(scheme, weight, scale, zero, size)
    except (ShapeError, DTypeError) as error:
        op.require(label, False, str(error), type(error))
        raise
