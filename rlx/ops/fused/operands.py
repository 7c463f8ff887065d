"""What the fused ops share: checks of their operands, and a product that is not yet rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.op import Op
from rlx.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value

DTYPES = (DType.F32, DType.BF16, DType.F16, DType.F64)


def require_float(op: Op, label: str, name: str, x: TensorType) -> None:
    """Check that the first operand is one of the dtypes that fused ops take."""
    op.require(
        label,
        x.dtype in DTYPES,
        lambda: (
            f"{name} is required to be one of {', '.join(map(str, DTYPES))}; got {x}. Convert it."
        ),
        DTypeError,
    )


def require_dtype(op: Op, label: str, name: str, x: TensorType, **others: TensorType) -> None:
    """Check the dtype of the first operand, and that the others have it."""
    require_float(op, label, name, x)
    for other, found in others.items():
        op.require(
            label,
            found.dtype is x.dtype,
            f"{other} is required to have the dtype of {name}: {x}; got {found}. Convert it.",
            DTypeError,
        )


def require_shape(op: Op, label: str, name: str, found: TensorType, shape: Shape, why: str) -> None:
    """Check one operand's shape; ``why`` says where the shape comes from."""
    op.require_same_dims(
        label,
        found.shape,
        shape,
        lambda: (
            f"{name} is required to be {found.with_shape(shape)}, {why}; got {found}. Reshape it."
        ),
    )


def require_product(op: Op, label: str, x: TensorType, weight: TensorType) -> Shape:
    """Check x [..., K] and weight [K, N]; return the product's shape [..., N]."""
    op.require(
        label,
        x.rank >= 1 and weight.rank == 2,
        lambda: (
            f"x is required to be [..., K] and weight [K, N]; got x: {x}, weight: {weight}. "
            "Reshape them."
        ),
    )
    op.require_same_dims(
        label,
        x.shape[-1:],
        weight.shape[:1],
        lambda: (
            f"x and weight are required to have one K; got x: {x}, weight: {weight}. "
            "Transpose one of them."
        ),
    )
    return (*x.shape[:-1], weight.shape[1])


def product(x: Value, weight: Value) -> Value:
    """The product over the last axis of x, accumulated in f32 where x is narrower, not rounded."""
    from rlx.ops.dot import DotGeneral

    wide = x.dtype.compute
    return DotGeneral(
        lhs_contracting=(x.rank - 1,),
        rhs_contracting=(0,),
        preferred_element_type=None if wide is x.dtype else wide,
    )(x, weight)


def wide(x: Value) -> Value:
    """The value in the type that narrower floats compute in."""
    return x.convert(x.dtype.compute)


def along(vector: Value, axis: int, shape: Shape) -> Value:
    """A vector, widened, along one axis of a shape."""
    from rlx.ops.shape import BroadcastInDim

    return BroadcastInDim(shape=shape, broadcast_dimensions=(axis % len(shape),))(wide(vector))


def parts(x: Value, *sizes: Dim) -> tuple[Value, ...]:
    """Neighbouring parts of the last axis, of the given sizes."""
    from rlx.ops.shape import Split

    made: tuple[Value, ...] = Split(axis=x.rank - 1, sizes=sizes)(x)
    return made
