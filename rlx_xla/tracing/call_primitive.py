"""What ``rlx_xla.jit`` is under JAX's tracers: one primitive that holds a jaxpr.

Its rules make another jaxpr and bind the primitive again, so JAX's transformations happen first and
kernels are chosen afterwards, where the primitive is lowered:

* differentiation binds it twice: once for the results and residuals, once for the linear map from
  tangents to tangents. So whatever JAX does to separate the two (partial evaluation for ``grad``,
  ``checkpoint``, ``scan``) needs no rule of ours, and only the linear half is ever transposed;
* a jaxpr with effects is not bound at all but evaluated, so that JAX orders them; one with a
  ``while`` is evaluated when it is differentiated, since JAX has only forward derivatives of it;
* lowering for several devices or platforms at once, or with host callbacks, is JAX's own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import jax
import numpy as np
from jax.interpreters import ad, batching
from jax.interpreters import mlir as jax_mlir

from rlx.errors import LoweringError
from rlx.ir.graph import Graph, Value
from rlx.ops.io import Input, Param
from rlx.options.compile import CompileOptions
from rlx.options.dispatch import claim_of
from rlx.passes.base import PassContext
from rlx.passes.legalize import legalize
from rlx.passes.pipelines import mir_pipeline
from rlx_xla._jax_compat import calls, equations, interpreters, keys, mlir
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat.mlir import func
from rlx_xla.kernels.select import choose
from rlx_xla.lowering.module import lower_to_module
from rlx_xla.lowering.registry import PLATFORMS
from rlx_xla.tracing.walk import JaxprWalker

PRIMITIVE = "rlx_jit"


@final
@dataclass(frozen=True, eq=False)
class Settings:
    """How the primitive is compiled; compared by identity.

    Attributes:
        options: compile options.
    """

    options: CompileOptions


rlx_jit = jx.Primitive(PRIMITIVE)
rlx_jit.multiple_results = True


def apply(jaxpr: Any, operands: Sequence[Any], name: str, settings: Settings) -> list[Any]:
    """Call a closed jaxpr without constants inside the current trace."""
    interpreters.teach(rlx_jit)
    if jx.open_jaxpr(jaxpr).effects:
        return equations.function_of(jaxpr)(*operands)
    return rlx_jit.bind(*operands, jaxpr=jaxpr, name=name, settings=settings)


@rlx_jit.def_impl
def _run(*operands: Any, jaxpr: Any, name: str, settings: Settings) -> list[Any]:
    if calls.jit_disabled():
        return equations.function_of(jaxpr)(*operands)
    return _compiled(jaxpr, name, settings)(*operands)


@functools.lru_cache(maxsize=1024)
def _compiled(jaxpr: Any, name: str, settings: Settings) -> Any:
    def function(*operands: Any) -> list[Any]:
        return rlx_jit.bind(*operands, jaxpr=jaxpr, name=name, settings=settings)

    function.__name__ = function.__qualname__ = name
    return jax.jit(function)


@rlx_jit.def_abstract_eval
def _types(*_: Any, jaxpr: Any, name: str, settings: Settings) -> list[Any]:
    return list(jaxpr.out_avals)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, name: str, settings: Settings
) -> tuple[list[Any], list[Any]]:
    nonzero = tuple(map(calls.is_nonzero, tangents))
    given = [t for t, nz in zip(tangents, nonzero, strict=True) if nz]
    if "while" in calls.primitives_of(jaxpr):
        function = _of_varied(jaxpr, primals, nonzero)
        varied = [p for p, nz in zip(primals, nonzero, strict=True) if nz]
        floats, moved, others = jax.jvp(function, varied, given, has_aux=True)
        return _joined(jaxpr, floats, others, moved)
    forward, linear, count = _linearized(jaxpr, nonzero, calls.trace_context())
    results = apply(forward, primals, name, settings)
    values, residuals = results[:count], results[count:]
    moved = apply(linear, [*residuals, *given], f"{name}_linear", settings)
    floats = [v for v, a in zip(values, jaxpr.out_avals, strict=True) if _has_tangent(a)]
    others = [v for v, a in zip(values, jaxpr.out_avals, strict=True) if not _has_tangent(a)]
    return _joined(jaxpr, floats, others, moved)


def _of_varied(jaxpr: Any, primals: Sequence[Any], nonzero: Sequence[bool]) -> Any:
    """A jaxpr as a function of some operands to (results with tangents, other results)."""

    def function(*varied: Any) -> tuple[list[Any], list[Any]]:
        given = iter(varied)
        operands = [next(given) if nz else p for p, nz in zip(primals, nonzero, strict=True)]
        results = equations.function_of(jaxpr)(*operands)
        pairs = list(zip(results, jaxpr.out_avals, strict=True))
        return [r for r, a in pairs if _has_tangent(a)], [
            r for r, a in pairs if not _has_tangent(a)
        ]

    return function


def _has_tangent(aval: Any) -> bool:
    return calls.tangent_aval(aval) is not None


def _joined(
    jaxpr: Any, floats: Sequence[Any], others: Sequence[Any], moved: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Results and tangents in the order of the jaxpr's results."""
    rest, values, tangents = iter(others), iter(floats), iter(moved)
    results: list[Any] = []
    out_tangents: list[Any] = []
    for aval in jaxpr.out_avals:
        if _has_tangent(aval):
            results.append(next(values))
            out_tangents.append(next(tangents))
        else:
            results.append(next(rest))
            out_tangents.append(calls.zero_tangent(aval))
    return results, out_tangents


