"""Decides how the nodes of a graph over several devices are carried out.

XLA divides what it knows. A kernel is a call that it does not see into: outside of a
``shard_map`` it gathers the operands and runs the kernel on every device with all of them. So
nodes whose rows are computed apart from each other are divided here (``spread_rows``), kernels are
taken inside of ``shard_map``, where types are those of one shard, and elsewhere only where an
option asks for one or nothing else carries the node out; the report says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.plan import Implementation, Refusal, Refusals
from rlx.ir.rewrite import rewrite, rule
from rlx.ops.collective import ShardMap
from rlx.options.dispatch import KernelDispatch, KernelPolicy
from rlx.passes.legalize import Claim, Legalization, examine
from rlx.passes.spread_rows import divided
from rlx.sharding import Mesh, mesh_of

ChooseBy = Callable[[Node, KernelDispatch], "Implementation | Refusals"]


def examine_on_devices(
    graph: Graph,
    choose: ChooseBy,
    dispatch: KernelDispatch,
    platform: str,
    *,
    claim: Claim | None = None,
) -> Legalization:
    """Decide as ``legalize.examine`` does, for one device or for those of the graph's mesh.

    Args:
        graph: MIR.
        choose: the backend's choice for a node under a dispatch.
        dispatch: which implementations the options allow.
        platform: what is decided for.
        claim: which nodes may be carried out as they are; None where every node may.

    Raises:
        ShapeError: the graph names meshes of different sizes.
    """

    def alone(node: Node) -> Implementation | Refusals:
        return choose(node, dispatch)

    mesh = mesh_of(graph)
    if mesh is None or mesh.size == 1:
        return examine(graph, alone, platform, claim=claim)
    found_mesh = mesh

    def has_kernel(node: Node) -> bool:
        made = alone(node)
        return isinstance(made, Implementation) and made.kind == "kernel"

    def divide(node: Node) -> tuple[Value, ...] | None:
        return divided(node, found_mesh, has_kernel)

    graph = rewrite(graph, divide, nested=False)
    inside: dict[Node, Implementation | Refusals] = {}
    bodies: dict[Graph, Graph] = {}

    @rule(ShardMap)
    def settle(node: Node) -> tuple[Value, ...] | None:
        op = node.op
        if not isinstance(op, ShardMap):
            return None
        found = bodies.get(op.body)
        if found is None:
            legal = examine(op.body, alone, platform, claim=claim)
            inside.update(legal.plan.implementations)
            found = bodies[op.body] = bodies[legal.graph] = legal.graph
        if found is op.body:
            return None
        return make_node(op.replace(body=found), node.inputs, node.location).results

    def spread(node: Node) -> Implementation | Refusals:
        found = inside.get(node)
        return _outside(node, choose, dispatch, mesh) if found is None else found

    return examine(rewrite(graph, settle), spread, platform, claim=claim)


def _outside(
    node: Node, choose: ChooseBy, dispatch: KernelDispatch, mesh: Mesh
) -> Implementation | Refusals:
    """The choice for a node that XLA divides over a mesh."""
    found = choose(node, dispatch)
    if isinstance(found, Refusals) or found.kind != "kernel":
        return found
    asked = found.name in dispatch.forced
    asked = asked or dispatch.policy_for(node.op.op_name) is KernelPolicy.FORCE_NATIVE
    common = dataclasses.replace(
        dispatch,
        forced=frozenset[str](),
        common_ops=dispatch.common_ops | {node.op.op_name},
    )
    other = None if asked else choose(node, common)
    if other is None or isinstance(other, Refusals):
        note = Refusal(
            "sharding",
            f"XLA does not divide {found.name}: each of the {mesh.size} devices of {mesh} gathers "
            "all operands and computes the whole result; call it in a shard_map",
        )
        return dataclasses.replace(found, refused=(*found.refused, note))
    reason = Refusal(
        found.name,
        f"XLA would not divide it over {mesh}, but gather its operands on every device; call it "
        "in a shard_map",
    )
    return dataclasses.replace(other, refused=(*found.refused, reason))
