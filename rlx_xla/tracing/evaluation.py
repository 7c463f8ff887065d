"""Evaluates a graph with JAX: nodes in order, one rule call each."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from rlx.dims import DimExpr
from rlx.dtypes import DType
from rlx.errors import TraceError
from rlx.ir.graph import Graph, Node
from rlx.ir.location import Location
from rlx.types import Dim, Shape, TensorType
from rlx_xla._jax_compat import control_flow as cf
from rlx_xla._jax_compat.jaxpr import abstract
from rlx_xla.tracing import composites
from rlx_xla.tracing.jax_registry import is_direct, jax_rule_for

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


@final
class Evaluator:
    """One evaluation of a graph and of the graphs inside it.

    Tokens are None: JAX orders effects itself, and nodes run in the graph's order.

    Attributes:
        sizes: JAX's size (an int or a symbolic dimension) of each symbol.
        lost_rules: what differentiating a function does whose own derivative is lost: ``"raise"``
            or ``"differentiate"`` its body.
    """

    def __init__(self, sizes: Mapping[str, Any], lost_rules: str = "raise") -> None:
        """Start; functions made for inner graphs are kept, so that JAX traces each once."""
        self.sizes = dict(sizes)
        self.lost_rules = lost_rules
        self._functions: dict[Any, tuple[Graph, Callable[..., Any]]] = {}

    def run(self, graph: Graph, leaves: Sequence[Any]) -> list[Any]:
        """Evaluate a graph.

        Args:
            graph: any graph.
            leaves: one array per input, then per param; tokens are None.

        Returns:
            The outputs, then the last tokens.
        """
        known = dict(zip((*graph.inputs, *graph.params), leaves, strict=True))
        for node in graph.nodes():
            if node.op.op_name in ("input", "param"):
                continue
            made = self._node(node, [known[v] for v in node.inputs])
            known.update(zip(node.results, made, strict=True))
        return [known[v] for v in (*graph.outputs, *graph.effects)]

    def function(self, graph: Graph) -> Callable[..., list[Any]]:
        """An inner graph as a function of arrays, without tokens in or out; one per graph."""
        return self.kept("body", graph, lambda: functools.partial(self._without_tokens, graph))

    def kept(self, kind: Any, graph: Graph, make: Callable[[], Any]) -> Any:
        """What ``make`` gives for a graph, made once."""
        found = self._functions.get((kind, id(graph)))
        if found is None:
            found = self._functions[kind, id(graph)] = (graph, make())
        return found[1]

    def size(self, dim: Dim) -> Any:
        """A dim as JAX's size."""
        if not isinstance(dim, DimExpr):
            return int(dim)
        return _evaluate(ast.parse(str(dim), mode="eval").body, self.sizes)

    def _without_tokens(self, graph: Graph, *arrays: Any) -> list[Any]:
        given = iter(arrays)
        leaves = [None if v.type.dtype is DType.TOKEN else next(given) for v in graph.inputs]
        return self.run(graph, leaves)[: len(graph.outputs)]

    def _node(self, node: Node, arrays: Sequence[Any]) -> Sequence[Any]:
        op = node.op
        rule = jax_rule_for(type(op))
        types = tuple(v.type for v in node.inputs)
        if rule is not None and is_direct(op, types):
            made = rule(JaxContext(self, node), op, *arrays)
        elif rule is not None or op.has_decompose:
            made = composites.call(op, types, self.sizes, arrays)
        else:
            where = f" at {node.location}" if node.location else ""
            raise TraceError(
                f"to_jax: op {op.op_name!r}{where} is required to have a rule or a decomposition; "
                f"it has neither. Add one with @to_jax_rule({type(op).__name__})."
            )
        return made if isinstance(made, list | tuple) else (made,)


@final
class JaxContext:
    """What a rule gets besides the arrays: types, sizes, inner graphs.

    Attributes:
        evaluator: the evaluation.
        node: the node.
    """

    __slots__ = ("evaluator", "node")

    def __init__(self, evaluator: Evaluator, node: Node) -> None:
        """Look at an evaluation from a node."""
        self.evaluator = evaluator
        self.node = node

    @property
    def in_types(self) -> tuple[TensorType, ...]:
        """Types of the inputs."""
        return tuple(v.type for v in self.node.inputs)

    @property
    def out_types(self) -> tuple[TensorType, ...]:
        """Types of the results."""
        return self.node.types

    @property
    def location(self) -> Location:
        """Where the user wrote the node."""
        return self.node.location

    def size(self, dim: Dim) -> Any:
        """A dim as JAX's size."""
        return self.evaluator.size(dim)

    def shape(self, shape: Shape) -> tuple[Any, ...]:
        """A shape in JAX's sizes."""
        return tuple(self.evaluator.size(d) for d in shape)

    def dtype(self, index: int = 0) -> np.dtype:
        """NumPy's dtype of a result."""
        return self.node.types[index].dtype.numpy

    def avals(self, types: Sequence[TensorType]) -> list[Any]:
        """Abstract arrays of types, tokens left out."""
        return [
            abstract(self.shape(t.shape), t.dtype.numpy)
            for t in types
            if t.dtype is not DType.TOKEN
        ]

    def function(self, graph: Graph) -> Callable[..., list[Any]]:
        """An inner graph as a function of arrays, tokens left out."""
        return self.evaluator.function(graph)

    def with_tokens(self, results: Sequence[Any]) -> list[Any]:
        """Results with None for each token among the node's results."""
        given = iter(results)
        return [None if t.dtype is DType.TOKEN else next(given) for t in self.node.types]


def arrays_only(ctx: JaxContext, arrays: Sequence[Any]) -> list[Any]:
    """Operands of a node without its tokens."""
    pairs = zip(arrays, ctx.in_types, strict=True)
    return [a for a, t in pairs if t.dtype is not DType.TOKEN]


def _evaluate(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    """The value of a dim's text for sizes that may be symbolic in JAX."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left, sizes), _evaluate(right, sizes))
        case ast.Call(func=ast.Name(id="min" | "max" as kind), args=items):
            choose = cf.min_size if kind == "min" else cf.max_size
            return functools.reduce(choose, [_evaluate(item, sizes) for item in items])
        case _:
            known = ", ".join(sizes) or "none"
            raise TraceError(
                f"to_jax: a size is required to follow from the symbols of the inputs ({known}); "
                f"got {ast.unparse(node)}. Bind the symbols first (rlx.bind)."
            )
