"""Scans of several cells, taken apart: a scan for each, where recognition then finds them all.

Cells that stand in one loop, such as the layers of a network, carry states of their own: those of
the second read what the first computes, and not the other way round. So the first runs through all
steps before the second begins, which reads what the first has stacked.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast, final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rule, substitute, sweep
from rlx.ops.compare import Select
from rlx.ops.control_flow import Scan
from rlx.ops.dot import DotGeneral
from rlx.ops.io import Input
from rlx.ops.shape import Concatenate, Iota
from rlx.passes.recognize.at_once import at_once
from rlx.passes.recognize.masked_cells import plain_mask
from rlx.passes.recognize.matcher import Match
from rlx.passes.stream_loops.sequences import Counter, counter_at

_MOST_CARRIES = 32
"""Loops that carry more values are left alone."""

Found: TypeAlias = "Callable[[Graph], dict[Node, Match]]"
"""The scans of a graph that are recognised."""


def take_apart(graph: Graph, found: Found) -> tuple[Graph, int]:
    """The graph with scans taken apart where every cell in them is recognised then.

    Args:
        graph: any graph.
        found: finds the scans of a graph that are cells.

    Returns:
        The graph, itself where nothing changes, and the number of scans that were taken apart.
    """
    parts: dict[Node, tuple[Node, ...]] = {}
    trial = _swept(graph, lambda node: True, parts)
    if not parts:
        return graph, 0
    matched = {node for inner in trial.all_graphs() for node in found(inner)}
    chosen = {node for node, cells in parts.items() if matched.issuperset(cells)}
    if not chosen:
        return graph, 0
    return _swept(graph, chosen.__contains__, {}), len(chosen)


def _swept(
    graph: Graph, wanted: Callable[[Node], bool], parts: dict[Node, tuple[Node, ...]]
) -> Graph:
    """The graph with wanted scans taken apart; which scans with a carry are made of each."""
    graphs = iter(graph.all_graphs())

    def start() -> Rule:
        nodes = iter(next(graphs).nodes())

        def visit(current: Node) -> tuple[Value, ...] | None:
            source = next(nodes)
            if not isinstance(source.op, Scan) or not wanted(source):
                return None
            made = _Split.of(current)
            if made is None:
                return None
            results, parts[source] = made
            return results

        return visit

    return sweep(graph, start)


@final
@dataclass
class _Piece:
    """Some carries of a scan, and what their updates are computed by.

    Attributes:
        carries: which.
        nodes: the body's nodes that it computes.
        shown: values that it stacks.
        imported: values that are stacked before: by earlier pieces, or for all steps at once.
    """

    carries: tuple[int, ...]
    nodes: set[Node] = field(default_factory=set[Node])
    shown: dict[Value, None] = field(default_factory=dict[Value, None])
    imported: dict[Value, None] = field(default_factory=dict[Value, None])


@final
class _Split:
    """A scan's body in pieces, each of which reads only what those before it stack."""

    def __init__(self, node: Node, op: Scan) -> None:
        """Look into a scan."""
        self.node, self.op, self.body = node, op, op.body
        first = op.num_consts
        self._carried = op.body.inputs[first : first + op.num_carry]
        self._needs = _needs(op.body, self._carried)
        self.pieces: list[_Piece] = []
        self._at: dict[Value, _Piece] = {}
        self._rows = _needs(op.body, op.body.inputs[first:])

    @classmethod
    def of(cls, node: Node) -> tuple[tuple[Value, ...], tuple[Node, ...]] | None:
        """The results of a scan by its pieces, and the pieces that carry something."""
        op = node.op
        plain = isinstance(op, Scan) and not op.body.effects and op.unroll == 1
        if not isinstance(op, Scan) or not plain or not 1 <= op.num_carry <= _MOST_CARRIES:
            return None
        if not any(isinstance(inner.op, DotGeneral) for inner in op.body.nodes()):
            return None
        split = cls(node, op)
        groups = split.groups()
        outputs = op.body.outputs[op.num_carry :]
        for group in groups:
            updates = [op.body.outputs[p] for p in group]
            split.add(group, [*updates, *_beside(updates, outputs)])
        rest = [v for v in outputs if v not in split._at]
        if rest:
            split.add((), rest)
        for value in outputs:
            split._at[value].shown[value] = None
        prepared = [split.prepared(piece) for piece in split.pieces]
        return split.rebuilt(prepared) if len(split.pieces) > 1 or any(prepared) else None

    def groups(self) -> list[tuple[int, ...]]:
        """Carries that need each other, those first that need nobody else."""
        outputs = self.body.outputs[: self.op.num_carry]
        reach = [self._needs.get(v.node, 0) | self._own(v) for v in outputs]
        reach = [mask | 1 << place for place, mask in enumerate(reach)]
        changed = True
        while changed:
            changed = False
            for place, mask in enumerate(reach):
                wider = mask
                for other in _places(mask):
                    wider |= reach[other]
                changed = changed or wider != mask
                reach[place] = wider
        alike = collections.Counter(reach)
        order = sorted(alike, key=lambda mask: (mask.bit_count(), mask & -mask))
        return [tuple(p for p, mask in enumerate(reach) if mask == same) for same in order]

    def _own(self, value: Value) -> int:
        return 1 << self._carried.index(value) if value in self._carried else 0

    def add(self, carries: tuple[int, ...], wanted: Sequence[Value]) -> None:
        """Add the piece that computes values."""
        piece = _Piece(carries)
        own = sum(1 << place for place in carries)
        pending = list(wanted)
        seen: set[Value] = set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            mask = self._needs.get(value.node, 0) | self._own(value)
            earlier = self._at.get(value)
            if earlier is not None and mask and not mask & own:
                earlier.shown[value] = None
                piece.imported[value] = None
            elif not isinstance(value.node.op, Input):
                piece.nodes.add(value.node)
                pending += value.node.inputs
        for node in piece.nodes:
            for value in node.results:
                self._at.setdefault(value, piece)
        for place in carries:
            self._at.setdefault(self._carried[place], piece)
        for value in wanted:
            self._at.setdefault(value, piece)
        self.pieces.append(piece)

    def prepared(self, piece: _Piece) -> list[Value]:
        """What products and masks of a piece read that no carry of its own is behind."""
        own = sum(1 << place for place in piece.carries)
        found: dict[Value, None] = {}

        def look(part: Value) -> None:
            inside = part.node in piece.nodes and part not in piece.imported
            if inside and not self._needs[part.node] & own and self._rows[part.node]:
                found[part] = None

        for node in {self.body.outputs[place].node for place in piece.carries}:
            if isinstance(node.op, Select):
                look(plain_mask(node.inputs[0]))
        for node in piece.nodes if piece.carries else ():
            if not isinstance(node.op, DotGeneral):
                continue
            for value in node.inputs:
                joined = isinstance(value.node.op, Concatenate)
                for part in value.node.inputs if joined else (value,):
                    look(part)
        return [v for node in self.body.nodes() for v in node.results if v in found]

    def rebuilt(
        self, prepared: Sequence[list[Value]]
    ) -> tuple[tuple[Value, ...], tuple[Node, ...]] | None:
        """The results of all pieces, and the nodes of those that carry something.

        Args:
            prepared: for each piece what it reads that is computed for all steps at once.
        """
        count = self.op.num_carry
        stacked: dict[Value, Value] = {}
        carried: dict[int, Value] = {}
        cells: list[Node] = []
        for piece, early in zip(self.pieces, prepared, strict=True):
            counted = self._counted(piece, early)
            if counted is not None:
                last, rows = counted
                carried[piece.carries[0]] = last
                stacked.update(rows)
                continue
            if early or not piece.carries:
                values = early or list(piece.shown)
                body, operands, consts = self._body(_Piece((), imported=piece.imported), values,
                                                    stacked)  # fmt: skip
                made = at_once(body, operands, consts, self.op.length)
                if made is None:
                    return None
                now = dict(zip(values, made, strict=True))
                if not piece.carries:
                    stacked.update(now)
                    continue
                piece.imported.update(dict.fromkeys(early))
                stacked = {**stacked, **now}
            shown = list(piece.shown)
            updates = [self.body.outputs[place] for place in piece.carries]
            body, operands, consts = self._body(piece, [*updates, *shown], stacked)
            states = len(piece.carries)
            op = self.op.replace(body=body, num_consts=consts, num_carry=states)
            node = make_node(op, operands, self.node.location)
            cells.append(node)
            carried.update(zip(piece.carries, node.results, strict=False))
            stacked.update(zip(shown, node.results[states:], strict=True))
        ys = (stacked[v] for v in self.body.outputs[count:])
        return (*(carried[place] for place in range(count)), *ys), tuple(cells)

    def _counted(
        self, piece: _Piece, early: Sequence[Value]
    ) -> tuple[Value, dict[Value, Value]] | None:
        """The last value of a piece that counts steps, and its values in all of them."""
        length = self.op.length
        if early or len(piece.carries) != 1 or not isinstance(length, int):
            return None
        (place,) = piece.carries
        before, after = self._carried[place], self.body.outputs[place]
        first = self.op.num_consts
        counter = counter_at(self.body, first, place, self.node.inputs[first + place])
        if counter is None or not counter.fits(length, before.dtype):
            return None
        if not {*piece.shown} <= {before, after}:
            return None
        rows = {value: _count(counter, before.dtype, length, self.op.reverse, value is after)
                for value in piece.shown}  # fmt: skip
        return constant(counter.last(length), before.dtype), rows

    def _body(
        self, piece: _Piece, outputs: Sequence[Value], stacked: dict[Value, Value]
    ) -> tuple[Graph, list[Value], int]:
        """What a piece does in a step, its operands, and how many of them are constants."""
        first, count = self.op.num_consts, self.op.num_carry
        given = dict(zip(self.body.inputs, self.node.inputs, strict=True))
        names = _names(self.body)
        leaves = {
            v: Input(name=next(names), dtype=v.dtype, shape=v.shape)() for v in piece.imported
        }
        everything = [*self.body.inputs, *leaves.values()]
        listed = Graph(everything, (), outputs, name=self.body.name)
        inner = substitute(listed, leaves) if leaves else listed
        read = {*inner.outputs, *(v for node in inner.nodes() for v in node.inputs)}
        states = [self._carried[place] for place in piece.carries]
        consts = [v for v in self.body.inputs[:first] if v in read]
        xs = [v for v in self.body.inputs[first + count :] if v in read]
        imported = [v for v in piece.imported if leaves[v] in read]
        inputs = [*consts, *states, *xs, *(leaves[v] for v in imported)]
        body = Graph(inputs, (), inner.outputs, name=self.body.name)
        operands = [*(given[v] for v in (*consts, *states, *xs)), *(stacked[v] for v in imported)]
        return body, operands, len(consts)


