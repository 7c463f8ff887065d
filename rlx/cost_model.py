"""What a graph costs on a device: work counted from the graph, speeds from a table or measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from rlx import dims
from rlx.device_names import split
from rlx.errors import UnboundDimError
from rlx.ir.graph import Graph, Node, inner_graphs
from rlx.passes.bind_dims import bind
from rlx.passes.decompose import decompose

_FREE = frozenset({"input", "param", "constant", "reshape", "copy", "stop_gradient"})


@final
@dataclass(frozen=True, kw_only=True)
class BackendCostModel:
    """How fast a device is.

    Attributes:
        matmul_gflops: 10⁹ floating-point operations per second in matrix products, f32.
        memory_gb_per_s: 10⁹ bytes per second between memory and the device's cores.
        dispatch_us: microseconds that one call takes on top.
        node_us: microseconds that every node takes on top, where a backend runs node by node.
    """

    matmul_gflops: float
    memory_gb_per_s: float
    dispatch_us: float
    node_us: float = 0.0


_MODELS = {
    "cpu": BackendCostModel(matmul_gflops=60, memory_gb_per_s=15, dispatch_us=5),
    "cuda": BackendCostModel(matmul_gflops=20_000, memory_gb_per_s=1_000, dispatch_us=30),
    "rocm": BackendCostModel(matmul_gflops=20_000, memory_gb_per_s=1_000, dispatch_us=30),
    "tpu": BackendCostModel(matmul_gflops=40_000, memory_gb_per_s=800, dispatch_us=60),
    "interpret": BackendCostModel(matmul_gflops=20, memory_gb_per_s=2, dispatch_us=20, node_us=10),
}
"""Typical figures of a kind of device; ``devices.measure_cost_model`` gives those of one."""

_UNKNOWN = BackendCostModel(matmul_gflops=60, memory_gb_per_s=15, dispatch_us=50)


@final
@dataclass(frozen=True)
class GraphWork:
    """What a graph does, counted over its primitive ops.

    Attributes:
        matmul_flops: operations in matrix products and convolutions: 2·m·k·n each.
        nbytes: read and written by all nodes, without fusion.
        nodes: how many nodes do work; a loop's body counts once for each step.
    """

    matmul_flops: float
    nbytes: float
    nodes: float

    def plus(self, other: GraphWork) -> GraphWork:
        """Both."""
        return GraphWork(
            self.matmul_flops + other.matmul_flops,
            self.nbytes + other.nbytes,
            self.nodes + other.nodes,
        )

    def times(self, count: int) -> GraphWork:
        """This, so many times."""
        return GraphWork(self.matmul_flops * count, self.nbytes * count, self.nodes * count)


_NOTHING = GraphWork(0.0, 0.0, 0.0)


def cost_model_of(device: str) -> BackendCostModel:
    """The typical figures of a device's kind."""
    return _MODELS.get(split(device)[0], _UNKNOWN)


def count_work(graph: Graph, binding: Mapping[str, int] | None = None) -> GraphWork:
    """Count the work of a graph. A ``while`` counts one step, a ``cond`` its dearest branch.

    Args:
        graph: any graph; symbols are bound by ``binding``.
        binding: symbol → size.

    Raises:
        UnboundDimError: symbols are left.
    """
    total = _NOTHING
    for work in work_by_op(graph, binding).values():
        total = total.plus(work)
    return total


def work_by_op(graph: Graph, binding: Mapping[str, int] | None = None) -> dict[str, GraphWork]:
    """Count the work of a graph's primitive ops by name; an op that holds graphs has their work.

    Args:
        graph: any graph; symbols are bound by ``binding``.
        binding: symbol → size.

    Raises:
        UnboundDimError: symbols are left.
    """
    static = bind(graph, binding) if binding else graph
    if static.symbols:
        raise UnboundDimError(
            f"cost of {graph.name}: sizes are required; {', '.join(static.symbols)} have none. "
            "Pass binding={symbol: size}."
        )
    whole = decompose(static, lambda op: True)
    known: dict[int, GraphWork] = {}
    by_op: dict[str, GraphWork] = {}
    for inner in whole.all_graphs():
        by_op, total = {}, _NOTHING
        for node in inner.nodes():
            if node.op.op_name not in _FREE:
                work = _node_work(node, known)
                total = total.plus(work)
                by_op[node.op.op_name] = by_op.get(node.op.op_name, _NOTHING).plus(work)
        known[id(inner)] = total
    return by_op  # of the graph itself, which comes last


def estimate_graph_cost(
    graph: Graph,
    model: BackendCostModel | str = "cpu",
    binding: Mapping[str, int] | None = None,
) -> float:
    """Estimate the seconds of one call: products at their speed, all else at the memory's.

    Args:
        graph: any graph; symbols are bound by ``binding``.
        model: a device's figures, or its name for the typical ones of its kind.
        binding: symbol → size.

    Raises:
        UnboundDimError: symbols are left.
    """
    speeds = cost_model_of(model) if isinstance(model, str) else model
    work = count_work(graph, binding)
    return (
        work.matmul_flops / (speeds.matmul_gflops * 1e9)
        + work.nbytes / (speeds.memory_gb_per_s * 1e9)
        + speeds.dispatch_us * 1e-6
        + work.nodes * speeds.node_us * 1e-6
    )


def _node_work(node: Node, known: Mapping[int, GraphWork]) -> GraphWork:
    op = node.op
    held = [known[id(g)] for g in inner_graphs(op)]
    if held:
        if op.op_name == "cond":
            return max(held, key=lambda work: (work.matmul_flops, work.nbytes))
        total = _NOTHING
        for work in held:
            total = total.plus(work)
        length = op.attributes().get("length", 1)
        return total.times(dims.evaluate(length, {}))
    moved = sum(v.type.nbytes for v in node.inputs) + sum(t.nbytes for t in node.types)
    return GraphWork(_flops(node), moved, 1)


def _flops(node: Node) -> float:
    """2·m·k·n of a product or a convolution, nothing for any other node."""
    attributes = node.op.attributes()
    result = math.prod(dims.evaluate(d, {}) for d in node.types[0].shape)
    if node.op.op_name == "dot_general":
        shape = node.inputs[0].type.shape
        contracted: tuple[int, ...] = attributes["lhs_contracting"]
        return 2.0 * result * math.prod(dims.evaluate(shape[i], {}) for i in contracted)
    if node.op.op_name == "conv_general_dilated":
        kernel = node.inputs[1].type.shape
        spec: tuple[int, ...] = attributes["rhs_spec"]
        window = [dims.evaluate(kernel[i], {}) for i in spec[1:]]  # input features, spatial axes
        return 2.0 * result * math.prod(window)
    return 0.0
