"""What the gradient ops share: their inputs are those of a forward op, and upstream gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.errors import DTypeError, InconclusiveDimError, ShapeError

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.ir.op import Op
    from rlx.types import Dim, Shape, TensorType


def forward_types(op: Op, forward: Op, primals: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Check C1 (the forward op takes its inputs), and return what it gives.

    Raises:
        ShapeError, DTypeError, InconclusiveDimError: it does not, as it says.
    """
    try:
        return forward.infer_types(primals)
    except (ShapeError, DTypeError, InconclusiveDimError) as error:
        raise type(error)(
            f"{op.op_name} [C1]: inputs are required to be those of {forward.op_name!r}, "
            f"whose gradient it is; {error}",
            label="C1",
        ) from error


def check_gradient(
    op: Op, forward: Op, primals: Sequence[TensorType], **upstream: TensorType
) -> tuple[TensorType, ...]:
    """Check C1 (the forward op takes the primal inputs) and C2 (types of upstream gradients).

    Args:
        op: the gradient.
        forward: the op that it is the gradient of.
        primals: types of all inputs of the forward op.
        upstream: gradients by its results, by name, in order.

    Returns:
        The types of the forward op's results.
    """
    results = forward_types(op, forward, primals)
    for (name, found), wanted in zip(upstream.items(), results, strict=True):
        require_type(op, "C2", name, found, wanted, f"a result of {forward.op_name!r}")
    return results


def require_type(
    op: Op, label: str, name: str, found: TensorType, wanted: TensorType, what: str
) -> None:
    """Check that an input has a given type."""
    text = f"{name} is required to be {wanted}, as {what}; got {found}. Reshape or convert it."
    op.require(label, found.dtype is wanted.dtype, text, DTypeError)
    op.require_same_dims(label, found.shape, wanted.shape, text)


def size_at(x: TensorType, axis: int) -> Dim:
    """The size of an axis, or 1 where there is no such axis (the forward op says so)."""
    return x.shape[axis] if -x.rank <= axis < x.rank else 1


def sum_to(x: Value, shape: Shape) -> Value:
    """Sum over the axes along which an array of a shape was repeated to that of x."""
    extra = x.rank - len(shape)
    repeated = [i for i, d in enumerate(shape, extra) if d == 1 and x.shape[i] != 1]
    axes = [*range(extra), *repeated]
    return x.sum(axes).reshape(*shape) if axes else x


def others(rank: int, axis: int) -> tuple[int, ...]:
    """All axes but one."""
    return tuple(i for i in range(rank) if i != axis % rank)


def wide(x: Value) -> Value:
    """An array in the type in which it is computed."""
    return x.convert(x.dtype.compute)


def filled(number: float, x: Value) -> Value:
    """A constant of the type of x."""
    from rlx.ir.operators import broadcast_to, constant

    return broadcast_to(constant(number, x.dtype), x.shape)


def along(vector: Value, axis: int, shape: Shape) -> Value:
    """A vector of axis ``axis`` repeated along the others."""
    from rlx.ops.shape import BroadcastInDim

    return BroadcastInDim(shape=shape, broadcast_dimensions=(axis % len(shape),))(vector)
