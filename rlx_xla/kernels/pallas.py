"""Kernels that are JAX functions: Pallas kernels, and library calls that only JAX lowers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla._jax_compat.absent import device_named, triton_allowed
from rlx_xla.kernels.base import AbstractKernel, Check, Refused, Supported
from rlx_xla.lowering import jax_function

if TYPE_CHECKING:
    from rlx_xla._jax_compat.mlir import ir
    from rlx_xla.lowering.context import LoweringContext


@final
@dataclass(frozen=True, kw_only=True)
class PallasKernel(AbstractKernel):
    """A JAX function of the op's inputs, lowered by JAX and called from the module.

    Attributes:
        make: the function for an op and input types.
        check: whether op and types fit.
        triton: whether Pallas lowers it for Triton.
    """

    make: Callable[[Any, Sequence[TensorType]], Callable[..., Any]]
    check: Check
    triton: bool = False

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        del platform
        return self.check(op, types)

    def lower(self, ctx: LoweringContext, op: Any, *operands: ir.Value) -> Any:
        function = self.make(op, ctx.input_types)
        name = self.name.replace(".", "_")
        in_pallas = self.triton or ctx.platform == "tpu"
        with contextlib.ExitStack() as stack:
            if in_pallas:
                stack.enter_context(device_named(ctx.platform))
            if self.triton:
                stack.enter_context(triton_allowed())
            return jax_function.call(
                ctx, function, ctx.input_types, operands, name, x64=not in_pallas
            )
