"""A JAX function inside a module that is being built: lowered by JAX, merged in and called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from rlx.types import TensorType
from rlx_xla._jax_compat import equations, mlir
from rlx_xla._jax_compat.jaxpr import abstract
from rlx_xla._jax_compat.mlir import func, ir
from rlx_xla.lowering.context import LoweringContext


def call(
    ctx: LoweringContext,
    function: Callable[..., Any],
    types: Sequence[TensorType],
    operands: Sequence[ir.Value],
    name: str,
    *,
    x64: bool = True,
) -> list[ir.Value]:
    """Call what JAX makes of a function of raw arrays; effects are not for here.

    Args:
        ctx: the node's view of the module.
        function: a JAX function.
        types: of its arguments, static.
        operands: its arguments.
        name: the wished name of the function in the module.
        x64: whether JAX makes 64-bit values where no dtype is named; Pallas for TPUs takes none.

    Raises:
        LoweringError: JAX has no lowering for the platform.
    """
    source = mlir.parse_module(lower(ctx, function, types, x64=x64), ctx.module.context)
    return merged(ctx, source, name, operands)


def lower(
    ctx: LoweringContext,
    function: Callable[..., Any],
    types: Sequence[TensorType],
    *,
    x64: bool = True,
) -> str:
    """StableHLO text of a function; its host callbacks join those of the module.

    Raises:
        LoweringError: JAX has no lowering for the platform.
    """
    avals = [abstract(t.shape, t.dtype.numpy) for t in types]
    try:
        text, callbacks, keepalive = equations.lower_function(
            function, avals, ctx.platform, x64=x64
        )
    except (NotImplementedError, ValueError, RuntimeError) as error:
        # A plugin without its vendor's libraries fails where JAX asks for their versions.
        raise ctx.refuse(
            f"JAX is required to lower it for {ctx.platform!r}; it says: {error}. "
            "Choose other attributes or another device.",
            error,
        ) from error
    ctx.module.host_callbacks.extend(callbacks)
    ctx.module.keepalive.append(keepalive)
    return text


def merged(
    ctx: LoweringContext, source: ir.Module, name: str, operands: Sequence[ir.Value]
) -> list[ir.Value]:
    """Merge a module into the one that is built, and call its main."""
    callee = mlir.merge_module(source, ctx.module.module, name, ctx.module.symbols)
    main = cast("func.FuncOp", ctx.module.symbols[callee])
    symbol = ir.FlatSymbolRefAttr.get(callee)
    return list(func.CallOp(list(main.type.results), symbol, list(operands)).results)
