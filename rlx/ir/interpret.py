"""Run a graph in NumPy: the meaning that everything else is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlx.errors import RunError, did_you_mean
from rlx.host_values import python_array, refuse_masked
from rlx.ir.graph import Graph, Node, Value
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.op import Op
    from rlx.options.rng import RngOptions


def interpret(
    graph: Graph,
    inputs: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    *,
    rng: RngOptions | None = None,
) -> list[Array]:
    """Compute a graph's outputs in NumPy.

    Args:
        graph: any graph; symbolic dims are bound from the arrays.
        inputs: one array per graph input, by name, in the declared dtype and shape.
        params: one array per graph param, by name.
        rng: the policy that random ops draw by; None is ``RngOptions()``.

    Returns:
        One array per output, in the graph's declared dtypes.

    Raises:
        RunError: a name is missing or unknown, or an array has another dtype or shape.
        SizesError: sizes contradict each other, or the traced function may do something else for
            them than the graph (`Graph.asked`, `Graph.keyed`).
        VerifyError: the graph breaks the rules of the IR.
        TraceError: the graph holds an opaque node that has no NumPy meaning.
    """
    from rlx.ir.verify import verify

    verify(graph)
    feeds = {
        **_checked(graph, "input", {} if inputs is None else inputs),
        **_checked(graph, "param", {} if params is None else params),
    }
    bound = graph
    if graph.symbols:
        from rlx.passes.bind_dims import bind_shapes

        bound = bind_shapes(graph, {name: tuple(array.shape) for name, array in feeds.items()})
    for leaf in (*bound.inputs, *bound.params):
        found = feeds[leaf.name]
        if tuple(found.shape) != leaf.type.shape or found.dtype != leaf.type.dtype.numpy:
            raise RunError(
                f"interpret: {leaf.name!r} is required to be {leaf.type}; "
                f"got {found.dtype}{list(found.shape)}. Convert or reshape it."
            )
    if rng is not None:
        from rlx.passes.base import PassContext
        from rlx.passes.bind_rng import BindRng

        bound = BindRng(rng=rng, hidden=False).run(bound, PassContext())
    try:
        return run(bound, [feeds[v.name] for v in (*bound.inputs, *bound.params)])
    except RecursionError as error:
        raise RunError(
            "interpret: graphs inside graphs are required to be nested less deeply than Python's "
            f"stack allows; {len(graph.all_graphs())} graphs are too deep. Inline calls with "
            "rlx.passes.InlineCalls(), or raise sys.setrecursionlimit."
        ) from error


def run(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """Evaluate a static graph on arrays for its inputs, then its params, in order."""
    leaves = (*graph.inputs, *graph.params)
    known: dict[Value, Any] = dict(zip(leaves, arrays, strict=True))
    remaining = _use_counts(graph)
    for node in graph.nodes():
        if node.results and node.results[0] in known:
            continue
        results = evaluate_node(node, [known[v] for v in node.inputs])
        known.update(zip(node.results, results, strict=True))
        for value in node.inputs:
            remaining[value] -= 1
            if not remaining[value]:
                del known[value]
    return [known[v] for v in graph.outputs]


def evaluate_node(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluate one node, and hold its results to the inferred types."""
    try:
        result = node.op.evaluate(*arrays)
    except MemoryError as error:
        raise RunError(
            f"interpret: {node!r} must fit in memory; {error}. Use smaller inputs."
        ) from error
    results = cast("tuple[Any, ...]", result if type(result) is tuple else (result,))
    return tuple(_as_type(node, r, t) for r, t in zip(results, node.types, strict=True))


def evaluate_decomposition(op: Op, arrays: Sequence[Array]) -> Any:
    """Evaluate a composite op by interpreting what it decomposes into."""
    from rlx.ir.attributes import Literal
    from rlx.ops.io import Input

    types = [Literal(a).type for a in arrays]
    leaves = [Input(name=str(i), dtype=t.dtype, shape=t.shape)() for i, t in enumerate(types)]
    made: Value | tuple[Value, ...] = op.decompose(*leaves)
    outputs = made if isinstance(made, tuple) else (made,)
    results = run(Graph(leaves, (), outputs), list(arrays))
    return tuple(results) if isinstance(made, tuple) else results[0]


def _as_type(node: Node, result: Any, wanted: TensorType) -> Array:
    array = np.asarray(result)
    if tuple(array.shape) != wanted.shape or array.dtype != wanted.dtype.numpy:
        raise RunError(
            f"{node.op.op_name}.evaluate: required {wanted} as infer says; "
            f"got {array.dtype}{list(array.shape)}. The op's definition is inconsistent."
        )
    return array


def _use_counts(graph: Graph) -> dict[Value, int]:
    counts: dict[Value, int] = {}
    for node in graph.nodes():
        for value in node.inputs:
            counts[value] = counts.get(value, 0) + 1
    for value in (*graph.outputs, *graph.effects, *graph.inputs, *graph.params):
        counts[value] = counts.get(value, 0) + 1
    return counts


def _checked(graph: Graph, role: str, given: Mapping[str, Any]) -> dict[str, Array]:
    leaves = graph.inputs if role == "input" else graph.params
    if not isinstance(cast("object", given), Mapping):
        raise RunError(
            f"interpret: {role}s are required as a mapping (name → array); "
            f"got {type(given).__name__}."
        )
    names = {leaf.name: leaf.type for leaf in leaves}
    unknown = [name for name in given if name not in names]
    missing = [name for name in names if name not in given]
    listing = ""
    if unknown or missing:
        listing = ", ".join(f"{leaf.name!r}: {leaf.type}" for leaf in leaves) or "none"
    if unknown:
        raise RunError(
            f"interpret: unknown {role} {unknown[0]!r}; {role}s are {listing}."
            f"{did_you_mean(unknown[0], names)}"
        )
    if missing:
        raise RunError(
            f"interpret: every {role} is required; missing {', '.join(map(repr, missing))}. "
            f"{role.capitalize()}s are {listing}."
        )
    arrays: dict[str, Array] = {}
    for leaf in leaves:
        value = given[leaf.name]
        refuse_masked(f"interpret: {role} {leaf.name!r}", value)
        if isinstance(value, bool | int | float | complex | list | tuple):
            where = f"interpret: {role} {leaf.name!r}"
            value = python_array(where, cast("object", value), leaf.type.dtype)
        arrays[leaf.name] = np.asarray(value)
    return arrays
