"""``rlx_xla.simulate``: what products of f32 give on a TPU, computed on the CPU.

A TPU multiplies bf16 and adds up in f32. An f32 operand is therefore split into bf16 parts, and
products of parts are added: one at the default precision, three at high, six at highest.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import numpy as np

from rlx.dtypes import DType
from rlx.errors import RunError, TraceError, did_you_mean
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rule, sweep
from rlx.ops.arithmetic import Add, IsFinite, Sub
from rlx.ops.compare import Select
from rlx.ops.convert import ReducePrecision
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.dot import DotGeneral, DotPrecision
from rlx.ops.shape import BroadcastInDim
from rlx.passes.decompose import decompose
from rlx.types import TensorType
from rlx_xla.tracing.template import Template, TemplateTraced
from rlx_xla.tracing.to_jax import to_jax
from rlx_xla.tracing.trace import trace_call
from rlx_xla.tracing.traced import Traced

_Trace = TypeVar("_Trace", Traced, TemplateTraced)

MODES: dict[str, DotPrecision] = {
    "tpu-default": DotPrecision.DEFAULT,
    "tpu-high": DotPrecision.HIGH,
    "tpu-highest": DotPrecision.HIGHEST,
}
"""Mode → the least precision of a product; one that asks for more gets it."""

_ORDER = (DotPrecision.DEFAULT, DotPrecision.HIGH, DotPrecision.HIGHEST)
_PARTS = {DotPrecision.DEFAULT: 1, DotPrecision.HIGH: 2, DotPrecision.HIGHEST: 3}
_EXACT = (DotPrecision.HIGHEST, DotPrecision.HIGHEST)


def simulate(fn_or_graph: Any, mode: str) -> Any:
    """Return the same program with the products of a TPU.

    Matrix products and convolutions of f32 are replaced by products of operands that are rounded
    to bf16; everything else is computed as the CPU does. A product with its own ``algorithm``, and
    operands of other dtypes, stay as they are.

    Args:
        fn_or_graph: a Graph, what ``rlx_xla.trace`` gave, or a JAX function of arrays.
        mode: ``tpu-default`` (one product of bf16 operands), ``tpu-high`` (three) or
            ``tpu-highest`` (six): the precision of products that ask for none or for less.

    Returns:
        A Graph for a Graph, a Traced for a Traced, a function for a function; all run wherever
        the original does.

    Raises:
        RunError: the mode is unknown.
        TraceError: the argument is none of these, or the function cannot be traced.
    """
    least = MODES.get(mode) if isinstance(mode, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if least is None:
        raise RunError(
            f"simulate: mode is required to be one of {', '.join(MODES)}; got {mode!r}."
            f"{did_you_mean(mode, MODES)}"
        )
    if isinstance(fn_or_graph, Graph):
        return _simulated(fn_or_graph, least)
    if isinstance(fn_or_graph, TemplateTraced):
        return _of_trace(fn_or_graph, least)
    if isinstance(fn_or_graph, Traced):
        return _of_trace(fn_or_graph, least)
    if callable(fn_or_graph):
        return _function(cast("Callable[..., Any]", fn_or_graph), least)
    raise TraceError(
        "simulate: a Graph, a Traced or a JAX function is required; got "
        f"{type(fn_or_graph).__name__}. Trace it with rlx_xla.trace."
    )


def _of_trace(traced: _Trace, least: DotPrecision) -> _Trace:
    """The trace with the products of a TPU, also where it is made anew for some sizes."""
    template = traced.template
    if isinstance(template, Template):
        template = template.changed(functools.partial(_of_trace, least=least))
    if isinstance(traced, TemplateTraced):
        return dataclasses.replace(traced, template=template)
    return dataclasses.replace(traced, graph=_simulated(traced.graph, least), template=template)


def _function(fn: Callable[..., Any], least: DotPrecision) -> Callable[..., Any]:
    made: dict[Any, Callable[..., Any]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        avals = [jax.typeof(x) for x in leaves]
        key = (tree, *((a.shape, a.dtype, getattr(a, "weak_type", False)) for a in avals))
        run = made.get(key)
        if run is None:
            known = [_abstract(x) for x in leaves]
            shapes, named = jax.tree_util.tree_unflatten(tree, known)
            traced = trace_call(fn, shapes, named)
            graph = _simulated(traced.graph, least)
            run = made[key] = jax.jit(to_jax(dataclasses.replace(traced, graph=graph)))
        return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = getattr(fn, "__name__", "simulated")
    return call


def _abstract(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=bool(jax.typeof(leaf).weak_type))


def _simulated(graph: Graph, least: DotPrecision) -> Graph:
    whole = decompose(graph, lambda op: True)
    opaque = sum(
        node.op.op_name == "external" for inner in whole.all_graphs() for node in inner.nodes()
    )
    if opaque:
        warnings.warn(
            f"simulate {graph.name}: opaque nodes ({opaque}) run as on the CPU, with the "
            "products inside of them.",
            stacklevel=3,
        )
    return sweep(whole, lambda: _rule(least))


def _rule(least: DotPrecision) -> Rule:
    split: dict[tuple[Value, int], list[Value]] = {}

    def parts(value: Value, count: int) -> list[Value]:
        found = split.get((value, count))
        if found is None:
            found = split[value, count] = _split(value, count)
        return found

    def step(node: Node) -> Value | None:
        op = node.op
        if not isinstance(op, DotGeneral | ConvGeneralDilated):
            return None
        if DType.F32 not in [v.type.dtype for v in node.inputs]:
            return None
        if isinstance(op, DotGeneral) and op.algorithm is not None:
            return None
        wanted = max((least, *op.precision), key=_ORDER.index)
        count = _PARTS[wanted]
        lhs, rhs = (parts(v, count) for v in node.inputs)
        exact = op.replace(precision=_EXACT)
        # The smallest products first: they would be lost beside the largest.
        pairs = [(i, j) for i in range(len(lhs)) for j in range(len(rhs)) if 0 < i + j < count]
        pairs.sort(key=lambda pair: -sum(pair))
        small: Value | None = None
        for i, j in pairs:
            product: Value = exact(lhs[i], rhs[j])
            small = product if small is None else Add()(small, product)
        large: Value = exact(lhs[0], rhs[0])
        if small is None:
            return large
        # An infinity times a small part may be a NaN, or an infinity of the other sign.
        finite: Value = Select()(IsFinite()(small), small, _zeros(small.type))
        total: Value = Add()(finite, large)
        return total

    return step


def _split(value: Value, count: int) -> list[Value]:
    """Up to ``count`` bf16 parts of an f32 value, held in f32, the largest first."""
    if value.type.dtype is not DType.F32:
        return [value]
    found: list[Value] = []
    rest = value
    for place in range(count):
        part: Value = ReducePrecision(exponent_bits=8, mantissa_bits=7)(rest)
        found.append(part)
        if place + 1 < count:
            # What is left of an infinity is nothing, and not the NaN of inf − inf.
            left: Value = Sub()(rest, part)
            rest = Select()(IsFinite()(part), left, _zeros(value.type))
    return found


def _zeros(type_: TensorType) -> Value:
    zero = constant(np.zeros((), type_.dtype.numpy))
    made: Value = BroadcastInDim(shape=type_.shape, broadcast_dimensions=())(zero)
    return made
