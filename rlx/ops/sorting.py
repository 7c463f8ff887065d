"""Sorting, its permutation, and the largest elements."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, InconclusiveDimError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_axis
from rlx.ops.reduction import numbers
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


def sort_keys(x: Array) -> list[Array]:
    """What NumPy is to compare, most significant first: −0 is 0, and NaN comes last."""
    dtype = as_dtype(x.dtype)
    if dtype.is_complex:
        return [*sort_keys(np.real(x)), *sort_keys(np.imag(x))]
    return [numbers.widen(x)]


@define_op("sort")
class Sort(Op):
    """Sort along one axis; further operands follow the keys.

    y_k = operand_k permuted so that (y_0, …, y_{num_keys−1}) ascends along the axis

    Inputs:
        operands: arrays T_k[...] of one shape; the first num_keys are the keys.

    Attributes:
        axis: the axis to sort along.
        num_keys: how many operands are compared, the first one most significant.
        is_stable: whether equal keys keep their order.

    Result:
        The operands, permuted. −0 equals 0, NaN comes last, complex numbers compare by real and
        then imaginary part.

    Constraints:
        C1: there is an operand, and all have one shape.
        C2: axis is in range.
        C3: 1 ≤ num_keys ≤ the number of operands.

    Source: `jax.lax.sort`, StableHLO `sort`; RLX `Op::Sort`.
    """

    axis: int
    num_keys: int = 1
    is_stable: bool = True

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        self.require(
            "C1", len(operands) > 0, "an operand is required; got none. Pass what to sort."
        )
        first = operands[0]
        for other in operands[1:]:
            self.require_same_dims(
                "C1",
                other.shape,
                first.shape,
                lambda: (
                    f"operands are required to have one shape; "
                    f"got {', '.join(map(str, operands))}. Broadcast them."
                ),
            )
        require_axis(self, "C2", self.axis, first, "the first operand")
        self.require(
            "C3",
            1 <= self.num_keys <= len(operands),
            lambda: (
                f"num_keys is required to be from 1 to {len(operands)}; got {self.num_keys}. "
                "Pass as many operands."
            ),
        )
        return operands

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        keys = [key for x in operands[: self.num_keys] for key in sort_keys(x)]
        order = np.lexsort(keys[::-1], axis=self.axis)
        return tuple(np.take_along_axis(x, order, self.axis) for x in operands)


@define_op("argsort")
class ArgSort(Op):
    """The indices that sort along one axis; equal elements keep their order.

    x[y_0] ≤ x[y_1] ≤ …   (≥ when descending)

    Inputs:
        x: T[..., n, ...]

    Attributes:
        axis: the axis to sort along.
        descending: from the largest, NaN first; otherwise from the smallest, NaN last.
        index_dtype: dtype of the indices.

    Result:
        index_dtype[...] of x's shape.

    Constraints:
        C1: axis is in range for x.
        C2: index_dtype is an integer type.

    Source: RLX `Op::ArgSort`, `jax.numpy.argsort`.

    Example:
        >>> import numpy as np
        >>> ArgSort(axis=0, descending=True).evaluate(np.array([1, 3, 3, 2]))
        array([1, 2, 3, 0], dtype=int32)
    """

    axis: int
    descending: bool = False
    index_dtype: DType = DType.I32

    def infer(self, x: TensorType) -> TensorType:
        numbers.check_axis(self, self.axis, x)
        self.require(
            "C2",
            self.index_dtype.is_integer,
            lambda: (
                f"index_dtype is required to be an integer type; got {self.index_dtype}. Use i32."
            ),
            DTypeError,
        )
        return x.with_dtype(self.index_dtype)

    def evaluate(self, x: Array) -> Array:
        turned = np.flip(x, self.axis) if self.descending else x
        order = np.lexsort(sort_keys(turned)[::-1], axis=self.axis)
        if self.descending:
            order = x.shape[self.axis] - 1 - np.flip(order, self.axis)
        return order.astype(self.index_dtype.numpy)

    def decompose(self, x: Value) -> Value:
        from rlx.ops.shape import Iota, Reverse

        index: Value = Iota(dtype=self.index_dtype, shape=x.shape, axis=self.axis)()
        if not self.descending:
            return Sort(axis=self.axis)(x, index)[1]
        # The stable ascending order of the reversed array, reversed, is stable and descending.
        turn = Reverse(axes=(self.axis,))
        return turn(Sort(axis=self.axis)(turn(x), turn(index))[1])


@final
class TopNan(enum.Enum):
    """What a NaN counts as when the largest elements are chosen."""

    LARGEST = "largest"
    NEVER = "never"


@define_op("top_k")
class TopK(Op):
    """The k largest elements along the last axis, in descending order, and their indices.

    values = x[indices], x in the total order −NaN < −inf < … < −0 < 0 < … < inf < NaN

    Inputs:
        x: T[..., n]   integer or real float.

    Attributes:
        k: how many.
        nan: "largest" is JAX's meaning, the order above; with "never" NaN counts, and is
            returned, as the lowest number of T (−inf), so that it is chosen last.

    Result:
        values T[..., k] and indices i32[..., k]; of equal elements the first comes first.

    Constraints:
        C1: x has an axis, and 0 ≤ k ≤ n.
        C2: x holds integers or real floats.

    Source: `jax.lax.top_k`; RLX `Op::TopK`, whose meaning is that of "never".
    """

    k: int
    nan: TopNan = TopNan.NEVER

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        size = x.shape[-1] if x.rank else 0
        try:
            good = x.rank > 0 and self.k >= 0 and dims.less_equal(self.k, size)
        except InconclusiveDimError as error:
            raise InconclusiveDimError(
                f"top_k [C1]: k is required to be at most the last axis of x: {x}. {error}",
                label="C1",
            ) from error
        self.require(
            "C1",
            good,
            lambda: (
                f"k is required to be from 0 to the last axis of x: {x}; got {self.k}. "
                "Choose a smaller k."
            ),
        )
        good = x.dtype.is_integer or x.dtype.is_float
        numbers.check_kind(self, x, good, "integers or real floats")
        shape = (*x.shape[:-1], self.k)
        return x.with_shape(shape), TensorType(DType.I32, shape)

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        if self.nan is TopNan.NEVER and as_dtype(x.dtype).is_float:
            x = np.where(np.isnan(x), numbers.lowest(as_dtype(x.dtype)), x)
        # Descending and stable: ascending by the complement, which reverses any integer order.
        order = np.argsort(~_total_order(x), axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(x, order, -1), order.astype(np.int32)


def _total_order(x: Array) -> Array:
    """Integers that are ordered as the elements are in total order."""
    wide: Any = numbers.widen(x)
    if wide.dtype.kind != "f":
        return np.asarray(wide)
    integer = np.int64 if wide.itemsize == 8 else np.int32
    bits: Array = wide.view(integer)
    return np.asarray(np.where(bits < 0, bits ^ np.iinfo(integer).max, bits))


@define_op("approx_top_k")
class ApproxTopK(Op):
    """Most of the k largest (or smallest) elements along an axis, in order, and their indices.

    values = x[indices]; here, on the CPU and on GPUs these are the very largest ones

    Inputs:
        x: T[..., n, ...]   real float.

    Attributes:
        k: how many.
        axis: the axis along which they are chosen.
        largest: the largest ones, descending; otherwise the smallest ones, ascending.
        recall: which part of the true ones a device has to find on average; 0 < recall ≤ 1.
        input_size: the axis' size in all parts of an array that is searched part by part; None
            means n.
        size: how many candidates come out where another step is to choose k among them; None
            means k, chosen.

    Result:
        values T[..., k, ...] and indices i32[..., k, ...]; with size, that many.

    Constraints:
        C1: axis is in range, and 0 < k ≤ n, and size is from k to n.
        C2: x holds real floats.
        C3: 0 < recall ≤ 1.

    Numerics: which of equal elements, and where NaN comes, is the device's choice. A TPU looks for
        them in its matrix unit's time and finds a part of at least `recall`.
    Source: `jax.lax.approx_max_k`, `jax.lax.approx_min_k`; Chern et al. 2022, arXiv:2206.14286.
    """

    k: int
    axis: int
    largest: bool = True
    recall: float = 0.95
    input_size: int | None = None
    size: int | None = None

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        numbers.check_axis(self, self.axis, x)
        most = x.shape[self.axis]
        count = self.k if self.size is None else self.size
        try:
            good = 0 < self.k <= count and dims.less_equal(count, most)
        except InconclusiveDimError as error:
            raise InconclusiveDimError(
                f"approx_top_k [C1]: k is required to be at most axis {self.axis} of x: {x}. "
                f"{error}",
                label="C1",
            ) from error
        self.require(
            "C1",
            good,
            lambda: (
                f"k is required to be from 1 to the size of axis {self.axis} of x: {x}, and size "
                f"from k to that; got {self.k} and {self.size}. Choose a smaller k."
            ),
        )
        numbers.check_kind(self, x, x.dtype.is_float, "real floats")
        self.require(
            "C3",
            0 < self.recall <= 1,
            lambda: f"recall is required to be above 0 and at most 1; got {self.recall}. Use 0.95.",
        )
        shape = (*x.shape[: self.axis], count, *x.shape[self.axis + 1 :])
        return x.with_shape(shape), TensorType(DType.I32, shape)

    def decompose(self, x: Value) -> tuple[Value, Value]:
        from rlx.ops.arithmetic import Neg
        from rlx.ops.shape import Iota, Slice

        index: Value = Iota(dtype=DType.I32, shape=x.shape, axis=self.axis)()
        keys = Neg()(x) if self.largest else x
        ordered = Sort(axis=self.axis)(keys, index)
        limits = list(x.shape)
        limits[self.axis] = self.k if self.size is None else self.size
        first = Slice(
            start_indices=(0,) * x.rank, limit_indices=tuple(limits), strides=(1,) * x.rank
        )
        values, indices = first(ordered[0]), first(ordered[1])
        return (Neg()(values) if self.largest else values), indices
