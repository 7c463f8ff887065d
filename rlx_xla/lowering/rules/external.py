"""Opaque nodes: their StableHLO is merged into the module and called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rlx.dtypes import DType
from rlx.ir.attributes import Opaque
from rlx.ops.external import External
from rlx.types import TensorType
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.lowering import foreign, jax_function
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers
from rlx_xla.tracing.external import LiveEquation


def _without_text(op: External, types: Sequence[TensorType], platform: str) -> str | None:
    del types
    held = [name for name, _ in op.stablehlo]
    if op.live is not None or platform in held:
        return None
    return (
        f"the opaque node {op.name!r} is required to hold StableHLO for {platform!r}; it holds "
        f"{held or 'none'}. Trace the function again."
    )


@lowers(External, refuses=_without_text)
def external(ctx: LoweringContext, op: External, *operands: ir.Value) -> list[ir.Value]:
    """Call the foreign module's main, which takes tokens first; others pass through."""
    if op.live is not None:
        source = mlir.parse_module(_lower_live(ctx, op), ctx.module.context)
    else:
        text = dict(op.stablehlo)[ctx.platform]
        source = foreign.parse(text, f"opaque node {op.name!r}", ctx.module.context)
        _check_types(ctx, op, source)
    shift_callbacks(source, ctx.module.callback_base)
    ctx.module.callback_base = len(ctx.module.host_callbacks)
    count = sum(t.dtype is not DType.TOKEN for t in ctx.input_types)
    values, tokens = operands[:count], operands[count:]
    main = mlir.main_function(source)
    taken = sum("token" in str(t) for t in main.type.inputs)
    results = jax_function.merged(ctx, source, f"external_{op.name}", [*tokens[:taken], *values])
    return [*results[taken:], *results[:taken], *tokens[taken:]]


def _check_types(ctx: LoweringContext, op: External, source: ir.Module) -> None:
    """Hold a foreign main to the types that the node declares."""
    found = [[(str(d), s) for d, s in side] for side in mlir.main_types(source)]
    sides = (ctx.input_types, ctx.output_types)
    wanted = [
        [(str(t.dtype.numpy), tuple(t.shape)) for t in side if t.dtype is not DType.TOKEN]
        for side in sides
    ]
    if found != wanted:
        raise ctx.refuse(
            f"the StableHLO of opaque node {op.name!r} is required to take and give {wanted}; "
            f"its main has {found}. The file is damaged: trace the function again."
        )


def _lower_live(ctx: LoweringContext, op: External) -> str:
    live = cast("LiveEquation", cast("Opaque", op.live).value)
    types = [t for t in ctx.input_types if t.dtype is not DType.TOKEN]
    return jax_function.lower(ctx, live.function, types, x64=live.x64)


def shift_callbacks(module: ir.Module, base: int) -> None:
    """Add ``base`` to the index of every host callback that a module calls."""
    if not base:
        return

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call" and "python" in str(
            operation.attributes["call_target_name"]
        ):
            for key in ("mhlo.backend_config", "backend_config"):
                if key in operation.attributes:
                    config = operation.attributes[key]
                    _shift(operation, key, config, base)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _shift(operation: ir.Operation, key: str, config: ir.Attribute, base: int) -> None:
    if not isinstance(config, ir.DictAttr) or "index" not in config:
        return
    entries = {e.name: e.attr for e in config}
    index = entries["index"]
    entries["index"] = ir.IntegerAttr.get(index.type, ir.IntegerAttr(index).value + base)
    operation.attributes[key] = ir.DictAttr.get(entries)
