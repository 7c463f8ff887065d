"""Effects: tokens order them, so that order is data flow."""

from __future__ import annotations

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.types import TOKEN, TensorType


@define_op("create_token")
class CreateToken(Op):
    """The start of a chain of effects.

    An effectful op takes a token and returns the next; the last one is an effect output of the
    graph. So an effect without users stays reachable, and effects of one chain run in order.

    Result:
        token

    Source: StableHLO `create_token`.
    """

    def infer(self) -> TensorType:
        return TOKEN

    def evaluate(self) -> Array:
        return np.zeros((), np.bool_)
