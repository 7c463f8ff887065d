"""Decides how each node is carried out; what has no kernel and no rule is decomposed.

A claim is a predicate on nodes, not on op names: the backend answers for each node, so that a
limit on an attribute (an axis that is not the last) is part of the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

from rlx.errors import DimError, KernelError, LoweringError
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Lir, Plan, Refusal, Refusals
from rlx.ir.rewrite import rewrite
from rlx.passes.decompose import decompose

LEAVES = ("input", "param")
Choose = Callable[[Node], "Implementation | Refusals"]
Claim = Callable[[Node], bool]


@final
@dataclass(frozen=True)
class Unsupported:
    """A node that nothing carries out.

    Attributes:
        node: the node, as it is after everything that can be decomposed was.
        refused: what was not taken, with reasons.
        demanded: whether an option demands a kernel for it.
    """

    node: Node
    refused: tuple[Refusal, ...]
    demanded: bool

    @property
    def where(self) -> str:
        """`` at model.py:3``, or nothing."""
        return f" at {self.node.location}" if self.node.location else ""


@final
@dataclass(frozen=True)
class Legalization:
    """What was decided for a graph.

    Attributes:
        graph: the graph in which what is carried out by its decomposition is decomposed.
        plan: how its nodes are carried out.
        unsupported: nodes without any way, in the order of the schedule.
    """

    graph: Graph
    plan: Plan
    unsupported: tuple[Unsupported, ...]


def legalize(graph: Graph, choose: Choose, platform: str, *, claim: Claim | None = None) -> Lir:
    """Return the LIR of a static graph.

    Args:
        graph: MIR.
        choose: the backend's choice for one node.
        platform: what is decided for.
        claim: which nodes may be carried out as they are; None where every node may.

    Raises:
        LoweringError: nodes without any implementation; all of them with their refusals.
        KernelError: every such node is one for which an option demands a kernel.
    """
    return require_legal(examine(graph, choose, platform, claim=claim), claim=claim)


def examine(
    graph: Graph, choose: Choose, platform: str, *, claim: Claim | None = None
) -> Legalization:
    """Decide as ``legalize`` does, and return what is unsupported instead of raising.

    Symbolic dims are allowed here: a decomposition that needs their sizes is then left undone.
    """
    decomposed: dict[str, int] = {}
    refusals: dict[str, dict[Refusal, None]] = {}
    choices: dict[Node, Implementation | Refusals] = {}
    symbolic = bool(graph.symbols)

    def decide(node: Node) -> Implementation | Refusals:
        found = choices.get(node)
        if found is None:
            claimed = claim is None or claim(node)
            found = choices[node] = choose(node) if claimed else _unclaimed(node)
        return found

    def step(node: Node) -> Value | tuple[Value, ...] | None:
        if node.op.op_name in LEAVES:
            return None
        choice = decide(node)
        if isinstance(choice, Refusals) or choice.kind != "decomposition":
            return None
        if symbolic:
            try:
                made: Value | tuple[Value, ...] = node.op.decompose(*node.inputs)
            except DimError:  # it depends on the sizes
                return None
        else:
            made = node.op.decompose(*node.inputs)
        name = node.op.op_name
        decomposed[name] = decomposed.get(name, 0) + 1
        if choice.refused:
            refusals.setdefault(name, {}).update(dict.fromkeys(choice.refused))
        return made

    graph = rewrite(graph, step)
    plan: dict[Node, Implementation] = {}
    unsupported: list[Unsupported] = []
    for inner in graph.all_graphs():
        for node in inner.nodes():
            if node.op.op_name in LEAVES:
                continue
            choice = decide(node)
            if isinstance(choice, Refusals):
                unsupported.append(Unsupported(node, choice.refused, choice.demanded))
            else:
                plan[node] = choice
    made_plan = Plan(
        plan,
        decomposed,
        tuple((v.name, v.type) for v in graph.inputs),
        tuple((v.name, v.type) for v in graph.params),
        tuple(v.type for v in graph.outputs),
        platform,
        {name: tuple(reasons) for name, reasons in refusals.items()},
    )
    return Legalization(graph, made_plan, tuple(unsupported))


def require_legal(legal: Legalization, *, claim: Claim | None = None) -> Lir:
    """The LIR of what was decided.

    Raises:
        LoweringError, KernelError: as ``legalize``.
    """
    if not legal.unsupported:
        return Lir(legal.graph, legal.plan)
    demanded = [u for u in legal.unsupported if u.demanded]
    missing = [u for u in legal.unsupported if not u.demanded]
    platform = legal.plan.platform
    if not missing:
        raise KernelError(_demands(demanded, platform))
    text = format_legalize_error(missing, platform, restricted=claim is not None)
    if demanded:
        text += "\n" + _demands(demanded, platform)
    raise LoweringError(text)


def decompose_unsupported(graph: Graph, supported: Callable[[Op], bool]) -> Graph:
    """Decompose every composite op that is not supported as it is."""
    return decompose(graph, lambda op: op.op_name not in LEAVES and not supported(op))


def format_legalize_error(
    unsupported: Sequence[Unsupported], backend_name: str, *, restricted: bool
) -> str:
    """The text that lists every node that a backend does not claim.

    Args:
        unsupported: the nodes, in order.
        backend_name: what they were decided for.
        restricted: whether ``CompileOptions.supported_ops`` restricts the claim.
    """
    kinds = dict.fromkeys(type(u.node.op) for u in unsupported)
    lines = [
        f'rlx-opt: backend "{backend_name}" doesn\'t claim support for {len(kinds)} op kind(s):'
    ]
    lines += _once(_missing(u, backend_name) for u in unsupported)
    if restricted:
        lines.append(
            "CompileOptions.supported_ops restricts what is carried out as it is. Add these ops to "
            "it, or leave it None to allow everything that the backend has."
        )
    else:
        lines.append(
            "CompileOptions.supported_ops restricts nothing here: the backend has no kernel, no "
            "lowering rule and no decomposition for them."
        )
    for op in kinds:
        if not op.__module__.startswith("rlx.ops"):
            lines.append(
                f"Hint: {op.op_name!r} is a custom op ({op.__module__}.{op.__qualname__}). Give it "
                f"decompose, or register a rule with @lowers({op.__name__}) or a kernel "
                "(rlx_xla.kernels.select.register_kernel)."
            )
    return "\n".join(lines)


def _missing(unsupported: Unsupported, platform: str) -> str:
    node = unsupported.node
    reasons = "".join(f"\n    {refusal}" for refusal in unsupported.refused)
    types = ", ".join(str(v.type) for v in node.inputs)
    results = ", ".join(map(str, node.types))
    name = f"no lowering for op {node.op.op_name!r} on {platform!r}{unsupported.where}"
    return f"  {name}: ({types}) -> {results}.{reasons}"


def _demands(unsupported: Sequence[Unsupported], platform: str) -> str:
    lines = _once(
        f"kernel_dispatch: a kernel is required for {u.node.op.op_name!r} on {platform!r}"
        f"{u.where}; every one refuses:" + "".join(f"\n  {r}" for r in u.refused)
        for u in unsupported
    )
    return "\n".join([*lines, "Allow the lowering rule, or change what the reasons name."])


def _once(lines: Iterable[str]) -> list[str]:
    """Each line once, in order, with how often it came."""
    counts = Counter(lines)
    return [line if count == 1 else _counted(line, count) for line, count in counts.items()]


def _counted(line: str, count: int) -> str:
    first, newline, rest = line.partition("\n")
    return f"{first} ({count} nodes){newline}{rest}"


def _unclaimed(node: Node) -> Implementation | Refusals:
    name = node.op.op_name
    refused = (Refusal("supported_ops", f"{name!r} is not claimed"),)
    if node.op.has_decompose:
        return Implementation("decomposition", name, None, refused)
    return Refusals(refused)
