"""Makes scans of loops over a known number of steps, and streams what they take row by row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast, final

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rule, substitute, sweep
from rlx.ops.compare import Compare, Direction
from rlx.ops.control_flow import Scan, While
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import DynamicUpdateSlice
from rlx.ops.io import Input
from rlx.ops.shape import Concatenate, Narrow, Reshape, Reverse, Slice, Transpose
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.stream_loops.accesses import Access, Run, access_of
from rlx.passes.stream_loops.sequences import (
    MAX_STEPS,
    Counter,
    counter_at,
    literal,
    sequences,
    vector,
)
from rlx.types import Dim


@final
@dataclass(frozen=True, kw_only=True)
class StreamLoops(AbstractPass):
    """Replaces loops that count by scans over what they read and write.

    A ``while`` whose condition compares a counter with a constant runs a known number of steps. In
    a scan, ``x[t]`` at the counter is a slice that the scan reads, and ``y[t] = …`` one that it
    stacks; what no step changes is a constant, and a counter that nothing else reads goes.
    """

    name: ClassVar[str] = "stream-loops"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        counts = [0, 0, 0]

        def visit(node: Node) -> tuple[Value, ...] | None:
            loop = _Loop.of(node)
            if loop is None or not loop.gains:
                return None
            counts[0] += isinstance(node.op, While)
            counts[1] += len(loop.reads)
            counts[2] += len(loop.writes)
            return loop.rebuilt()

        def start() -> Rule:
            return visit

        made = sweep(graph, start)
        if any(counts):
            loops, reads, writes = counts
            ctx.note(
                f"{loops} loops that count are scans; {reads} reads and {writes} writes at a "
                "counter are rows of theirs"
            )
        return made


@final
class _Loop:
    """A loop of a known number of steps, with what it does at its counters.

    Attributes:
        node: the loop.
        body: what one step does: constants, carries and slices, to carries and stacked values.
        length: number of steps.
        reads: what is read at a counter.
        writes: what is written, by the place of the carry that holds it.
    """

    def __init__(
        self, node: Node, body: Graph, consts: Sequence[Value], carry: Sequence[Value],
        xs: Sequence[Value], length: int, reverse: bool,
    ) -> None:  # fmt: skip
        """Look at a loop from inside."""
        self.node, self.body, self.length = node, body, length
        self._consts, self._carry, self._xs = tuple(consts), tuple(carry), tuple(xs)
        first = len(consts)
        self._carried = body.inputs[first : first + len(carry)]
        pairs = zip(self._carried, body.outputs, strict=False)
        self._fixed = [place for place, (a, b) in enumerate(pairs) if a is b]
        self._counters = _counters(body, first, carry, length)
        self.reverse = reverse
        self._unroll = node.op.unroll if isinstance(node.op, Scan) else 1
        self.reads: list[Access] = []
        self.writes: dict[int, Access] = {}
        self._known = self._known_rows() if length <= MAX_STEPS else {}
        if (self._counters or self._known) and 0 < length <= MAX_STEPS:
            self._look()

    @classmethod
    def of(cls, node: Node) -> _Loop | None:
        """The loop that a node is; None for one with effects or an unknown number of steps."""
        op = node.op
        if isinstance(op, Scan) and isinstance(op.length, int) and not op.body.effects:
            last = op.num_consts + op.num_carry
            parts = node.inputs[: op.num_consts], node.inputs[op.num_consts : last]
            return cls(node, op.body, *parts, node.inputs[last:], op.length, op.reverse)
        if isinstance(op, While) and not op.body.effects:
            length = _steps(op, node)
            if length:
                consts = op.cond_consts + op.body_consts
                parts = node.inputs[op.cond_consts : consts], node.inputs[consts:]
                return cls(node, op.body, *parts, (), length, False)
        return None

    @property
    def gains(self) -> bool:
        """Whether the loop changes."""
        return bool(isinstance(self.node.op, While) or self.reads or self.writes or self._fixed)

    def _known_rows(self) -> dict[Value, Array]:
        """What steps read of vectors of known integers, such as their numbers, step by step."""
        inside = self.body.inputs[len(self._consts) + len(self._carry) :]
        pairs = (
            (read, vector(x)) for read, x in zip(inside, self._xs, strict=False) if x.rank == 1
        )
        order = -1 if self.reverse else 1
        return {read: elements[::order] for read, elements in pairs if elements is not None}

    def _look(self) -> None:
        """Find the reads and writes."""
        body, first = self.body, len(self._consts)
        known: dict[Value, Array] = dict(self._known)
        for counter in self._counters:
            counted = body.inputs[first + counter.place]
            known[counted] = counter.elements(self.length, counted.dtype)
        outside = [*zip(body.inputs, self._consts, strict=False)]
        outside += [(self._carried[place], self._carry[place]) for place in self._fixed]
        for inside, value in outside:
            number = literal(value)
            if number is not None:
                known[inside] = np.full(self.length, number, inside.dtype.numpy)
        elements = sequences(body, known, self.length)
        found = [a for node in body.nodes() if (a := access_of(node, elements)) is not None]
        streams = bool(self._xs) or len(body.outputs) > len(self._carry)
        if not streams and found and all(a.falls for a in found if self.length > 1):
            self.reverse = self.length > 1
        found = [a for a in found if not a.writes or a.plain]
        if not any(isinstance(node.op, DotGeneral) for node in body.nodes()):
            # A part of an array is copied: measured on a CPU, a step that does little pays for it.
            found = [a for a in found if a.whole and a.falls == (self.reverse and self.length > 1)]
        self._take(found)

    def _take(self, found: Sequence[Access]) -> None:
        """Keep the accesses that a scan can make."""
        used: dict[Value, list[Node]] = {}
        for node in self.body.nodes():
            for value in node.inputs:
                used.setdefault(value, []).append(node)
        outputs = self.body.outputs
        for place, carried in enumerate(self._carried):
            writes = [a for a in found if a.writes and a.node.results[0] is outputs[place]]
            if len(writes) != 1 or outputs.count(outputs[place]) > 1 or carried in outputs:
                continue
            (write,) = writes
            reads = [a for a in found if not a.writes and a.array is carried]
            # Each row is read before it is written, and never again.
            alike = all((a.axis, a.runs) == (write.axis, write.runs) for a in reads)
            others = len(used.get(carried, ())) - len(reads) - 1
            if write.array is carried and alike and not others and not used.get(outputs[place]):
                self.writes[place] = write
                self.reads += reads
        invariant = {*self.body.inputs[: len(self._consts)]}
        invariant.update(self._carried[place] for place in self._fixed)
        self.reads += [a for a in found if not a.writes and a.array in invariant]

    def _outer(self, value: Value) -> Value:
        """What an input of the body is outside, at first."""
        place = self.body.inputs.index(value)
        return (*self._consts, *self._carry)[place]

    def rebuilt(self) -> tuple[Value, ...]:
        """The results of the loop, by a scan that reads and stacks rows."""
        body, carried = self.body, self._carried
        rows: dict[tuple[Value, int, tuple[Run, ...]], Value] = {}
        outside: list[Value] = []
        replaced: dict[Value, Value] = {}
        names = iter(_free_names(body, len(self.reads)))
        for read in self.reads:
            key = (read.array, read.axis, read.runs)
            if key not in rows:
                outside.append(self._rows(read))
                leaf = Input(name=next(names), dtype=read.array.dtype, shape=read.row)
                rows[key] = leaf()
            (result,) = read.node.results
            replaced[result] = _shaped(rows[key], result.shape)
            for node in body.nodes():  # a row's axis of size 1 comes and goes
                if isinstance(node.op, Reshape) and node.inputs[0] is result:
                    replaced[node.results[0]] = _shaped(rows[key], node.types[0].shape)
        kept = [p for p in range(len(carried)) if p not in self.writes and p not in self._fixed]
        stacked = [*body.outputs[len(carried) :], *map(_update, self.writes.values())]
        consts = [*body.inputs[: len(self._consts)], *(carried[p] for p in self._fixed)]
        given = [*self._consts, *(self._carry[p] for p in self._fixed)]
        given_rows = body.inputs[len(self._consts) + len(carried) :]
        xs = [*given_rows, *rows.values()]
        everything = [*consts, *(p for p in carried if p not in consts), *xs]
        listed = Graph(everything, (), [*(body.outputs[p] for p in kept), *stacked], name=body.name)
        inner = substitute(listed, replaced) if replaced else listed
        kept, outputs = self._without_counters(kept, inner)
        read = {
            *outputs,
            *(v for node in Graph(everything, (), outputs).nodes() for v in node.inputs),
        }
        pairs = [pair for pair in zip(consts, given, strict=True) if pair[0] in read]
        # Numbers of steps that only chose rows are not read any more.
        sources = [(v, x) for v, x in zip(given_rows, self._xs, strict=True)
                   if v in read or v not in self._known]  # fmt: skip
        streamed = [*(v for v, _ in sources), *rows.values()]
        inner = Graph(
            [*(c for c, _ in pairs), *(carried[p] for p in kept), *streamed],
            (),
            outputs,
            name=body.name,
        )
        op = Scan(
            body=inner, length=self.length, reverse=self.reverse, num_consts=len(pairs),
            num_carry=len(kept), unroll=self._unroll,
        )  # fmt: skip
        first = (self._carry[p] for p in kept)
        operands = [*(v for _, v in pairs), *first, *(x for _, x in sources), *outside]
        results = list(make_node(op, operands, self.node.location).results)
        return self._results(kept, results)

    def _without_counters(
        self, kept: list[int], body: Graph
    ) -> tuple[list[int], tuple[Value, ...]]:
        """The carries, and the body's outputs, without counters that nothing else reads."""
        outputs = body.outputs
        for counter in self._counters:
            if counter.place not in kept:
                continue
            at = kept.index(counter.place)
            rest = (*outputs[:at], *outputs[at + 1 :])
            carried = self._carried[counter.place]
            reads = Graph(body.inputs, (), rest, name=body.name).nodes()
            if carried not in rest and not any(carried in node.inputs for node in reads):
                kept, outputs = [p for p in kept if p != counter.place], rest
        return kept, outputs

    def _rows(self, read: Access) -> Value:
        """What a read takes its rows from, with the rows along the first axis."""
        array = self._outer(read.array)
        if read.axis:
            others = (a for a in range(array.rank) if a != read.axis)
            array = cast("Value", Transpose(permutation=(read.axis, *others))(array))
        runs = read.stacked(reverse=self.reverse)
        if runs == (Run(0, 1, self.length),) and array.shape[0] == self.length:
            return array
        pieces = [_piece(array, run) for run in runs]
        return pieces[0] if len(pieces) == 1 else cast("Value", Concatenate(axis=0)(*pieces))

    def _results(self, kept: Sequence[int], made: Sequence[Value]) -> tuple[Value, ...]:
        """What the loop results in, of a scan's results."""
        written = made[len(made) - len(self.writes) :]
        stacked = list(made[len(kept) : len(made) - len(self.writes)])
        found: dict[int, Value] = dict(zip(kept, made, strict=False))
        for place in self._fixed:
            found[place] = self._carry[place]
        for (place, write), rows in zip(self.writes.items(), written, strict=True):
            found[place] = self._written(self._carry[place], write, rows)
        for counter in self._counters:
            if counter.place not in found:
                dtype = self._carry[counter.place].dtype
                found[counter.place] = constant(counter.last(self.length), dtype)
        return (*(found[place] for place in range(len(self._carried))), *stacked)

    def _written(self, before: Value, write: Access, rows: Value) -> Value:
        """An array in which rows are written."""
        (run,) = write.stacked(reverse=self.reverse)
        if run.step < 0:
            rows = cast("Value", Reverse(axes=(0,))(rows))
        if write.axis:
            order = [*range(1, write.axis + 1), 0, *range(write.axis + 1, rows.rank)]
            rows = cast("Value", Transpose(permutation=tuple(order))(rows))
        if rows.type == before.type:
            return rows
        first = min(run.first, run.first + run.step * (run.length - 1))
        starts = [constant(first if a == write.axis else 0, "i32") for a in range(rows.rank)]
        return cast("Value", DynamicUpdateSlice()(before, rows, *starts))


