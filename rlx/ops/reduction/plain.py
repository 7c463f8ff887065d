"""Sum, product, extremes and bitwise reductions over axes."""

from __future__ import annotations

import numpy as np

from rlx.dtypes import Kind, as_dtype
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.reduction import numbers
from rlx.types import TensorType


def _without(x: TensorType, axes: tuple[int, ...]) -> TensorType:
    return x.with_shape(d for i, d in enumerate(x.shape) if i not in axes)


def _number_result(op: Op, x: TensorType, axes: tuple[int, ...]) -> TensorType:
    numbers.check_axes(op, axes, x)
    numbers.check_kind(op, x, numbers.is_number(x.dtype), "integers, floats or complex numbers")
    return _without(x, axes)


def _ordered_result(op: Op, x: TensorType, axes: tuple[int, ...]) -> TensorType:
    numbers.check_axes(op, axes, x)
    numbers.check_kind(op, x, numbers.is_ordered(x.dtype), "bool, integers or real floats")
    return _without(x, axes)


def _bits_result(op: Op, x: TensorType, axes: tuple[int, ...]) -> TensorType:
    numbers.check_axes(op, axes, x)
    good = x.dtype.is_integer or x.dtype.kind is Kind.BOOL
    numbers.check_kind(op, x, good, "bool or integers")
    return _without(x, axes)


@define_op("reduce_sum")
class ReduceSum(Op):
    """Sum over axes.

    y = Σ_axes x

    Inputs:
        x: number[...]

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; 0 where nothing is summed. Integers wrap around.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds integers, floats or complex numbers.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: `jax.lax.reduce_sum`, StableHLO `reduce`; RLX `Op::Reduce`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return _number_result(self, x, self.axes)

    def evaluate(self, x: Array) -> Array:
        wide = numbers.widen(x)
        with np.errstate(all="ignore"):
            return numbers.narrow(np.sum(wide, self.axes, wide.dtype), as_dtype(x.dtype))


@define_op("reduce_prod")
class ReduceProd(Op):
    """Product over axes.

    y = Π_axes x

    Inputs:
        x: number[...]

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; 1 where nothing is multiplied. Integers wrap around.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds integers, floats or complex numbers.

    Numerics: floats narrower than f32 accumulate in f32 and round once.
    Source: `jax.lax.reduce_prod`; RLX `Op::Reduce`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return _number_result(self, x, self.axes)

    def evaluate(self, x: Array) -> Array:
        wide = numbers.widen(x)
        with np.errstate(all="ignore"):
            return numbers.narrow(np.prod(wide, self.axes, wide.dtype), as_dtype(x.dtype))


@define_op("reduce_max")
class ReduceMax(Op):
    """Maximum over axes; NaN wins, −0 < +0.

    y = max_axes x

    Inputs:
        x: T[...]   bool, integer or real float.

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; the least number of T (−inf, if T has it) where nothing is compared.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds bool, integers or real floats.

    Source: `jax.lax.reduce_max`; RLX `Op::Reduce`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return _ordered_result(self, x, self.axes)

    def evaluate(self, x: Array) -> Array:
        dtype = as_dtype(x.dtype)
        wide = numbers.widen(x)
        found = numbers.fold(numbers.maximum, wide, self.axes, numbers.lowest(dtype))
        return numbers.narrow(found, dtype)


@define_op("reduce_min")
class ReduceMin(Op):
    """Minimum over axes; NaN wins, −0 < +0.

    y = min_axes x

    Inputs:
        x: T[...]   bool, integer or real float.

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; the greatest number of T (inf, if T has it) where nothing is compared.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds bool, integers or real floats.

    Source: `jax.lax.reduce_min`; RLX `Op::Reduce`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return _ordered_result(self, x, self.axes)

    def evaluate(self, x: Array) -> Array:
        dtype = as_dtype(x.dtype)
        wide = numbers.widen(x)
        found = numbers.fold(numbers.minimum, wide, self.axes, numbers.highest(dtype))
        return numbers.narrow(found, dtype)


@define_op("reduce_and")
class ReduceAnd(Op):
    """Bitwise and over axes; logical for bool.

    y = ∧_axes x

    Inputs:
        x: T[...]   bool or integer.

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; all bits set where nothing is combined.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds bool or integers.

    Source: `jax.lax.reduce_and`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return _bits_result(self, x, self.axes)

    def evaluate(self, x: Array) -> Array:
        wide = numbers.widen(x)
        ones = np.invert(np.zeros((), wide.dtype))
        found = numbers.fold(np.bitwise_and, wide, self.axes, ones)
        return numbers.narrow(found, as_dtype(x.dtype))


@define_op("reduce_or")
class ReduceOr(Op):
    """Bitwise or over axes; logical for bool.

    y = ∨_axes x

    Inputs:
        x: T[...]   bool or integer.

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; 0 where nothing is combined.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds bool or integers.

    Source: `jax.lax.reduce_or`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return _bits_result(self, x, self.axes)

    def evaluate(self, x: Array) -> Array:
        found = numbers.fold(np.bitwise_or, numbers.widen(x), self.axes, 0)
        return numbers.narrow(found, as_dtype(x.dtype))


@define_op("reduce_xor")
class ReduceXor(Op):
    """Bitwise exclusive or over axes; parity for bool.

    y = ⊕_axes x

    Inputs:
        x: T[...]   bool or integer.

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; 0 where nothing is combined.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds bool or integers.

    Source: `jax.lax.reduce_xor`.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return _bits_result(self, x, self.axes)

    def evaluate(self, x: Array) -> Array:
        found = numbers.fold(np.bitwise_xor, numbers.widen(x), self.axes, 0)
        return numbers.narrow(found, as_dtype(x.dtype))
