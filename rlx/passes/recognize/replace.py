"""Puts what matchers find in the place of what it was made of, in inner graphs too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rlx.ir import location as loc
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ir.rewrite import Rewritten, Rule, sweep
from rlx.ops.sequence.loops import leaf
from rlx.passes.recognize.matcher import Matcher, Search
from rlx.recognition_report import NearMiss


def made_node(
    build: Callable[..., Value | tuple[Value, ...]], operands: Sequence[Value], *kinds: type[Op]
) -> Node | None:
    """The node of an op of some kinds that a match makes of values like its operands.

    Args:
        build: of the match.
        operands: of the match.
        kinds: classes of ops.
    """
    made = build(*(leaf(f"x{place}", v.type) for place, v in enumerate(operands)))
    pending = list(made) if isinstance(made, tuple) else [made]
    while pending:
        node = pending.pop().node
        if isinstance(node.op, kinds):
            return node
        pending += node.inputs
    return None


def find(
    graph: Graph,
    table: Mapping[type[Op], tuple[Matcher, ...]],
    *,
    strict: bool,
    platform: str,
    counts: Counter[str],
    misses: dict[NearMiss, None],
    has_kernel: Callable[[Node], bool] | None = None,
    trees: bool = False,
) -> Graph:
    """The graph with every pattern, in inner graphs too, replaced by its composite.

    Args:
        graph: any graph.
        table: matchers by the op of a pattern's last node.
        strict: whether to match only what gives the same bits.
        platform: what is compiled for.
        counts: what was found is added here.
        misses: near misses are added here.
        has_kernel: whether a kernel of the device carries a node out; None for no device.
        trees: whether to match recurrences that trees of products compute.
    """
    graphs = iter(graph.all_graphs())

    def start() -> Rule:
        source = next(graphs)
        matches = Search(source, strict, misses, platform, has_kernel, trees).run(table)
        if not matches:
            return _nothing
        nodes = iter(source.nodes())
        new: dict[Value, Value] = {}

        def visit(current: Node) -> Rewritten:
            node = next(nodes)
            match = matches.get(node)
            if match is None:
                if current is not node:
                    new.update(zip(node.results, current.results, strict=True))
                return None
            with loc.at(node.location):
                made = match.build(*(new.get(v, v) for v in match.operands))
            results = made if isinstance(made, tuple) else (made,)
            new.update(zip(node.results, results, strict=True))
            counts[match.what] += 1
            if counts[match.absorbs]:
                counts[match.absorbs] -= 1
            return results

        return visit

    return sweep(graph, start)


def _nothing(current: Node) -> Rewritten:
    """What a visitor makes of a node where nothing was found."""
    del current
