"""Decides how each node is carried out; what has no kernel and no rule is decomposed."""

from __future__ import annotations

from collections.abc import Callable

from rlx.errors import LoweringError
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Lir, Plan, Refusal, Refusals
from rlx.ir.rewrite import rewrite
from rlx.passes.decompose import decompose

LEAVES = ("input", "param")
Choose = Callable[[Node], "Implementation | Refusals"]


def legalize(graph: Graph, choose: Choose, platform: str) -> Lir:
    """Return the LIR of a static graph.

    Args:
        graph: MIR.
        choose: the backend's choice for one node.
        platform: what is decided for.

    Raises:
        LoweringError: nodes without any implementation; all of them with their refusals.
    """
    decomposed: dict[str, int] = {}
    choices: dict[Node, Implementation | Refusals] = {}

    def decide(node: Node) -> Implementation | Refusals:
        found = choices.get(node)
        if found is None:
            found = choices[node] = choose(node)
        return found

    def step(node: Node) -> Value | tuple[Value, ...] | None:
        if node.op.op_name in LEAVES:
            return None
        choice = decide(node)
        if isinstance(choice, Refusals) or choice.kind != "decomposition":
            return None
        decomposed[node.op.op_name] = decomposed.get(node.op.op_name, 0) + 1
        made: Value | tuple[Value, ...] = node.op.decompose(*node.inputs)
        return made

    graph = rewrite(graph, step)
    plan: dict[Node, Implementation] = {}
    missing: dict[str, None] = {}  # each line once, in order
    for inner in graph.all_graphs():
        for node in inner.nodes():
            if node.op.op_name in LEAVES:
                continue
            choice = decide(node)
            if isinstance(choice, Refusals):
                missing[_missing(node, choice.refused, platform)] = None
            else:
                plan[node] = choice
    if missing:
        raise LoweringError("\n".join(missing))
    made_plan = Plan(
        plan,
        decomposed,
        tuple((v.name, v.type) for v in graph.inputs),
        tuple((v.name, v.type) for v in graph.params),
        tuple(v.type for v in graph.outputs),
        platform,
    )
    return Lir(graph, made_plan)


def decompose_unsupported(graph: Graph, supported: Callable[[Op], bool]) -> Graph:
    """Decompose every composite op that is not supported as it is."""
    return decompose(graph, lambda op: op.op_name not in LEAVES and not supported(op))


def _missing(node: Node, refused: tuple[Refusal, ...], platform: str) -> str:
    where = f" at {node.location}" if node.location else ""
    reasons = "".join(f"\n  {refusal}" for refusal in refused)
    return f"no lowering for op {node.op.op_name!r} on {platform!r}{where}.{reasons}"