@functools.lru_cache(maxsize=1024)
def _linearized(jaxpr: Any, nonzero: tuple[bool, ...], context: Any) -> tuple[Any, Any, int]:
    """(operands → results, residuals), (residuals, tangents → tangents), number of results."""
    del context  # part of the key only
    linear: list[Any] = []

    def forward(*primals: Any) -> list[Any]:
        varied = [p for p, nz in zip(primals, nonzero, strict=True) if nz]
        function = _of_varied(jaxpr, primals, nonzero)
        floats, push, others = jax.linearize(function, *varied, has_aux=True)
        tangents = [calls.tangent_aval(v.aval) for v in varied]
        made, residuals = calls.traced(push, tangents)
        linear.append(made)
        return [*_joined(jaxpr, floats, others, floats)[0], *residuals]

    made, captured = calls.traced(forward, jaxpr.in_avals)
    if captured:
        raise AssertionError("a jaxpr without constants captures nothing")
    return made, linear[-1], len(jaxpr.out_avals)


ad.primitive_jvps[rlx_jit] = _jvp


def _batch(
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    jaxpr: Any,
    name: str,
    settings: Settings,
) -> tuple[list[Any], list[int]]:
    avals = [jx.typeof(x) for x in operands]
    made = _batched(jaxpr, tuple(avals), tuple(axes), calls.trace_context())
    results = apply(made, operands, name, settings)
    return results, [0] * len(results)


@functools.lru_cache(maxsize=1024)
def _batched(jaxpr: Any, avals: tuple[Any, ...], axes: tuple[int | None, ...], context: Any) -> Any:
    del context
    function = jax.vmap(equations.function_of(jaxpr), in_axes=axes, out_axes=0)
    return calls.traced(function, avals)[0]


batching.primitive_batchers[rlx_jit] = _batch


def _transpose(
    cotangents: Sequence[Any], *operands: Any, jaxpr: Any, name: str, settings: Settings
) -> list[Any]:
    linear = tuple(ad.is_undefined_primal(x) for x in operands)
    known = [x for x, is_linear in zip(operands, linear, strict=True) if not is_linear]
    nonzero = tuple(type(ct) is not calls.Zero for ct in cotangents)
    given = [ct for ct, nz in zip(cotangents, nonzero, strict=True) if nz]
    made = _transposed(jaxpr, linear, nonzero, calls.trace_context())
    results = iter(apply(made, [*known, *given], f"{name}_transpose", settings))
    return [next(results) if is_linear else None for is_linear in linear]


@functools.lru_cache(maxsize=1024)
def _transposed(
    jaxpr: Any, linear: tuple[bool, ...], nonzero: tuple[bool, ...], context: Any
) -> Any:
    del context
    in_avals, out_avals = jaxpr.in_avals, jaxpr.out_avals
    known = [a for a, is_linear in zip(in_avals, linear, strict=True) if not is_linear]
    varied = [a for a, is_linear in zip(in_avals, linear, strict=True) if is_linear]
    given = [a for a, nz in zip(out_avals, nonzero, strict=True) if nz]

    def backward(*arrays: Any) -> list[Any]:
        fixed, cotangents = arrays[: len(known)], iter(arrays[len(known) :])

        def function(*moving: Any) -> list[Any]:
            first, second = iter(fixed), iter(moving)
            operands = [next(second) if is_linear else next(first) for is_linear in linear]
            results = equations.function_of(jaxpr)(*operands)
            return [r for r, nz in zip(results, nonzero, strict=True) if nz]

        pull = jax.linear_transpose(function, *map(calls.described, varied))
        return list(pull(list(cotangents)))

    return calls.traced(backward, [*known, *given])[0]


