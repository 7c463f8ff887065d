"""Elementwise arithmetic; two inputs have one shape and one dtype."""

from __future__ import annotations

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import binary_result, compute2
from rlx.types import TensorType


@define_op("add")
class Add(Op):
    """Elementwise sum; logical or for bool.

    y = lhs + rhs

    Inputs:
        lhs: T[...]   number or bool.
        rhs: T[...]   same type as lhs.

    Result:
        Same type as lhs. Integers wrap around.

    Constraints:
        C1: lhs and rhs have one shape.
        C2: lhs and rhs have one dtype.

    Source: StableHLO `add`, `jax.lax.add`.
    """

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return binary_result(self, lhs, rhs)

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return compute2(np.add, lhs, rhs)
