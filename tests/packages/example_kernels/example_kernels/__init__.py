"""Kernels of a package of its own, with exactly the interface that RLX-XLA's have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops.arithmetic import Square
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import stablehlo
from rlx_xla.kernels.base import AbstractKernel, Refused, Supported


def kernels() -> list[AbstractKernel]:
    """Everything that this package brings."""
    return [
        SquareKernel(name="square.cpu.example", op=Square, platforms=("cpu",), priority=1),
        SquareKernel(name="square.cuda.example", op=Square, platforms=("cuda",)),
    ]


@final
@dataclass(frozen=True, kw_only=True)
class SquareKernel(AbstractKernel):
    """x·x as an integer power would be lowered, to be told apart from the rule of the op."""

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        if types[0].dtype is not DType.F32:
            return Refused(f"x is {types[0].dtype.label} and not f32")
        return Supported()

    def lower(self, ctx: Any, op: Any, *operands: Any) -> Any:
        (x,) = operands
        return stablehlo.abs(stablehlo.multiply(x, x))