ad.primitive_transposes[rlx_jit] = _transpose


def _lower(ctx: Any, *operands: Any, jaxpr: Any, name: str, settings: Settings) -> Any:
    place = calls.LoweringPlace(ctx)
    avals = (*jaxpr.in_avals, *jaxpr.out_avals)
    symbolic = any(jx.is_symbolic(n) for a in avals for n in a.shape)
    if len(place.platforms) != 1 or place.platforms[0] not in PLATFORMS:
        return calls.lower_as_jax(ctx, jaxpr, operands)
    if symbolic or not place.alone:
        return calls.lower_as_jax(ctx, jaxpr, operands)
    program = _program(jaxpr, name, place.platforms[0], settings, calls.trace_context())
    if program is None:
        return calls.lower_as_jax(ctx, jaxpr, operands)
    bytecode, arrays = program
    module = ctx.module_context.module
    with module.context:
        source = mlir.parse_module(bytecode, module.context)
        symbol = mlir.merge_module(source, module, name, ctx.module_context.symbol_table)
        main = cast("func.FuncOp", ctx.module_context.symbol_table[symbol])
        callee = mlir.ir.FlatSymbolRefAttr.get(symbol)
        constants = [calls.constant(np.asarray(a)) for a in arrays]
        results = list(main.type.results)
        return func.CallOp(results, callee, [*operands, *constants]).results


jax_mlir.register_lowering(rlx_jit, _lower)


@functools.lru_cache(maxsize=256)
def _program(
    jaxpr: Any, name: str, platform: str, settings: Settings, context: Any
) -> tuple[bytes, tuple[Any, ...]] | None:
    """Our module for a jaxpr and the arrays it takes last; None where it calls back into Python."""
    del context
    graph, arrays = graph_of(jaxpr, name)
    pass_context = PassContext(settings.options, platform)
    optimised, _ = mir_pipeline(settings.options).run(graph, pass_context)
    dispatch, claim = settings.options.kernel_dispatch, claim_of(settings.options.supported_ops)
    lir = legalize(optimised, lambda node: choose(node, platform, dispatch), platform, claim=claim)
    plan = lir.plan.implementations
    emitters = {node: made.emit for node, made in plan.items() if made.kind == "kernel"}
    lowered = lower_to_module(lir.graph, platform, emitters=emitters)
    if lowered.host_callbacks:
        return None
    kept = [v.name for v in lir.graph.params]
    if kept != list(arrays):
        raise LoweringError(f"jit of {name}: passes are required to keep params; got {kept}.")
    return mlir.module_bytecode(lowered.module), tuple(arrays.values())


interpreters.when_cleared(
    [f.cache_clear for f in (_compiled, _linearized, _batched, _transposed, _program)]
)


def graph_of(jaxpr: Any, name: str) -> tuple[Graph, dict[str, Any]]:
    """The graph of a closed jaxpr; larger arrays that it holds are params, given by name."""
    arrays: dict[str, Any] = {}
    leaves: list[Value] = []

    def lift(array: Any, index: int) -> Value:
        label = f"captured/{index}"
        arrays[label] = array
        type_ = walker.type_of(jx.typeof(array))
        leaf: Value = Param(name=label, dtype=type_.dtype, shape=type_.shape)()
        leaves.append(leaf)
        return leaf

    walker = JaxprWalker(lift)
    opened = jx.open_jaxpr(jaxpr)
    types = [walker.type_of(v.aval) for v in opened.invars]
    inputs = [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
    consts = [walker.literal(c) for c in jx.constants(jaxpr)]
    outputs = walker.walk(opened, consts, inputs)
    graph = Graph(inputs, leaves, outputs, walker.scope.tokens.values(), name=name)
    return graph, {n: keys.key_data(a) if keys.is_key(a) else a for n, a in arrays.items()}