def _piece(array: Value, run: Run) -> Value:
    """Rows of the first axis at one distance."""
    last = run.first + run.step * (run.length - 1)
    low, high, step = min(run.first, last), max(run.first, last), abs(run.step)
    if step == 1:
        made = cast("Value", Narrow(axis=0, start=low, length=run.length)(array))
    else:
        rest = array.shape[1:]
        made = cast("Value", Slice(
            start_indices=(low, *(0 for _ in rest)), limit_indices=(high + 1, *rest),
            strides=(step, *(1 for _ in rest)),
        )(array))  # fmt: skip
    return cast("Value", Reverse(axes=(0,))(made)) if run.step < 0 else made


def _counters(body: Graph, first: int, carry: Sequence[Value], length: int) -> list[Counter]:
    """The carries that count, and stay inside their types."""
    found = (counter_at(body, first, place, start) for place, start in enumerate(carry))
    return [c for c in found if c is not None and c.fits(length, carry[c.place].dtype)]


def _steps(op: While, node: Node) -> int | None:
    """How many steps a loop runs whose condition compares a counter with a constant."""
    test = op.cond.outputs[0].node
    if not isinstance(test.op, Compare):
        return None
    consts = op.cond_consts + op.body_consts
    carry = node.inputs[consts:]
    for index in (0, 1):
        side, other = test.inputs[index], test.inputs[1 - index]
        if side not in op.cond.inputs[op.cond_consts :]:
            continue
        place = op.cond.inputs.index(side) - op.cond_consts
        counter = counter_at(op.body, op.body_consts, place, carry[place])
        bound = _bound(op, node, other)
        if counter is None or bound is None:
            continue
        direction = test.op.direction if index == 0 else _TURNED[test.op.direction]
        count = _count(counter, direction, bound)
        fits = count is not None and counter.fits(count, side.dtype)
        return count if fits else None
    return None


