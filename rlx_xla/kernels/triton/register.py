"""Registration of kernels that Pallas writes for GPUs through Triton."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.pallas import PallasKernel
from rlx_xla.kernels.select import register_kernel

_UNPROVEN = {
    "rocm": "it has not been measured on an AMD GPU",
    "cuda": "on an H200 it was no faster than what is taken instead",
}
"""Platform → why its kernel is not chosen by itself."""


def register_triton_kernels(
    op: type[Op], check: Callable[[Any, Sequence[TensorType]], Supported | Refused]
) -> None:
    """Register an op's kernel once for AMD's GPUs and once for NVIDIA's.

    Args:
        op: its name is that of the module here whose ``make(op, types)`` gives the JAX function.
        check: says which calls are taken.
    """

    def make(call: Any, types: Sequence[TensorType]) -> Callable[..., Any]:
        # Pallas takes a while to import.
        return importlib.import_module(f"rlx_xla.kernels.triton.{op.op_name}").make(call, types)

    for platform, reason in _UNPROVEN.items():
        register_kernel(
            PallasKernel(
                name=f"{op.op_name}.{platform}.pallas",
                op=op,
                platforms=(platform,),
                priority=-1,
                unproven=reason,
                make=make,
                check=check,
                triton=True,
            )
        )
