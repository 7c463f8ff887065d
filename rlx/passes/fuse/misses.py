"""Patterns of a graph that are not fused, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.fusion_report import MissedFusion, MissKind, MissReason
from rlx.ir.graph import Graph, Node, Value, inner_graphs
from rlx.ops.arithmetic import Add
from rlx.ops.fused import FusedMatmulBiasAct
from rlx.passes.fuse.forms import (
    NESTING,
    Product,
    Uses,
    activation_of,
    biased,
    gate_of,
    half_of,
    other_activation,
    product_of,
)
from rlx.passes.fuse.products import shared_groups


def find_missed(graph: Graph) -> Iterator[MissedFusion]:
    """The missed patterns of a graph and of the bodies of its loops, in order."""
    everything = graph.all_graphs()
    nesting = (n.op for g in everything for n in g.nodes() if isinstance(n.op, NESTING))
    bodies = {body for op in nesting for body in inner_graphs(op)}
    for inner in everything:
        if inner is graph or inner in bodies:
            yield from _of_one(inner)


def _of_one(graph: Graph) -> Iterator[MissedFusion]:
    uses = Uses(graph)
    for node in graph.nodes():
        if len(node.results) != 1:
            continue
        product = product_of(node.results[0])
        if product is not None:
            reason = _product_reason(uses, product)
            if reason is not None:
                yield _missed("matmul_bias_act", node, reason)
        if isinstance(node.op, FusedMatmulBiasAct) and node.op.activation is None:
            reason = _epilogue_reason(uses, node)
            if reason is not None:
                yield _missed("matmul_bias_act", node, reason)
        gate = gate_of(node)
        if gate is not None:
            reason = _gate_reason(uses, *gate)
            if reason is not None:
                yield _missed("swiglu", node, reason)
    for group in shared_groups(graph):
        reason = MissReason(MissKind.SHARED_MATMUL_COUNT, {"count": len(group)})
        yield _missed("shared_input_matmul", group[0].value.node, reason)


def _product_reason(uses: Uses, product: Product) -> MissReason | None:
    users = uses.users(product.value)
    if not users:
        return None  # a product that is a result has nothing to be fused with
    sums = [u for u in users if isinstance(u.op, Add) and _adds_bias(u, product.value)]
    if sums:
        alone = uses.only(product.value)
        return MissReason(MissKind.NOT_FUSED if alone else MissKind.MULTI_CONSUMER)
    if len(users) > 1 or product.value in uses.outputs:
        return None
    (user,) = users
    if isinstance(user.op, Add):
        other = user.inputs[1] if user.inputs[0] is product.value else user.inputs[0]
        return MissReason(MissKind.BIAS_RANK_TOO_HIGH, {"rank": other.rank})
    return MissReason(MissKind.NON_ADD_BIAS_CONSUMER)


def _adds_bias(node: Node, value: Value) -> bool:
    found = biased(node, node.types[0].rank - 1)
    return found is not None and found[0] is value


def _epilogue_reason(uses: Uses, node: Node) -> MissReason | None:
    """Why no activation was taken into a fused product."""
    value = node.results[0]
    users = uses.users(value)
    known = [u for u in users if activation_of(u.op)]
    other = [other_activation(u.op) for u in users if other_activation(u.op)]
    if known and not uses.only(value):
        return MissReason(MissKind.MULTI_CONSUMER)
    if other and uses.only(value):
        return MissReason(MissKind.UNSUPPORTED_EPILOGUE_ACTIVATION, {"activation": other[0]})
    return None


def _gate_reason(uses: Uses, silu: Value, gate: Value, up: Value) -> MissReason | None:
    halves = half_of(gate), half_of(up)
    if halves[0] is not None and halves[1] is not None and halves[0][0] is halves[1][0]:
        if halves[0][1] == halves[1][1]:
            return None
        if not uses.only(silu):
            return MissReason(MissKind.MULTI_CONSUMER)
        first = halves[0][1] == 0
        return MissReason(MissKind.SWIGLU_GATE_BEFORE_UP if first else MissKind.NOT_FUSED)
    first, second = product_of(gate), product_of(up)
    if first is None or second is None:
        return MissReason(MissKind.SWIGLU_NOT_SHARED_INPUT)
    shared = first.x is second.x
    return MissReason(MissKind.NOT_FUSED if shared else MissKind.SWIGLU_NOT_SHARED_INPUT)


def _missed(pattern: str, node: Node, reason: MissReason) -> MissedFusion:
    where = f" at {node.location}" if node.location else ""
    context = ", ".join(str(v.type) for v in node.inputs)
    return MissedFusion(pattern, f"{node.op.op_name}{where}", reason, context)
