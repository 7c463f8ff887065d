"""What the norms share: checks by label, and statistics that are f32 for narrower floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.errors import DTypeError
from rlx.ir.op import Op
from rlx.ops.axes import require_axis
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


def one_axis(op: Op, axis: int, x: TensorType, dtype_label: str = "C2") -> TensorType:
    """Check C1 (axis in range) and the label for a floating x; return its type."""
    require_axis(op, "C1", axis, x, negative=True)
    check_float(op, x, dtype_label)
    return x


def check_float(op: Op, x: TensorType, label: str) -> None:
    """Check that x is floating."""
    op.require(
        label,
        x.dtype.is_float,
        lambda: f"x is required to be floating; got {x}. Convert it.",
        DTypeError,
    )


def check_stretch(op: Op, label: str, x: TensorType, name: str, found: TensorType) -> None:
    """Check that an input broadcasts to the shape of x, which stays as it is."""
    text = f"{name} is required to broadcast to x: {x}; got {found}. Reshape it."
    op.require(label, found.rank <= x.rank, text)
    aligned = x.shape[x.rank - found.rank :]
    wanted = tuple(1 if d == 1 else w for d, w in zip(found.shape, aligned, strict=True))
    op.require_same_dims(label, found.shape, wanted, text)


def check_eps(op: Op, eps: float) -> None:
    """Check C4."""
    op.require(
        "C4",
        math.isfinite(eps) and eps > 0,
        f"eps is required to be finite and > 0; got {eps}. Use a small positive number.",
    )


def check_dtype(op: Op, x: TensorType, name: str, found: TensorType) -> None:
    """Check C3: an input has the dtype of x."""
    op.require(
        "C3",
        found.dtype is x.dtype,
        f"{name} is required to have the dtype of x: {x}; got {found}. Convert one of them.",
        DTypeError,
    )


def affine_norm(op: Op, axis: int, eps: float, x: TensorType, **vectors: TensorType) -> TensorType:
    """Check C1 to C4 of a norm with vectors along an axis; return the type of x."""
    one_axis(op, axis, x, dtype_label="C3")
    size = x.shape[axis]
    wanted = TensorType(x.dtype, (size,))
    for name, found in vectors.items():
        check_dtype(op, x, name, found)
        op.require_same_dims(
            "C2",
            found.shape,
            wanted.shape,
            f"{name} is required to be {wanted}, axis {axis % x.rank} of x: {x}; "
            f"got {found}. Pass one number for each element of that axis.",
        )
    check_eps(op, eps)
    return x


def wide(x: Value) -> Value:
    """The value in the type its statistics are computed in."""
    return x.convert(x.dtype.compute)


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x)."""
    from rlx.ops.transcendental import Rsqrt

    return Rsqrt()(x)


def standardised(wide: Value, axes: Sequence[int], eps: float) -> Value:
    """Mean 0 and biased variance 1 over axes."""
    centred = wide - wide.mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes, keepdims=True)
    return centred * rsqrt(variance + eps)


def affine(normal: Value, axis: int, gamma: Value, beta: Value) -> Value:
    """Gain and offset along an axis."""
    shape: Shape = normal.shape
    gain = along(wide(gamma), axis, shape)
    return normal * gain + along(wide(beta), axis, shape)


def along(vector: Value, axis: int, shape: Shape) -> Value:
    """A vector broadcast along an axis of a shape."""
    from rlx.ops.shape import BroadcastInDim

    return BroadcastInDim(shape=shape, broadcast_dimensions=(axis % len(shape),))(vector)