def _beside(updates: Sequence[Value], outputs: Sequence[Value]) -> list[Value]:
    """What is stacked of new states by the mask that they stay by."""
    new = {(plain_mask(v.node.inputs[0]), side) for v in updates if isinstance(v.node.op, Select)
           for side in v.node.inputs[1:] if not isinstance(side.node.op, Input)}  # fmt: skip
    return [v for v in outputs if isinstance(v.node.op, Select) and any(
        (plain_mask(v.node.inputs[0]), side) in new for side in v.node.inputs[1:])]  # fmt: skip


def _count(counter: Counter, dtype: DType, length: int, reverse: bool, later: bool) -> Value:
    """The values of a counter in the steps that take each row, before they add to it or after."""
    taken = (length - 1 if reverse else 0) + later if length else 0  # of no step none fits
    start = counter.start + counter.step * taken
    step = counter.step if dtype.is_signed else abs(counter.step)
    falls = (counter.step != step) != reverse
    moved = cast("Value", Iota(dtype=dtype, shape=(length,))()) * constant(step, dtype)
    first = constant(start, dtype)
    return first - moved if falls else first + moved


def _needs(body: Graph, carried: Sequence[Value]) -> dict[Node, int]:
    """Which carries each node depends on, as bits."""
    bits = {value.node: 1 << place for place, value in enumerate(carried)}
    found: dict[Node, int] = {}
    for node in body.nodes():
        mask = bits.get(node, 0)
        for value in node.inputs:
            mask |= found[value.node]
        found[node] = mask
    return found


def _places(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _names(body: Graph) -> Iterator[str]:
    """Names that no input of a body has."""
    taken = {v.name for v in body.inputs}
    number = 0
    while True:
        name = f"before_{number}"
        number += 1
        if name not in taken:
            yield name
