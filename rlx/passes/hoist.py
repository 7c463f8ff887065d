"""Computes before a loop what is the same in every turn.

Up to four rows of bf16 times a small matrix that a loop only reads are multiplied in f32 on the
CPU, where no kernel takes them: the matrix is widened once, before the loop, and XLA's product of
f32 takes 0.85 to 0.95 of the time of the one of bf16 (more rows or larger matrices lose). Products
of bf16 are exact in f32, so that the meaning stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.rewrite import Rule, substitute, sweep
from rlx.ops.control_flow import Scan, While
from rlx.ops.dot import DotGeneral
from rlx.ops.io import Constant, Input
from rlx.ops.shape import (
    BroadcastInDim,
    Expand,
    Iota,
    Narrow,
    Reshape,
    Slice,
    Transpose,
)
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.purity import Purity

_CHEAP = (BroadcastInDim, Expand, Iota, Narrow, Reshape, Slice, Transpose, Constant, Input)
"""What only repeats or moves its operand: computing it again costs less than reading it."""

_MAX_GROWTH = 4
_SMALL_BYTES = 1024

_RESULTS = (DType.BF16, DType.F32)

WIDENED_ROWS = (2, 4)
"""Fewest and most rows of a product in a loop that gains from a matrix in f32."""

WIDENED_ELEMENTS = 2**16
"""Most elements of such a matrix."""


@final
@dataclass(frozen=True, kw_only=True)
class HoistInvariants(AbstractPass):
    """Moves what depends on a loop's constants alone out of scan and while.

    Only what has no effect, is not drawn and is not large beside what it comes from: a value that
    is hoisted is read from memory in every turn. Small matrices of bf16 are widened before a scan.
    """

    name: ClassVar[str] = "hoist-invariants"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if graph.symbols:  # sizes decide what is worth it
            return graph
        purity = Purity()
        count = 0

        def visit(node: Node) -> tuple[Value, ...] | None:
            nonlocal count
            op = node.op
            if isinstance(op, Scan):
                made = _from_scan(op, node, purity)
                wide = _with_wide_products(node if made is None else made[0], ctx)
                if wide is not None and isinstance(wide.op, Scan):
                    more = _from_scan(wide.op, wide, purity)
                    counts = [part[1] for part in (made, more) if part is not None]
                    made = (more[0] if more is not None else wide, sum(counts))
            elif isinstance(op, While):
                made = _from_while(op, node, purity)
            else:
                return None
            if made is None:
                return None
            count += made[1]
            return made[0].results

        def start() -> Rule:
            return visit

        result = sweep(graph, start)
        if count:
            ctx.note(f"{count} values are computed once instead of in every turn of a loop")
        return result


def _from_scan(op: Scan, node: Node, purity: Purity) -> tuple[Node, int] | None:
    consts = op.num_consts
    split = _hoisted(op.body, consts, node.inputs[:consts], purity)
    if split is None:
        return None
    body, values = split
    made = op.replace(body=body, num_consts=consts + len(values))
    inputs = (*node.inputs[:consts], *values, *node.inputs[consts:])
    return Node(made, inputs, node.types, node.location), len(values)


def _with_wide_products(node: Node, ctx: PassContext) -> Node | None:
    """The scan with products of f32 for few rows of bf16; None where there are none."""
    op = node.op
    if ctx.platform != "cpu" or not isinstance(op, Scan):
        return None
    fixed = set(op.body.inputs[: op.num_consts])

    def visit(node: Node) -> Value | None:
        op = node.op
        if not isinstance(op, DotGeneral) or node.inputs[1] not in fixed:
            return None
        if not _gains_from_f32(op, node) or (ctx.has_kernel is not None and ctx.has_kernel(node)):
            return None
        wide = [v.convert(DType.F32) for v in node.inputs]
        plain = op.replace(preferred_element_type=None)
        return make_node(plain, wide, node.location).results[0].convert(node.types[0].dtype)

    body = sweep(op.body, lambda: visit, nested=False)
    if body is op.body:
        return None
    return Node(op.replace(body=body), node.inputs, node.types, node.location)


def _gains_from_f32(op: DotGeneral, node: Node) -> bool:
    """Whether a product is of few rows of bf16 with a small matrix [k, n]."""
    x, matrix = node.inputs
    if not x.dtype is matrix.dtype is DType.BF16 or node.types[0].dtype not in _RESULTS:
        return False
    if x.rank != 2 or matrix.rank != 2 or op.algorithm is not None:
        return False
    if op.lhs_contracting != (1,) or op.rhs_contracting != (0,):
        return False
    rows, elements = x.shape[0], matrix.type.nbytes // DType.BF16.itemsize
    least, most = WIDENED_ROWS
    return isinstance(rows, int) and least <= rows <= most and elements <= WIDENED_ELEMENTS


def _from_while(op: While, node: Node, purity: Purity) -> tuple[Node, int] | None:
    first, second = op.cond_consts, op.cond_consts + op.body_consts
    for_cond, for_body, carry = node.inputs[:first], node.inputs[first:second], node.inputs[second:]
    in_cond = _hoisted(op.cond, first, for_cond, purity)
    in_body = _hoisted(op.body, op.body_consts, for_body, purity)
    if in_cond is None and in_body is None:
        return None
    cond, more_cond = in_cond or (op.cond, ())
    body, more_body = in_body or (op.body, ())
    made = op.replace(
        cond=cond,
        body=body,
        cond_consts=first + len(more_cond),
        body_consts=op.body_consts + len(more_body),
    )
    inputs = (*for_cond, *more_cond, *for_body, *more_body, *carry)
    return Node(made, inputs, node.types, node.location), len(more_cond) + len(more_body)


def _hoisted(
    body: Graph, consts: int, given: Sequence[Value], purity: Purity
) -> tuple[Graph, tuple[Value, ...]] | None:
    """The body that takes more constants, and their values outside; None where there are none."""
    found = _worth_hoisting(body, consts, purity)
    if not found:
        return None
    outside: dict[Value, Value] = dict(zip(body.inputs[:consts], given, strict=True))
    needed = _behind(found)
    for node in body.nodes():
        if node in needed and not isinstance(node.op, Input):
            made = make_node(node.op, [outside[v] for v in node.inputs], node.location)
            outside.update(zip(node.results, made.results, strict=True))
    taken = {v.name for v in body.inputs}
    leaves: dict[Value, Value] = {}
    for value in found:
        name = f"hoisted_{len(leaves)}"
        while name in taken:
            name += "_"
        taken.add(name)
        leaves[value] = Input(name=name, dtype=value.dtype, shape=value.shape)()
    inputs = (*body.inputs[:consts], *leaves.values(), *body.inputs[consts:])
    listed = Graph(inputs, body.params, body.outputs, body.effects, name=body.name)
    return substitute(listed, leaves), tuple(outside[v] for v in found)


def _worth_hoisting(body: Graph, consts: int, purity: Purity) -> list[Value]:
    """The invariant values that varying nodes read, as far as they are worth it, in order."""
    sources: dict[Node, int] = {v.node: v.type.nbytes for v in body.inputs[:consts]
                                if v.dtype is not DType.TOKEN}  # fmt: skip
    varying: list[Node] = []
    for node in body.nodes():
        if node in sources:
            continue
        invariant = (
            bool(node.inputs or isinstance(node.op, Constant))
            and all(v.node in sources for v in node.inputs)
            and not purity.is_left_to_device(node)
        )
        if invariant:
            sources[node] = sum(sources[n] for n in {v.node for v in node.inputs})
        else:
            varying.append(node)
    wanted: set[Value] = set()
    waiting = [v for n in varying for v in n.inputs] + list(body.outputs)
    seen: set[Value] = set()
    while waiting:
        value = waiting.pop()
        node = value.node
        if value in seen or node not in sources or isinstance(node.op, Input):
            continue
        seen.add(value)
        limit = max(_SMALL_BYTES, _MAX_GROWTH * sources[node])
        if isinstance(node.op, _CHEAP) or not sources[node] or value.type.nbytes > limit:
            waiting += node.inputs
        else:
            wanted.add(value)
    return [v for n in body.nodes() for v in n.results if v in wanted]


def _behind(values: Sequence[Value]) -> set[Node]:
    found: set[Node] = set()
    stack = [v.node for v in values]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [v.node for v in node.inputs]
    return found
