"""Leaves out what nothing uses: results of inner graphs, loop carries, operands, params."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, inner_graphs, make_node
from rlx.ir.op import Op
from rlx.ir.rewrite import with_inner_graphs
from rlx.ops.control_flow import Call, Cond, Scan, While
from rlx.passes.base import AbstractPass, PassContext

Mask: TypeAlias = "tuple[bool, ...]"

_DEPTH = 64
"""Graphs that are nested more deeply are left as they are."""


@final
@dataclass(frozen=True, kw_only=True)
class EliminateDeadCode(AbstractPass):
    """Prunes calls, choices and loops to the results that are used and the operands behind them.

    A carry of a loop goes when neither its last value nor anything that is kept reads it. Effects
    and what they read always stay. A call whose body loses results is an ordinary one from then
    on: a derivative rule of its own would speak of the results that it had.
    """

    name: ClassVar[str] = "eliminate-dead-code"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        inner = graph.all_graphs()
        if len(inner) == 1 or _depth(inner) > _DEPTH:
            return graph
        pruning = _Pruning()
        kept = tuple(True for _ in graph.inputs)
        return pruning.pruned(graph, tuple(True for _ in graph.outputs), kept)


@final
@dataclass(frozen=True, kw_only=True)
class DropUnusedParams(AbstractPass):
    """Leaves params out that nothing reads, so that they need no value and no memory."""

    name: ClassVar[str] = "drop-unused-params"
    keeps_boundary: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        used = {v for node in graph.nodes() for v in node.inputs}
        used.update(graph.outputs)
        kept = [p for p in graph.params if p in used]
        if len(kept) == len(graph.params):
            return graph
        dropped = ", ".join(p.name for p in graph.params if p not in used)
        ctx.note(f"not used: {dropped}")
        return Graph(graph.inputs, kept, graph.outputs, graph.effects, name=graph.name)


@final
class _Pruning:
    """One run: liveness, then the smaller graphs, each once for the results that are wanted."""

    def __init__(self) -> None:
        self._live: dict[tuple[Graph, Mask], tuple[set[Value], Mask]] = {}
        self._made: dict[tuple[Graph, Mask, Mask], Graph] = {}

    def live(self, graph: Graph, wanted: Mask) -> tuple[set[Value], Mask]:
        """The values behind the wanted outputs and all effects, and which inputs are among them."""
        key = (graph, wanted)
        if key not in self._live:
            live = {v for v, keep in zip(graph.outputs, wanted, strict=True) if keep}
            live.update(graph.effects)
            for node in reversed(graph.nodes()):
                mask = tuple(v in live for v in node.results)
                if any(mask):
                    needed = self.operands(node, mask)
                    live.update(v for v, keep in zip(node.inputs, needed, strict=True) if keep)
            self._live[key] = (live, tuple(v in live for v in graph.inputs))
        return self._live[key]

    def operands(self, node: Node, wanted: Mask) -> Mask:
        """Which operands the wanted results of a node depend on."""
        op = node.op
        if isinstance(op, Call):
            return self.live(op.body, wanted[: len(op.body.outputs)])[1]
        if isinstance(op, Cond):
            masks = [self.live(b, wanted[: len(b.outputs)])[1] for b in op.branches]
            return (True, *_union(masks))
        if isinstance(op, Scan):
            carried, body = self.scan_masks(op, wanted)
            _, needed = self.live(op.body, body)
            first = op.num_consts + op.num_carry
            return (*needed[: op.num_consts], *carried, *needed[first:])
        if isinstance(op, While):
            carried = self.while_carry(op, wanted)
            tokens = tuple(True for _ in op.body.effects)
            in_cond = self.live(op.cond, (True,))[1][: op.cond_consts]
            in_body = self.live(op.body, carried)[1][: op.body_consts]
            return (*in_cond, *in_body, *carried, *tokens)
        return tuple(True for _ in node.inputs)

    def scan_masks(self, op: Scan, wanted: Mask) -> tuple[Mask, Mask]:
        """Which carries stay, and which outputs of the body."""
        first = op.num_consts + op.num_carry
        carried = wanted[: op.num_carry]
        ys = wanted[op.num_carry : len(op.body.outputs)]
        while True:
            needed = self.live(op.body, (*carried, *ys))[1]
            more = _union([carried, needed[op.num_consts : first]])
            if more == carried:
                return carried, (*carried, *ys)
            carried = more

    def while_carry(self, op: While, wanted: Mask) -> Mask:
        """Which carries stay, tokens left out."""
        count = len(op.body.outputs)
        carried = _union([wanted[:count], self.live(op.cond, (True,))[1][op.cond_consts :]])
        while True:
            needed = self.live(op.body, carried)[1][op.body_consts :]
            more = _union([carried, needed[:count]])
            if more == carried:
                return carried
            carried = more

    def pruned(self, graph: Graph, wanted: Mask, inputs: Mask) -> Graph:
        """The graph with the wanted outputs and some inputs, inner graphs pruned in turn."""
        key = (graph, wanted, inputs)
        if key not in self._made:
            live, _ = self.live(graph, wanted)
            new: dict[Value, Value] = {}
            for node in graph.nodes():
                if node.inputs or inner_graphs(node.op):
                    mask = tuple(v in live for v in node.results)
                    if any(mask):
                        self._rebuild(node, mask, new)
            outputs = [v for v, keep in zip(graph.outputs, wanted, strict=True) if keep]
            kept = [v for v, keep in zip(graph.inputs, inputs, strict=True) if keep]
            same = not new and all(wanted) and all(inputs)
            self._made[key] = (
                graph
                if same
                else Graph(
                    kept,
                    graph.params,
                    [new.get(v, v) for v in outputs],
                    [new.get(v, v) for v in graph.effects],
                    name=graph.name,
                )
            )
        return self._made[key]

    def _rebuild(self, node: Node, wanted: Mask, new: dict[Value, Value]) -> None:
        op, kept, results = self._smaller(node, wanted)
        inputs = [new.get(v, v) for v, keep in zip(node.inputs, kept, strict=True) if keep]
        if op is node.op and all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            return
        made = make_node(op, inputs, node.location)
        left = [v for v, keep in zip(node.results, results, strict=True) if keep]
        new.update(zip(left, made.results, strict=True))

    def _smaller(self, node: Node, wanted: Mask) -> tuple[Op, Mask, Mask]:
        """The op without what is not needed; which operands and which results it keeps."""
        op = node.op
        tokens = tuple(t.dtype is DType.TOKEN for t in node.types)
        everything = tuple(True for _ in node.types)
        operands = self.operands(node, wanted)
        if isinstance(op, Call):
            results = _union([wanted, tokens])
            body = self.pruned(op.body, wanted[: len(op.body.outputs)], operands)
            if body is op.body:
                return op, operands, results
            live = op.live if all(results) and all(operands) else None
            return op.replace(body=body, live=live), operands, results
        if isinstance(op, Cond):
            results = _union([wanted, tokens])
            branches = tuple(
                self.pruned(b, wanted[: len(b.outputs)], operands[1:]) for b in op.branches
            )
            return _changed(op, op.branches, branches, branches=branches), operands, results
        if isinstance(op, Scan):
            carried, outputs = self.scan_masks(op, wanted)
            body = self.pruned(op.body, outputs, operands)
            consts = sum(operands[: op.num_consts])
            made = _changed(
                op, (op.body,), (body,), body=body, num_consts=consts, num_carry=sum(carried)
            )
            return made, operands, (*outputs, *tokens[len(outputs) :])
        if isinstance(op, While):
            return self._smaller_while(op, wanted, operands, tokens)
        inner = inner_graphs(op)
        if inner:
            whole = [
                self.pruned(g, tuple(True for _ in g.outputs), tuple(True for _ in g.inputs))
                for g in inner
            ]
            if any(a is not b for a, b in zip(inner, whole, strict=True)):
                return with_inner_graphs(op, whole), operands, everything
        return op, operands, everything

    def _smaller_while(
        self, op: While, wanted: Mask, operands: Mask, tokens: Mask
    ) -> tuple[Op, Mask, Mask]:
        carried = self.while_carry(op, wanted)
        consts = op.cond_consts + op.body_consts
        in_cond, in_body = operands[: op.cond_consts], operands[op.cond_consts : consts]
        rest = operands[consts:]
        cond = self.pruned(op.cond, (True,), (*in_cond, *carried))
        body = self.pruned(op.body, carried, (*in_body, *rest))
        made = _changed(
            op,
            (op.cond, op.body),
            (cond, body),
            cond=cond,
            body=body,
            cond_consts=sum(in_cond),
            body_consts=sum(in_body),
        )
        return made, operands, (*carried, *tokens[len(carried) :])


def _changed(op: Op, old: Sequence[Graph], new: Sequence[Graph], **changes: object) -> Op:
    """The op with changes, or itself where its graphs stay."""
    if all(a is b for a, b in zip(old, new, strict=True)):
        return op
    return op.replace(**changes)


def _union(masks: Sequence[Mask]) -> Mask:
    return tuple(any(column) for column in zip(*masks, strict=True))


def _depth(graphs: Sequence[Graph]) -> int:
    """How deeply graphs are nested, given inner ones first."""
    depth: dict[Graph, int] = {}
    for graph in graphs:
        inner = [depth[g] for node in graph.nodes() for g in inner_graphs(node.op)]
        depth[graph] = 1 + max(inner, default=0)
    return max(depth.values())
