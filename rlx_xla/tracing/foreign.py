"""Saved opaque nodes inside JAX: StableHLO text as one primitive, without derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

import jax
from jax.interpreters import ad, batching
from jax.interpreters import mlir as jax_mlir

from rlx.errors import LoweringError, TraceError
from rlx.ops.external import External
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.jaxpr import Primitive, ShapedArray
from rlx_xla._jax_compat.mlir import func
from rlx_xla.lowering import foreign

PRIMITIVE = "rlx_external"


@final
class ForeignProgram:
    """StableHLO text by platform, as a function of arrays.

    Attributes:
        op: the node's op.
        results: avals of the results.
    """

    __slots__ = ("op", "results")

    def __init__(self, op: External, results: Sequence[Any]) -> None:
        """Take the text of an opaque node.

        Raises:
            TraceError: there is none.
        """
        if not op.stablehlo or op.effect:
            raise TraceError(
                f"to_jax: opaque node {op.name!r} is required to hold its JAX equation or pure "
                "StableHLO text; it holds neither. Trace the function again."
            )
        self.op = op
        self.results = tuple(ShapedArray(r.shape, r.dtype) for r in results)

    def bind(self, arrays: Sequence[Any]) -> list[Any]:
        """Apply the program."""
        return external.bind(*arrays, program=self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForeignProgram) and self.op == other.op

    def __hash__(self) -> int:
        return hash(self.op)


external = Primitive(PRIMITIVE)
external.multiple_results = True


@external.def_impl
def _run(*arrays: Any, program: ForeignProgram) -> list[Any]:
    with jax.disable_jit(False):  # only XLA can run it
        return jax.jit(lambda *a: external.bind(*a, program=program))(*arrays)


@external.def_abstract_eval
def _types(*_: Any, program: ForeignProgram) -> list[Any]:
    return list(program.results)


def _lower(ctx: Any, *operands: Any, program: ForeignProgram) -> Sequence[Any]:
    platforms = tuple(ctx.platforms or ctx.module_context.platforms)
    texts = dict(program.op.stablehlo)
    if len(platforms) != 1 or platforms[0] not in texts:
        raise LoweringError(
            f"opaque node {program.op.name!r}: it is required to hold StableHLO for "
            f"{', '.join(platforms)}; it holds {', '.join(texts)}. Trace the function again."
        )
    module = ctx.module_context.module
    where = f"opaque node {program.op.name!r}"
    with module.context:
        source = foreign.parse(texts[platforms[0]], where, module.context)
        symbols = ctx.module_context.symbol_table
        name = mlir.merge_module(source, module, f"external_{program.op.name}", symbols)
        callee = mlir.ir.FlatSymbolRefAttr.get(name)
        main = cast("func.FuncOp", symbols[name])
        wanted = [mlir.tensor_type(a.shape, a.dtype) for a in ctx.avals_in]
        results: list[mlir.ir.Type] = [mlir.tensor_type(a.shape, a.dtype) for a in ctx.avals_out]
        if list(main.type.inputs) != wanted or list(main.type.results) != results:
            raise LoweringError(
                f"{where}: its StableHLO is required to take {list(map(str, wanted))} and give "
                f"{list(map(str, results))}; it is {main.type}. The file is damaged."
            )
        return func.CallOp(results, callee, list(operands)).results


jax_mlir.register_lowering(external, _lower)


def _refuse(what: str, *_: Any, program: ForeignProgram, **__: Any) -> Any:
    raise TraceError(
        f"to_jax: {what} opaque node {program.op.name!r} is required to have its JAX equation; "
        "after loading a graph only its StableHLO is left. Trace the function again."
    )


ad.primitive_jvps[external] = lambda *a, program: _refuse("differentiating", program=program)
batching.primitive_batchers[external] = lambda *a, program: _refuse("vmap of", program=program)
