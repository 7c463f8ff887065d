"""Finds equal blocks in a row, as a loop in Python leaves them, and makes them one scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.rewrite import substitute
from rlx.ops.control_flow import Scan
from rlx.ops.io import Constant, Input
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.unroll import row_of, stacked

_LEAVES = ("input", "param", "constant")
_WORTH_A_WORD = 1000
"""Nodes in equal blocks from which a graph is told that it may be rolled."""

_BLOCKS_WORTH_A_WORD = 4
_PERIODS = 8
"""How many lengths of a block are tried."""

Place = tuple[int, int]
"""A node's number in its block, and which of its results."""


@final
@dataclass(frozen=True, kw_only=True)
class RollBlocks(AbstractPass):
    """Turns blocks of equal nodes, each reading the one before, into a scan over their weights.

    XLA's compile time grows faster than a function's length; a loop's does not. Weights are
    stacked, which is computed on every run unless ``cache_param_invariant`` does it once.

    Attributes:
        blocks: how many equal blocks in a row it takes; 0 only notes where it would pay.
    """

    name: ClassVar[str] = "roll-blocks"
    blocks: int = 0

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        least = self.blocks or _BLOCKS_WORTH_A_WORD
        sequence = [n for n in graph.nodes() if n.op.op_name not in _LEAVES]
        if not self.blocks and len(sequence) < _WORTH_A_WORD:
            return graph
        for found in _repeats(sequence, least):
            if not self.blocks:
                if found.size >= _WORTH_A_WORD:
                    ctx.note(
                        f"{found.count} equal blocks of {found.period} nodes: "
                        f"CompileOptions(roll_blocks={found.count}) makes them one loop, which "
                        "compiles faster"
                    )
                return graph
            for shift in range(found.period):
                rolled = _Rolling(graph, sequence, found.shifted(shift)).run(least)
                if rolled is not None:
                    made, count = rolled
                    ctx.note(f"{count} equal blocks of {found.period} nodes are one loop")
                    return made
        return graph


@final
@dataclass(frozen=True)
class _Repeat:
    """Equal stretches of a sequence of nodes: the first node, nodes in each, how many."""

    start: int
    period: int
    count: int

    @property
    def size(self) -> int:
        return self.period * self.count

    def shifted(self, by: int) -> _Repeat:
        """The same stretches, each cut ``by`` nodes later."""
        return self if not by else _Repeat(self.start + by, self.period, self.count - 1)


def _repeats(sequence: Sequence[Node], least: int) -> Iterator[_Repeat]:
    """The longest run for each likely period, those that cover most nodes first."""
    numbers: dict[Hashable, int] = {}
    kinds = [numbers.setdefault(_kind(n), len(numbers)) for n in sequence]
    often = Counter(kinds)
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for place, kind in enumerate(kinds):
        if often[kind] >= least:
            if kind in last:
                gaps[place - last[kind]] += 1
            last[kind] = place
    found = [_longest(kinds, period) for period, _ in gaps.most_common(_PERIODS)]
    found = [r for r in found if r.count >= least]
    yield from sorted(found, key=lambda r: (-r.size, r.period))


def _longest(kinds: Sequence[int], period: int) -> _Repeat:
    best = _Repeat(0, period, 0)
    start = 0
    for place in range(len(kinds)):
        if place + period >= len(kinds) or kinds[place] != kinds[place + period]:
            count = (place - start) // period + 1
            if count > best.count:
                best = _Repeat(start, period, count)
            start = place + 1
    return best


def _kind(node: Node) -> Hashable:
    """What two nodes must share to stand for each other."""
    return node.op, tuple(v.type for v in node.inputs), node.types


@final
@dataclass
class _Slots:
    """Values of each block that the body takes as one input: by what they are in all blocks."""

    columns: dict[tuple[Value, ...], int] = field(default_factory=dict[tuple[Value, ...], int])

    def number(self, column: tuple[Value, ...]) -> int:
        return self.columns.setdefault(column, len(self.columns))


