"""Where the extremes are: argmax and argmin."""

from __future__ import annotations

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.reduction import numbers
from rlx.types import TensorType


def _result(op: Op, x: TensorType, axis: int, index_dtype: DType) -> TensorType:
    numbers.check_axis(op, axis, x)
    numbers.check_kind(op, x, numbers.is_ordered(x.dtype), "bool, integers or real floats")
    op.require(
        "C3",
        index_dtype.is_integer,
        lambda: f"index_dtype is required to be an integer type; got {index_dtype}. Use i32.",
        DTypeError,
    )
    try:
        empty = dims.equal(x.shape[axis], 0)
    except InconclusiveDimError as error:
        raise InconclusiveDimError(f"{op.op_name} [C4]: {error}", label="C4") from error
    op.require(
        "C4",
        not empty,
        lambda: (
            f"the axis is required to have an element; got x: {x}, axis {axis}. "
            "Guard the empty case before."
        ),
    )
    shape = (d for i, d in enumerate(x.shape) if i != axis)
    return TensorType(index_dtype, tuple(shape))


@define_op("argmax")
class Argmax(Op):
    """Index of the first maximum along an axis; the first NaN wins.

    y = min {i : x_i = max x}

    Inputs:
        x: T[..., n, ...]   bool, integer or real float.

    Attributes:
        axis: the axis to remove.
        index_dtype: dtype of the indices.

    Result:
        index_dtype[...], x's shape without the axis.

    Constraints:
        C1: axis is in range for x.
        C2: x holds bool, integers or real floats.
        C3: index_dtype is an integer type.
        C4: the axis has at least one element.

    Source: `jax.lax.argmax`; RLX `Op::ArgMax`.
    """

    axis: int
    index_dtype: DType = DType.I32

    def infer(self, x: TensorType) -> TensorType:
        return _result(self, x, self.axis, self.index_dtype)

    def evaluate(self, x: Array) -> Array:
        found = np.argmax(numbers.widen(x), self.axis)
        return np.asarray(found, self.index_dtype.numpy)


@define_op("argmin")
class Argmin(Op):
    """Index of the first minimum along an axis; the first NaN wins.

    y = min {i : x_i = min x}

    Inputs:
        x: T[..., n, ...]   bool, integer or real float.

    Attributes:
        axis: the axis to remove.
        index_dtype: dtype of the indices.

    Result:
        index_dtype[...], x's shape without the axis.

    Constraints:
        C1: axis is in range for x.
        C2: x holds bool, integers or real floats.
        C3: index_dtype is an integer type.
        C4: the axis has at least one element.

    Source: `jax.lax.argmin`; RLX `Op::ArgMin`.
    """

    axis: int
    index_dtype: DType = DType.I32

    def infer(self, x: TensorType) -> TensorType:
        return _result(self, x, self.axis, self.index_dtype)

    def evaluate(self, x: Array) -> Array:
        found = np.argmin(numbers.widen(x), self.axis)
        return np.asarray(found, self.index_dtype.numpy)
