"""Leaves of a graph: inputs, params and constants."""

from __future__ import annotations

from rlx.dtypes import DType
from rlx.ir.attributes import Array, Literal
from rlx.ir.op import Op, define_op
from rlx.types import Shape, TensorType


@define_op("input")
class Input(Op):
    """A value fed by name on every run.

    Attributes:
        name: unique among the graph's inputs and params.
        dtype: element type.
        shape: dims, maybe symbolic.

    Result:
        The declared type.

    Source: RLX `Op::Input`.
    """

    name: str
    dtype: DType
    shape: Shape = ()

    def infer(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def evaluate(self) -> Array:
        raise TypeError(f"input {self.name!r} is fed by the caller, not evaluated.")


@define_op("param")
class Param(Op):
    """A value bound once by name, such as a weight.

    Attributes:
        name: unique among the graph's inputs and params.
        dtype: element type.
        shape: dims, maybe symbolic.

    Result:
        The declared type.

    Source: RLX `Op::Param`.
    """

    name: str
    dtype: DType
    shape: Shape = ()

    def infer(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def evaluate(self) -> Array:
        raise TypeError(f"param {self.name!r} is bound by the caller, not evaluated.")


@define_op("constant")
class Constant(Op):
    """An array inside the graph; larger ones belong into params.

    Attributes:
        value: the array.

    Result:
        The array's type.

    Source: StableHLO `constant`; RLX `Op::Constant`.
    """

    value: Literal

    def infer(self) -> TensorType:
        return self.value.type

    def evaluate(self) -> Array:
        return self.value.array