@final
class _Rolling:
    """One attempt to roll one run of blocks, cut at one place."""

    def __init__(self, graph: Graph, sequence: Sequence[Node], repeat: _Repeat) -> None:
        self._graph = graph
        self._start, self._period, self._count = repeat.start, repeat.period, repeat.count
        self._blocks = [
            sequence[repeat.start + k * repeat.period : repeat.start + (k + 1) * repeat.period]
            for k in range(repeat.count)
        ]
        self._place = {
            n: (k, j) for k, block in enumerate(self._blocks) for j, n in enumerate(block)
        }
        self._after = set(sequence[repeat.start + repeat.size :])
        self._carried: dict[Place, Value] = {}
        self._consts, self._xs = _Slots(), _Slots()
        self._sources: dict[tuple[int, int], tuple[str, int | Place]] = {}

    def run(self, least: int) -> tuple[Graph, int] | None:
        """The graph with the loop, and how many blocks that are; None where they differ."""
        if self._count < max(2, least) or any(
            t.dtype is DType.TOKEN for block in self._blocks for n in block for t in n.types
        ):
            return None
        for j, node in enumerate(self._blocks[1]):
            for m in range(len(node.inputs)):
                if not self._classify(j, m):
                    return None
        return self._built(), self._count

    def _classify(self, j: int, m: int) -> bool:
        """Say where one operand comes from, if it is alike in all blocks."""
        column = tuple(block[j].inputs[m] for block in self._blocks)
        places = [self._place.get(v.node) for v in column]
        second = places[1]
        if second is None:
            if any(places) or any(v.node in self._after for v in column):
                return False
            alike = all(_is_same(v, column[0]) for v in column)
            if any(v.type != column[0].type for v in column):
                return False
            slots = self._consts if alike else self._xs
            self._sources[j, m] = ("const" if alike else "x", slots.number(column))
            return True
        block, number = second
        index = column[1].index
        if any(v.index != index for v in column[1:]):
            return False
        if block == 1:
            if column[0].index != index or any(p != (k, number) for k, p in enumerate(places)):
                return False
            self._sources[j, m] = ("inner", (number, index))
            return True
        follows = all(p == (k, number) for k, p in enumerate(places[1:]))
        first = column[0]
        if block != 0 or not follows or places[0] is not None or first.node in self._after:
            return False
        if (
            first.type != column[1].type
            or self._carried.setdefault((number, index), first) is not first
        ):
            return False
        self._sources[j, m] = ("carry", (number, index))
        return True

    def _built(self) -> Graph:
        carried = list(self._carried)
        wanted = self._read_later()
        ys = list(dict.fromkeys(place for _, place in wanted))
        body = self._body(carried, ys)
        scan = Scan(
            body=body,
            length=self._count,
            num_consts=len(self._consts.columns),
            num_carry=len(carried),
        )
        operands = [
            *(column[0] for column in self._consts.columns),
            *(self._carried[place] for place in carried),
            *(stacked(column) for column in self._xs.columns),
        ]
        results = make_node(scan, operands, self._blocks[0][0].location).results
        replaced: dict[Value, Value] = {}
        for k, (j, index) in wanted:
            row = results[len(carried) + ys.index((j, index))]
            replaced[self._blocks[k][j].results[index]] = row_of(row, k)
        for number, (j, index) in enumerate(carried):
            replaced[self._blocks[-1][j].results[index]] = results[number]
        return substitute(self._graph, replaced)

    def _body(self, carried: Sequence[Place], ys: Sequence[Place]) -> Graph:
        block = self._blocks[1]
        consts = _leaves("const", [c[0] for c in self._consts.columns])
        carry = _leaves("carry", [self._carried[place] for place in carried])
        xs = _leaves("x", [c[0] for c in self._xs.columns])
        made: list[Node] = []
        for j, node in enumerate(block):
            inputs: list[Value] = []
            for m in range(len(node.inputs)):
                kind, where = self._sources[j, m]
                if isinstance(where, int):
                    inputs.append((consts if kind == "const" else xs)[where])
                elif kind == "carry":
                    inputs.append(carry[carried.index(where)])
                else:
                    inputs.append(made[where[0]].results[where[1]])
            made.append(Node(node.op, tuple(inputs), node.types, node.location))
        outputs = [made[j].results[i] for j, i in (*carried, *ys)]
        return Graph([*consts, *carry, *xs], (), outputs, name="block")

    def _read_later(self) -> list[tuple[int, Place]]:
        """Values that something outside reads, other than the last block's carried ones."""
        outside = [n for n in self._graph.nodes() if n not in self._place]
        read = [v for n in outside for v in n.inputs] + list(self._graph.outputs)
        found: dict[tuple[int, Place], None] = {}
        for value in read:
            place = self._place.get(value.node)
            if place is None:
                continue
            k, j = place
            last = k == self._count - 1 and (j, value.index) in self._carried
            if not last:
                found[k, (j, value.index)] = None
        return list(found)


def _is_same(lhs: Value, rhs: Value) -> bool:
    constants = isinstance(lhs.node.op, Constant) and lhs.node.op == rhs.node.op
    return lhs is rhs or constants


def _leaves(name: str, like: Sequence[Value]) -> list[Value]:
    return [Input(name=f"{name}_{i}", dtype=v.dtype, shape=v.shape)() for i, v in enumerate(like)]
