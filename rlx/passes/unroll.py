"""Writes short loops out, and says which long ones suit a GPU badly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.cost_model import count_work
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.rewrite import rewrite, rule, splice
from rlx.ops.control_flow import Scan
from rlx.ops.shape import BroadcastInDim, Concatenate, Reshape, Slice
from rlx.options.precision import OpClass
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.precision.classes import class_of

MAX_NODES = 4096
"""Most nodes that a loop is written out into."""

_GPUS = ("cuda", "rocm")
_LONG = 100_000
"""Steps from which a scan on a GPU is worth a word, when a step does little."""

_SMALL_STEP = 10_000
"""Flops below which a step takes less time than the start of its kernels."""


@final
@dataclass(frozen=True, kw_only=True)
class UnrollScans(AbstractPass):
    """Replaces a short scan by its steps, one after the other.

    It is written out when it has at most ``max_length`` steps and makes at most 4,096 nodes;
    others stay loops, which XLA runs natively and our lowering unrolls by eight on GPUs. A scan of
    many tiny steps on a GPU is noted: every step starts kernels there.

    Attributes:
        max_length: most steps; 0 unrolls nothing.
    """

    name: ClassVar[str] = "unroll-scans"
    max_length: int = 0

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if ctx.platform in _GPUS:
            for text in _suited_to_a_cpu(graph):
                ctx.note(text)
        if not self.max_length:
            return graph
        counts = [0, 0]

        @rule(Scan)
        def unroll(node: Node) -> tuple[Value, ...] | None:
            op = node.op
            if not isinstance(op, Scan) or not isinstance(op.length, int):
                return None
            size = op.length * op.body.node_count(nested=True)
            if not 0 < op.length <= self.max_length or size > MAX_NODES:
                return None
            counts[0] += 1
            counts[1] += op.length
            return steps(op, node.inputs)

        made = rewrite(graph, unroll)
        if counts[0]:
            ctx.note(f"{counts[0]} scans written out, {counts[1]} steps")
        return made


def steps(op: Scan, operands: Sequence[Value]) -> tuple[Value, ...]:
    """The results of a scan of a known, positive length, step by step."""
    length = int(str(op.length))
    first, last = op.num_consts + op.num_carry, len(operands) - len(op.body.effects)
    consts, xs = operands[: op.num_consts], operands[first:last]
    carry, tokens = tuple(operands[op.num_consts : first]), tuple(operands[last:])
    rows: list[list[Value]] = [[] for _ in op.body.outputs[op.num_carry :]]
    for turn in range(length):
        step = length - 1 - turn if op.reverse else turn
        parts = [row_of(x, step) for x in xs]
        made = splice(op.body, [*consts, *carry, *parts, *tokens])
        outputs, tokens = made[: len(op.body.outputs)], made[len(op.body.outputs) :]
        carry = outputs[: op.num_carry]
        for column, value in zip(rows, outputs[op.num_carry :], strict=True):
            column.append(value)
    ys = (stacked(column[::-1] if op.reverse else column) for column in rows)
    return (*carry, *ys, *tokens)


def row_of(x: Value, step: int) -> Value:
    """The element of a value's first axis."""
    shape = x.shape
    part = Slice(
        start_indices=(step, *(0 for _ in shape[1:])),
        limit_indices=(step + 1, *shape[1:]),
        strides=(1,) * len(shape),
    )
    row = make_node(part, [x]).results
    return make_node(Reshape(shape=shape[1:]), row).results[0]


def stacked(column: Sequence[Value]) -> Value:
    """Values of one type along a new first axis."""
    rows = [
        make_node(
            BroadcastInDim(shape=(1, *v.shape), broadcast_dimensions=tuple(range(1, v.rank + 1))),
            [v],
        ).results[0]
        for v in column
    ]
    return make_node(Concatenate(axis=0), rows).results[0]


def _suited_to_a_cpu(graph: Graph) -> list[str]:
    """A line on each scan of many steps that do little."""
    found: list[str] = []
    for inner in graph.all_graphs():
        for node in inner.nodes():
            op = node.op
            if not isinstance(op, Scan) or not isinstance(op.length, int) or op.length < _LONG:
                continue
            flops = _flops(op.body)
            if flops < _SMALL_STEP:
                where = f" at {node.location}" if node.location else ""
                found.append(
                    f"scan of {op.length:,} steps with {flops:,.0f} flops per step{where}: each "
                    "step starts kernels on a GPU; run it on the CPU?"
                )
    return found


def _flops(body: Graph) -> float:
    """Operations of one step: those of products, and one for each element that is computed."""
    elements = sum(
        math.prod(d for d in t.shape if isinstance(d, int))
        for n in body.nodes()
        if class_of(n.op) in (OpClass.ELEMENTWISE, OpClass.REDUCTION)
        for t in n.types
    )
    return elements + (0.0 if body.symbols else count_work(body).matmul_flops)
