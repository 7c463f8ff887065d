"""What the ops on matrices share: checks of the last two axes, and loops over the leading ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import dims
from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, InconclusiveDimError
from rlx.ir.attributes import Array
from rlx.ir.op import Op
from rlx.types import Dim, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value

FACTORABLE = frozenset({DType.F32, DType.F64, DType.C64, DType.C128})
"""What factorisations exist for."""

SOLVABLE = FACTORABLE | {DType.F16, DType.BF16}
"""What substitution exists for."""


def check_matrix(op: Op, label: str, name: str, x: TensorType, *, square: bool = False) -> None:
    """Raise ShapeError unless x ends in a matrix, a square one if asked."""
    shape = "[..., n, n]" if square else "[..., m, n]"

    def message() -> str:
        return f"{name} is required to be {shape}; got {x}. Reshape it."

    op.require(label, x.rank >= 2, message)
    if square:
        op.require_same_dims(label, x.shape[-2:-1], x.shape[-1:], message)


def check_dtype(
    op: Op, label: str, name: str, x: TensorType, allowed: frozenset[DType] = FACTORABLE
) -> None:
    """Raise DTypeError unless x has a dtype that the op computes in."""
    op.require(
        label,
        x.dtype in allowed,
        lambda: (
            f"{name} is required to be {', '.join(sorted(d.label for d in allowed))}; got {x}. "
            "Convert it."
        ),
        DTypeError,
    )


def check_same_dtype(op: Op, label: str, name: str, x: TensorType, wanted: TensorType) -> None:
    """Raise DTypeError unless two operands have one dtype."""
    op.require(
        label,
        x.dtype is wanted.dtype,
        lambda: f"{name} is required to be {wanted.dtype}; got {x}. Convert it.",
        DTypeError,
    )


def at_most(op: Op, label: str, low: Dim, high: Dim, message: str) -> None:
    """Raise ShapeError unless ``low`` ≤ ``high`` for every binding.

    Raises:
        InconclusiveDimError: that depends on the binding; carries the label.
    """
    try:
        good = dims.less_equal(low, high)
    except InconclusiveDimError as error:
        raise InconclusiveDimError(
            f"{op.op_name} [{label}]: {message} {error}", label=label
        ) from error
    op.require(label, good, message)


def over_batches(
    op: Op, function: Callable[..., Sequence[Any]], ranks: Sequence[int], *arrays: Array
) -> tuple[Array, ...]:
    """Apply a function of single matrices or vectors along leading axes.

    Args:
        op: gives the result types.
        function: takes one piece of each array, and returns one piece of each result; it is not
            called for pieces without elements, whose results are zero.
        ranks: of the pieces, one per array.
        arrays: all with the same leading axes.
    """
    types = op.infer_types([TensorType(as_dtype(a.dtype), a.shape) for a in arrays])
    results = [np.zeros(static_shape(t), t.dtype.numpy) for t in types]
    batch = arrays[0].shape[: arrays[0].ndim - ranks[0]]
    for place in np.ndindex(*batch):
        pieces = [a[place] for a in arrays]
        for result, made in zip(results, function(*pieces), strict=True):
            result[place] = made
    return tuple(results)


def static_shape(type_: TensorType) -> tuple[int, ...]:
    """The sizes of a static type."""
    return tuple(n for n in type_.shape if isinstance(n, int))


def triangle(x: Value, *, lower: bool) -> Value:
    """The lower or upper triangle of matrices, diagonal included; zeros elsewhere."""
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.compare import Compare, Direction, Select
    from rlx.ops.shape import Iota

    rows: Value = Iota(dtype=DType.I32, shape=x.shape, axis=x.rank - 2)()
    columns: Value = Iota(dtype=DType.I32, shape=x.shape, axis=x.rank - 1)()
    inside = Compare(direction=Direction.GE if lower else Direction.LE)(rows, columns)
    return Select()(inside, x, broadcast_to(constant(0, x.dtype), x.shape))


def identity(type_: TensorType) -> Value:
    """Matrices with ones on the diagonal."""
    from rlx.ops.compare import Compare, Direction
    from rlx.ops.shape import Iota

    rows: Value = Iota(dtype=DType.I32, shape=type_.shape, axis=type_.rank - 2)()
    columns: Value = Iota(dtype=DType.I32, shape=type_.shape, axis=type_.rank - 1)()
    return Compare(direction=Direction.EQ)(rows, columns).convert(type_.dtype)
