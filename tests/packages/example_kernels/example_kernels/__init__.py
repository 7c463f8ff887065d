"""Kernels of a package of its own, with exactly the interface that RLX-XLA's have.

One is written with StableHLO, one is a C++ handler (``cube.cc``) in this package's own library,
which ``EXAMPLE_LIBRARY`` names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops.arithmetic import IntegerPow, Square
from rlx.types import TensorType
from rlx_xla._jax_compat.ffi import runtime_api_version
from rlx_xla._jax_compat.mlir import stablehlo
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import AbstractKernel, FfiKernel, Refused, Supported


def kernels() -> list[AbstractKernel]:
    """Everything that this package brings."""
    return [
        SquareKernel(name="square.cpu.example", op=Square, platforms=("cpu",), priority=1),
        SquareKernel(name="square.cuda.example", op=Square, platforms=("cuda",)),
        FfiKernel(
            name="integer_pow.cpu.example",
            op=IntegerPow,
            platforms=("cpu",),
            symbol=lambda op, types: "example_cube_f64_cpu",
            check=_is_cube,
            library=_library,
        ),
    ]


@final
@dataclass(frozen=True, kw_only=True)
class SquareKernel(AbstractKernel):
    """x·x with a mark by which it is told apart from the rule of the op."""

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        if types[0].dtype is not DType.F32:
            return Refused(f"x is {types[0].dtype.label} and not f32")
        return Supported()

    def lower(self, ctx: Any, op: Any, *operands: Any) -> Any:
        (x,) = operands
        return stablehlo.abs(stablehlo.multiply(x, x))


def _is_cube(op: IntegerPow, types: Sequence[TensorType]) -> Supported | Refused:
    if op.exponent != 3 or types[0].dtype is not DType.F64:
        return Refused("only cubes of f64 are written")
    return Supported()


def _library() -> ffi.LoadedLibrary | ffi.Unavailable:
    path = Path(os.environ.get("EXAMPLE_LIBRARY", "cube.so"))
    return ffi.open_library(path, runtime_api_version() or (0, 1))
