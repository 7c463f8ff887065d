"""Derivative rules of traced functions, written into the graph so that they are saved with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rlx.ir.derivatives import differentiable
from rlx.ir.graph import Graph, Node, Value, same
from rlx.ir.operators import constant
from rlx.ir.rewrite import sweep
from rlx.ops.control_flow import Call, CallKind
from rlx.ops.custom import CustomFn
from rlx.ops.io import Input
from rlx.types import TensorType
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla._jax_compat import keys
from rlx_xla.tracing.live import LiveCall
from rlx_xla.tracing.walk import JaxprWalker

OWN = (CallKind.CUSTOM_JVP, CallKind.CUSTOM_VJP)


def write_rules(graph: Graph) -> Graph:
    """Replace calls of functions with derivatives of their own by ``custom_fn`` nodes.

    A traced ``jax.custom_jvp`` or ``jax.custom_vjp`` function is a call beside which JAX's equation
    lives, from which ``to_jax`` takes the rule; saving a graph loses it. Here the rule is traced
    once, for the types at hand, and becomes a graph: it is saved, printed and loaded. A
    ``custom_vjp`` function then computes what it needs backwards from its operands, for JAX's
    residuals have no place in the graph.

    Args:
        graph: a traced graph.

    Returns:
        The graph; the same object where nothing is written. Calls stay as they are where a dim is
        symbolic, an operand is a random key, the function closes over arrays or has effects, or
        its rule is lost already, and inside written rules: their own derivatives.
    """
    live = {
        id(node.op.live): found
        for inner in graph.all_graphs()
        for node in inner.nodes()
        if isinstance(node.op, Call) and (found := _live(node.op)) is not None
    }
    if not live:
        return graph

    def visit(node: Node) -> Value | tuple[Value, ...] | None:
        op = node.op
        found = live.get(id(op.live)) if isinstance(op, Call) and op.live is not None else None
        if found is None or not isinstance(op, Call):
            return None
        types = [v.type for v in node.inputs]
        if op.body.effects or not all(t.is_static for t in (*types, *node.types)):
            return None
        return _written(op, found, types, node.types)(*node.inputs)

    return sweep(graph, lambda: visit)


def _live(op: Call) -> LiveCall | None:
    """The equation behind a call, as long as the body is the one it was made from."""
    if op.kind not in OWN or op.live is None or not isinstance(op.live.value, LiveCall):
        return None
    live = op.live.value
    (equation,) = jx.open_jaxpr(live.equation.jaxpr).eqns
    # JAX refuses to differentiate by what a function closes over; a graph could not say so.
    closes_over = live.captured or equation.params.get("num_consts", 0)
    if closes_over or any(map(keys.is_key, live.equation.in_avals)):
        return None
    return live if live.body is op.body or same(live.body, op.body) else None


def _written(
    op: Call, live: LiveCall, inputs: Sequence[TensorType], results: Sequence[TensorType]
) -> CustomFn:
    """The call with its rule as a graph of primals, then results, then slopes."""
    count = len(inputs)
    given = [bool(differentiable([t])) for t in inputs]
    made = [bool(differentiable([t])) for t in results]

    def of_some(primals: Sequence[Any]) -> Callable[..., list[Any]]:
        """The function of its differentiable arguments, to its differentiable results."""

        def function(*chosen: Any) -> list[Any]:
            rest = iter(chosen)
            arrays = [next(rest) if k else x for x, k in zip(primals, given, strict=True)]
            outputs = live.equation.function(*arrays)
            return [y for y, k in zip(outputs, made, strict=True) if k]

        return function

    def chosen(primals: Sequence[Any]) -> list[Any]:
        return [x for x, keep in zip(primals, given, strict=True) if keep]

    def forwards(*arrays: Any) -> list[Any]:
        primals, tangents = arrays[:count], arrays[count:]
        return list(jax.jvp(of_some(primals), chosen(primals), list(tangents))[1])

    def backwards(*arrays: Any) -> list[Any]:
        primals, cotangents = arrays[:count], arrays[count + len(results) :]
        return list(jax.vjp(of_some(primals), *chosen(primals))[1](list(cotangents)))

    if op.kind is CallKind.CUSTOM_JVP:
        rule = _graph(forwards, (*inputs, *differentiable(inputs)), "jvp")
        return CustomFn(fwd=op.body, jvp=rule, name=op.name)
    rule = _graph(backwards, (*inputs, *results, *differentiable(results)), "vjp")
    return CustomFn(fwd=op.body, vjp=rule, name=op.name)


def _graph(function: Callable[..., list[Any]], types: Sequence[TensorType], name: str) -> Graph:
    avals = [jx.abstract(t.shape, t.dtype.numpy) for t in types]
    with jx.enable_x64():
        closed = jx.trace_function(function, avals).jaxpr
        walker = JaxprWalker(lambda array, _: constant(np.asarray(array)))
        leaves = [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
        return Graph(leaves, (), walker.inline(closed, leaves), name=name)
