"""Ops that RLX does not model, as ``external`` nodes that hold their StableHLO and still run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast, final

import jax
import numpy as np
from jax.interpreters import mlir as jax_mlir

from rlx.ir.attributes import Opaque
from rlx.ir.graph import make_node
from rlx.ops.external import External
from rlx.types import TOKEN
from rlx_xla._jax_compat import export, mlir
from rlx_xla._jax_compat.client import shaped_array
from rlx_xla._jax_compat.jaxpr import Primitive, enable_x64
from rlx_xla._jax_compat.mlir import func, ir
from rlx_xla.lowering.registry import PLATFORMS
from rlx_xla.tracing.stablehlo import calls
from rlx_xla.tracing.stablehlo.context import OpContext

_ANNOTATIONS = ("sdy.", "mhlo.sharding", "mhlo.frontend_attributes")


@final
@dataclass(frozen=True, eq=False)
class LiveModule:
    """One foreign op in memory.

    Attributes:
        name: the op, or the target of a custom call.
        text: a StableHLO module whose main is this op.
        arguments: how many arrays it takes.
        out_types: dtypes and shapes of its results.
        saved_for: the platforms that the text may be saved for: none where it calls unknown code.
        x64: JAX may narrow nothing, since the text says every type.
    """

    x64: ClassVar[bool] = True

    name: str
    text: str
    arguments: int
    out_types: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    saved_for: tuple[str, ...]

    def function(self, *operands: Any) -> list[Any]:
        """The op as a JAX function."""
        return module_call.bind(*operands, source=self)

    def evaluate(self, *operands: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Run the op on arrays; a token passes through."""
        with enable_x64():
            results = jax.jit(self.function)(*operands[: self.arguments])
            return (*(np.asarray(r) for r in results), *operands[self.arguments :])

    def portable(self) -> tuple[tuple[str, str], ...]:
        """The text for every platform that it may be saved for."""
        return tuple((p, self.text) for p in self.saved_for)


module_call = Primitive("stablehlo_module")
module_call.multiple_results = True


@module_call.def_abstract_eval
def _result_types(*_: Any, source: LiveModule) -> list[Any]:
    return [shaped_array(shape, dtype) for dtype, shape in source.out_types]


def _lower(ctx: Any, *operands: Any, source: LiveModule) -> Sequence[Any]:
    module = ctx.module_context.module
    with module.context:
        merged = mlir.parse_module(source.text, module.context)
        symbols = ctx.module_context.symbol_table
        name = mlir.merge_module(merged, module, "stablehlo_module", symbols)
        results: list[ir.Type] = [mlir.tensor_type(shape, d) for d, shape in source.out_types]
        return func.CallOp(results, ir.FlatSymbolRefAttr.get(name), list(operands)).results


jax_mlir.register_lowering(module_call, _lower)


def node(
    ctx: OpContext,
    name: str = "",
    *,
    custom: bool = False,
    saved_for: tuple[str, ...] = (),
    effect: bool = False,
) -> Any:
    """Make the external node of an op.

    Args:
        ctx: the op.
        name: what the node is called; the op's name if empty.
        custom: the op calls code outside of StableHLO, so that it must not be saved.
        saved_for: the platforms where such a call may be saved all the same, having been checked.
        effect: it has a side effect, ordered with the others of the graph.
    """
    if custom:
        export.prepare_custom_call(name)
    constants = [v for v in ctx.captured if _is_constant(v)]
    sources = list(dict.fromkeys([*ctx.op.operands, *ctx.free()]))
    operands = ctx.values(sources)
    live = LiveModule(
        name or ctx.op.name,
        _module_text(ctx, sources, constants, keep_annotations=custom),
        len(sources),
        tuple((t.dtype.numpy, _static(t.shape)) for t in ctx.out_types),
        saved_for if custom else PLATFORMS,
    )
    types = (*ctx.out_types, TOKEN) if effect else ctx.out_types
    op = External(
        name=live.name,
        dtypes=tuple(t.dtype for t in types),
        shapes=tuple(t.shape for t in types),
        effect="custom_call" if effect else "",
        live=Opaque(live, live.evaluate, live.portable),
    )
    if not effect:
        return make_node(op, operands).results
    if not ctx.scope.effects:
        return ctx.refuse(f"{live.name} has a side effect inside of a loop, choice or function")
    results = make_node(op, (*operands, ctx.scope.token("custom_call"))).results
    ctx.scope.tokens["custom_call"] = results[-1]
    return results[:-1]


def _static(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(cast("int", d)) for d in shape)


def _is_constant(value: ir.Value) -> bool:
    owner: Any = value.owner
    return getattr(owner, "name", "") == "stablehlo.constant"


def _module_text(
    ctx: OpContext,
    sources: Sequence[ir.Value],
    constants: Sequence[ir.Value],
    *,
    keep_annotations: bool,
) -> str:
    """A module whose main is a copy of the op, with the functions that it refers to."""
    op = ctx.op
    with op.context, ir.Location.unknown():
        module = ir.Module.create()
        types = [mlir.tensor_type(_static(t.shape), t.dtype.numpy) for t in ctx.out_types]
        signature = ir.FunctionType.get([v.type for v in sources], types)
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", signature)
        block = main.add_entry_block()
        known = dict(zip(sources, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            copy = op.clone().operation
            results: list[ir.Value] = list(copy.results)
            if len(results) == 1 and results[0].type not in types:  # a tuple
                results = [
                    mlir.stablehlo.get_tuple_element(results[0], i32(i)) for i in range(len(types))
                ]
            func.return_(results)
        for region in copy.regions:
            # XLA wants the regions of most ops to capture nothing: constants move inside.
            with ir.InsertionPoint.at_block_begin(region.blocks[0]):
                moved = {v: _owner(v).clone().operation.results[0] for v in constants}
            for block in region.blocks:
                for view in block.operations:
                    for inner in _nested(view.operation):
                        _replace(inner, moved)
        for inner in _nested(copy):
            _replace(inner, known)
            for key in [a.name for a in _named(inner)]:
                if key.startswith(_ANNOTATIONS) and not keep_annotations:
                    del inner.attributes[key]
        _copy_symbols(ctx, copy, module)
    return mlir.module_text(module)


def _owner(value: ir.Value) -> ir.Operation:
    owner: Any = value.owner
    return owner.operation


def _replace(op: ir.Operation, known: Mapping[ir.Value, ir.Value]) -> None:
    for index, value in enumerate(op.operands):
        if value in known:
            op.operands[index] = known[value]


def _copy_symbols(ctx: OpContext, op: ir.Operation, module: ir.Module) -> None:
    """Copy the functions and meshes that an op refers to, directly or through others."""
    known = ctx.walker.symbols
    wanted, done = calls.references(op), {"main"}
    while wanted:
        name = wanted.pop()
        if name in done or name not in known:
            continue
        done.add(name)
        with ir.InsertionPoint.at_block_begin(module.body):
            known[name].clone()
        wanted |= calls.references(known[name])


def i32(value: int) -> ir.IntegerAttr:
    """A 32-bit integer attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)


def _named(op: ir.Operation) -> list[Any]:
    return [op.attributes[i] for i in range(len(op.attributes))]


def _nested(op: ir.Operation) -> Iterator[ir.Operation]:
    """An op and every op inside of it."""
    stack = [op]
    while stack:
        current = stack.pop()
        yield current
        for region in current.regions:
            for block in region.blocks:
                stack.extend(v.operation for v in block.operations)
