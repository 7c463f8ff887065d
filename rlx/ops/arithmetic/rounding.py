"""Rounding to integers, and the test for finite numbers."""

from __future__ import annotations

import enum

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.arithmetic import numbers
from rlx.ops.elementwise import FLOATING, compute1, require_kind, unary_result
from rlx.types import TensorType


class Ties(enum.Enum):
    """Where a number half way between two integers goes."""

    EVEN = "even"
    AWAY = "away"


@define_op("floor")
class Floor(Op):
    """The largest integer not above x.

    y = floor(x)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: StableHLO `floor`, `jax.lax.floor`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return compute1(np.floor, x)


@define_op("ceil")
class Ceil(Op):
    """The least integer not below x.

    y = ceil(x)

    Inputs:
        x: T[...]   float.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: StableHLO `ceil`, `jax.lax.ceil`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return compute1(np.ceil, x)


@define_op("round")
class Round(Op):
    """The nearest integer.

    y = round(x)

    Inputs:
        x: T[...]   float.

    Attributes:
        ties: half way goes to the even neighbour (default) or away from zero.

    Result:
        Same type as x.

    Constraints:
        C1: x is float.

    Source: StableHLO `round_nearest_even` and `round_nearest_afz`, `jax.lax.round`.
    """

    ties: Ties = Ties.EVEN

    def infer(self, x: TensorType) -> TensorType:
        return unary_result(self, x, FLOATING)

    def evaluate(self, x: Array) -> Array:
        return compute1(np.rint if self.ties is Ties.EVEN else numbers.round_away, x)


@define_op("is_finite")
class IsFinite(Op):
    """Whether x is neither infinite nor NaN.

    y = |x| < ∞

    Inputs:
        x: T[...]   float.

    Result:
        bool[...] of the shape of x.

    Constraints:
        C1: x is float.

    Source: StableHLO `is_finite`, `jax.lax.is_finite`.
    """

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, FLOATING)
        return x.with_dtype(DType.BOOL)

    def evaluate(self, x: Array) -> Array:
        return np.isfinite(x.astype(np.float64))
