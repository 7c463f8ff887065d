"""A symbolic graph becomes one of padded sizes that computes the same in every element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DimError, ShapeError
from rlx.ir.graph import Graph, Node, Value, inner_graphs, make_node
from rlx.ir.location import Location
from rlx.ops.external import External
from rlx.ops.io import Input, Param
from rlx.passes.pad_dims import (
    draws,
    elementwise,
    loops,
    movement,
    places,
    reductions,
    rows,
    windows,
)
from rlx.passes.pad_dims.context import Padding, Results, Rule, as_padded, rule_for
from rlx.passes.pad_dims.layout import Padded, Refusal, plain
from rlx.types import Dim

EXTENT = "__rlx_extent_"
"""Beginning of the names of the inputs that hold actual sizes."""

FAMILIES = (draws, elementwise, loops, movement, places, reductions, rows, windows)
"""Modules whose rules are registered by being imported."""


@final
@dataclass(frozen=True)
class Unsafe:
    """Why a graph cannot be padded.

    Attributes:
        op: name of the op.
        symbols: the padded dims that reach it.
        location: the user's line.
        reason: in words.
    """

    op: str
    symbols: tuple[str, ...]
    location: Location
    reason: str

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        names = ", ".join(repr(name) for name in self.symbols)
        axis = f"dynamic axis {names}" if len(self.symbols) == 1 else f"dynamic axes {names}"
        return f"{self.op} over {axis}{where}: {self.reason}"

    def error(self) -> DimError:
        """The refusal as an error."""
        return DimError(
            f"DimError [unsafe padding]: {self}. Every op is required to be proven unchanged by "
            "padding. Compile this dim exactly (leave it out of buckets), or change the op.",
            label="unsafe padding",
        )


@final
@dataclass(frozen=True)
class PaddedGraph:
    """A graph for padded sizes.

    Attributes:
        graph: static; its last inputs are the actual sizes, i32[], in the order of ``symbols``.
        symbols: the padded symbols.
        outputs: factors of every axis of every output, for cutting the padding off.
    """

    graph: Graph
    symbols: tuple[str, ...]
    outputs: tuple[tuple[tuple[Dim, ...], ...], ...]


def pad_dims(graph: Graph, sizes: Mapping[str, int]) -> PaddedGraph | Unsafe:
    """Pad every dim of a graph to the sizes it has with padded symbols.

    Elements of the unpadded tensors keep their values; what stands beside them is unknown, and
    no element depends on it: where an op takes elements of a padded axis together, the padding
    is first overwritten by what does not count (zero in a sum, −inf in a maximum …).

    Args:
        graph: all its symbols are in ``sizes``; inputs may hold anything in their padding.
        sizes: symbol → padded size.

    Returns:
        The graph, or the first op that cannot be shown to be safe.

    Raises:
        DimError: a symbol has no size, or a size below its bound.
    """
    missing = [name for name in graph.symbols if name not in sizes]
    if missing:
        raise DimError(
            f"pad_dims {graph.name}: a padded size is required for every symbol; none given for "
            f"{', '.join(missing)}. Bind them first."
        )
    names = tuple(name for name in graph.symbols)
    extents: dict[str, Value] = {
        name: Input(name=EXTENT + name, dtype=DType.I32, shape=())() for name in names
    }
    ctx = Padding(sizes, extents)
    env: dict[Value, Padded] = {}
    for leaf in (*graph.inputs, *graph.params):
        env[leaf] = _leaf(ctx, leaf)
    if graph.effects:
        return Unsafe("an effect", names, graph.effects[0].node.location, "it sees the padding")
    results = _walk(ctx, graph, env)
    if isinstance(results, Unsafe):
        return results
    inputs = [env[v].value for v in graph.inputs]
    made = Graph(
        [*inputs, *extents.values()],
        [env[v].value for v in graph.params],
        [r.value for r in results],
        name=graph.name,
    )
    outputs = tuple(tuple(r.factors(a) for a in range(len(r.shape))) for r in results)
    return PaddedGraph(made, names, outputs)


def _leaf(ctx: Padding, leaf: Value) -> Padded:
    shape = leaf.type.shape
    if leaf.type.is_static:
        return Padded(leaf, shape, plain(shape))
    assert isinstance(leaf.node.op, Input | Param)
    (value,) = make_node(ctx.bound(leaf.node.op), (), leaf.node.location).results
    return as_padded(value, shape)


def walked(ctx: Padding, graph: Graph, env: Mapping[Value, Padded]) -> Sequence[Padded] | Refusal:
    """Results of a graph inside an op."""
    results = _walk(ctx, graph, dict(env))
    if isinstance(results, Unsafe):
        return Refusal(f"inside it, {results}", results)
    return results


def inlined(ctx: Padding, graph: Graph, inputs: Sequence[Padded]) -> Results:
    """Results of a graph whose nodes join the padded graph."""
    env = {
        leaf: Padded(x.value, leaf.type.shape, x.axes)
        for leaf, x in zip(graph.inputs, inputs, strict=True)
    }
    return walked(ctx, graph, env)


def decomposed(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    """Results of an op by what it is made of."""
    if not node.op.has_decompose:
        return Refusal("no rule says what padding does to it")
    leaves: list[Value] = [
        Input(name=f"x{i}", dtype=v.type.dtype, shape=v.type.shape)()
        for i, v in enumerate(node.inputs)
    ]
    made = node.op.decompose(*leaves)
    outputs = (made,) if isinstance(made, Value) else tuple(made)
    return inlined(ctx, Graph(leaves, (), outputs), inputs)


def _walk(ctx: Padding, graph: Graph, env: dict[Value, Padded]) -> list[Padded] | Unsafe:
    for node in graph.nodes():
        if node.results and all(v in env for v in node.results):
            continue
        inputs = [env[v] for v in node.inputs]
        made = _node(ctx, node, inputs)
        if isinstance(made, Refusal):
            if isinstance(made.inner, Unsafe):  # the innermost op says most
                found = made.inner
                return found if found.location else replace(found, location=node.location)
            return Unsafe(_label(node), _symbols(node), node.location, made.reason)
        env.update(zip(node.results, made, strict=True))
    return [env[v] for v in graph.outputs]


def _node(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    if not _symbols(node) and not _has_dims(node):
        made = make_node(node.op, [x.value for x in inputs], node.location)
        return [
            Padded(v, t.shape, plain(t.shape))
            for v, t in zip(made.results, node.types, strict=True)
        ]
    rule = rule_for(node.op) or decomposed
    made = _carried_out(rule, ctx, node, inputs)
    if not isinstance(made, Refusal):
        return made
    moved = [places.settled(ctx, x) for x in inputs]
    if all(new is old for new, old in zip(moved, inputs, strict=True)):
        return made
    plainly = [x for x in moved if isinstance(x, Padded)]
    again = _carried_out(rule, ctx, node, plainly) if len(plainly) == len(moved) else made
    return made if isinstance(again, Refusal) else again


def _carried_out(rule: Rule, ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    try:
        return rule(ctx, node, inputs)
    except (DimError, ShapeError) as error:  # such as a bucket that a reshape cannot divide
        return Refusal(f"it cannot be carried out at the padded sizes: {error}")


def _label(node: Node) -> str:
    return node.op.name if isinstance(node.op, External) else node.op.op_name


def _symbols(node: Node) -> tuple[str, ...]:
    found = {s for v in node.inputs for s in v.type.symbols}
    found.update(s for t in node.types for s in t.symbols)
    return tuple(sorted(found))


def _has_dims(node: Node) -> bool:
    """Whether attributes, inner graphs included, hold symbols."""
    pending: list[object] = list(node.op.attributes().values())
    while pending:
        value = pending.pop()
        if isinstance(value, dims.DimExpr):
            return True
        if isinstance(value, tuple):
            pending += list(value)  # pyright: ignore[reportUnknownArgumentType]
    return any(
        _symbols(inner) or _has_dims(inner)
        for graph in inner_graphs(node.op)
        for whole in graph.all_graphs()
        for inner in whole.nodes()
    )