def _bound(op: While, node: Node, value: Value) -> int | None:
    """The integer that a value of the condition is."""
    if value not in op.cond.inputs:
        return literal(value)
    place = op.cond.inputs.index(value)
    if place < op.cond_consts:
        return literal(node.inputs[place])
    at = place - op.cond_consts
    fixed = op.body.outputs[at] is op.body.inputs[op.body_consts + at]
    return literal(node.inputs[op.body_consts + place]) if fixed else None


def _count(counter: Counter, direction: Direction, bound: int) -> int | None:
    """How often a counter compares as asked before it no longer does; None for no end."""
    start, step = counter.start, counter.step
    if direction is Direction.NE:
        count, rest = divmod(bound - start, step)
        return count if count >= 0 and not rest else None
    if direction in (Direction.LE, Direction.GE):
        bound += 1 if direction is Direction.LE else -1
    upwards = direction in (Direction.LT, Direction.LE)
    if direction is Direction.EQ or upwards != (step > 0):
        return None
    return max(0, -((start - bound) // step))


_TURNED = {
    Direction.EQ: Direction.EQ, Direction.NE: Direction.NE, Direction.LT: Direction.GT,
    Direction.LE: Direction.GE, Direction.GT: Direction.LT, Direction.GE: Direction.LE,
}  # fmt: skip
"""The comparison with its sides exchanged."""


def _update(write: Access) -> Value:
    """The row that is written."""
    value = write.node.inputs[1 if isinstance(write.node.op, DynamicUpdateSlice) else 2]
    return _shaped(value, write.row)


def _shaped(value: Value, shape: tuple[Dim, ...]) -> Value:
    return value if value.shape == shape else make_node(Reshape(shape=shape), [value]).results[0]


def _free_names(body: Graph, count: int) -> list[str]:
    """Names that no input of a body has."""
    taken = {v.name for v in body.inputs}
    names = (f"row_{i}" for i in itertools.count())
    return list(itertools.islice((n for n in names if n not in taken), count))
